"""What `expand_vocabulary` planned and did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..display import printable
from ..manifest import plain_json

_SHOWN = 10
"""Tokens that `str(report)` lists."""


@dataclass
class TokenPlan:
    """One new token."""

    token: str
    id: int
    reused: bool
    """Whether its row existed already (padding of the matrix) and was overwritten."""
    init: str
    source: list[str] | None
    """Old tokens whose rows it is made of; None for initialisers that use the whole table or none of it."""
    slot: str | None = None
    """The unused token that it takes the place of."""

    def __str__(self) -> str:
        of = f" of {' + '.join(map(printable, self.source))}" if self.source else ""
        none = " without a source: the mean of the old rows" if self.source == [] else ""
        row = f" (was {self.slot!r})" if self.slot else " (padding row)" if self.reused else ""
        return f"{self.id:>7} {self.token!r}: {self.init}{of}{none}{row}"


@dataclass
class DistributionShift:
    """What new rows do to next-token distributions, p before and p' after, over prefixes of old tokens."""

    prefixes: int
    """Distributions compared."""
    kl_mean: float
    """KL(p || p') in nats."""
    kl_max: float
    mass_mean: float
    """Probability of all new rows together under p'."""
    mass_max: float
    top1_agreement: float
    """Share of prefixes whose most probable token stayed, 0..1."""
    largest_logit: float
    """Of the old rows, before."""
    bound: float | None = None
    """What KL cannot exceed at these prefixes when all new rows are the mean of the old ones."""


@dataclass
class ExpansionReport:
    """What `expand_vocabulary` planned or did; `str(report)` is for reading, `to_dict()` for JSON."""

    init: str
    seed: int
    options: dict[str, Any]
    tokens: list[TokenPlan]
    old_num_embeddings: int
    new_num_embeddings: int
    """Rows of the matrix; more than the tokenizer's when it is padded."""
    bound: float | None
    """What KL(p || p') cannot exceed at any prefix when all new rows are the mean of the old ones, see
    `measures.expansion_bound`. None without a head."""
    coverage: dict[str, Any] | None
    """Tokens, how many have a source of their own, and those that have none (they get the mean)."""
    shift: DistributionShift | None = None
    """None for a dry run, for `prefixes=()`, and for models without an output table, a forward pass or finite
    logits."""
    min_distance: dict[str, float] = field(default_factory=dict)
    """Table -> smallest Euclidean distance between two new tokens' rows, in the table's dtype."""
    effective_rank: dict[str, float] = field(default_factory=dict)
    """Table -> effective rank of the new tokens' rows around their mean, in the table's dtype: 0 when all are
    equal."""
    tables: list[dict[str, Any]] = field(default_factory=list)
    """Per table: rows filled, old rows used and left out of the statistics, source of vectors."""
    trainable_token_indices: dict[str, list[int]] = field(default_factory=dict)
    """Module -> ids, as `peft.LoraConfig(trainable_token_indices=...)` takes them."""
    dry_run: bool = False
    logit_cap: float | None = None
    """c of a head that caps its logits (Gemma 2's `final_logit_softcapping`)."""

    @property
    def token_ids(self) -> list[int]:
        """Ids of the new tokens."""
        return [plan.id for plan in self.tokens]

    @property
    def filled_rows(self) -> list[int]:
        """Rows that were initialised: the new tokens', and padding that the matrix gained."""
        return sorted({*self.token_ids, *range(self.old_num_embeddings, self.new_num_embeddings)})

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-serialisable values."""
        return plain_json(asdict(self))

    def __str__(self) -> str:
        did = "would add" if self.dry_run else "added"
        lines = [
            f"{did} {len(self.tokens)} tokens by {self.init} (seed {self.seed}), "
            f"rows {self.old_num_embeddings} -> {self.new_num_embeddings}"
        ]
        lines += [f"  {plan}" for plan in self.tokens[:_SHOWN]]
        if len(self.tokens) > _SHOWN:
            lines.append(f"  ... and {len(self.tokens) - _SHOWN} more")
        if self.coverage is not None and self.coverage["without_source"]:
            names = ", ".join(repr(t) for t in self.coverage["without_source"][:_SHOWN])
            lines.append(
                f"  {self.coverage['with_source']} of {self.coverage['tokens']} tokens have a source "
                "of their own; "
                f"these have none and get the mean: {names}"
            )
        for table in self.tables:
            left_out = ", ".join(f"{len(rows)} {reason}" for reason, rows in table["left_out"].items())
            if left_out:
                lines.append(f"  {table['name']}: statistics over {table['usable']} rows, without {left_out}")
        if self.shift is not None:
            s = self.shift
            capped = (
                ""
                if self.logit_cap is None
                else f"; logits are capped at {self.logit_cap:g}, the largest is {s.largest_logit:.3g}"
            )
            lines.append(
                f"  KL(p || p') over {s.prefixes} prefixes: mean {s.kl_mean:.3g}, largest {s.kl_max:.3g} nats"
                + (f" (the mean row's bound: {s.bound:.3g}{capped})" if s.bound is not None else "")
            )
            lines.append(
                f"  probability of the new rows: mean {s.mass_mean:.3g}, largest {s.mass_max:.3g}; "
                f"same most probable token: {s.top1_agreement:.1%}"
            )
        elif self.bound is not None:
            lines.append(f"  KL(p || p') was not measured (the mean row's bound: {self.bound:.3g})")
        for name, distance in self.min_distance.items():
            dtype = next(table["dtype"] for table in self.tables if table["name"] == name)
            lines.append(
                f"  {name}: new rows at least {distance:.3g} apart in {dtype}, "
                f"effective rank {self.effective_rank[name]:.3g}"
            )
        return "\n".join(lines)
