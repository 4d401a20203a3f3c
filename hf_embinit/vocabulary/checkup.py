"""`doctor`: what is wrong between a model's tables, configurations and tokenizer; `repair`: rows refilled.

`V` rows of a table, `D` its width, `R` rows to look at.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import EmbinitError, InvalidArgumentError
from ..hub import load_pretrained_tokenizer
from ..manifest import read_manifest
from ..rows import RowRequest, make_rows
from ..tables import EmbeddingTables, Table, unusable_rows
from .id_fields import id_fields

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
_SHOWN = 5
"""Rows or tokens that a finding names."""

FAR = 8.0
"""A row is far from the others when its distance to their mean is this many times the median distance."""

_ROLES = ("pad", "bos", "eos", "unk", "sep", "cls", "mask")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    severity: Severity
    code: str
    """A short name that stays, such as `ids_beyond_rows`."""
    message: str
    advice: str
    """What to do."""
    rows: tuple[int, ...] = ()
    """Rows that `repair` can refill."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.message} [{self.code}]. {self.advice}"

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON-serialisable values."""
        return asdict(self) | {"rows": list(self.rows)}


def doctor(
    model: PreTrainedModel | str | PathLike[str], tokenizer: Any = None, *, trust_remote_code: bool = False
) -> list[Finding]:
    """What is wrong with a model and its tokenizer, worst first; empty when nothing was found.

    `model` is a model or the folder of one; the tokenizer of a folder is its own unless given. A folder that
    cannot be loaded is a finding, too. Changes nothing.
    """
    found: list[Finding] = []
    if not isinstance(model, PreTrainedModel):
        folder = Path(model)
        if tokenizer is None and (folder / "tokenizer_config.json").is_file():
            try:
                tokenizer = load_pretrained_tokenizer(
                    str(folder), f"the tokenizer of {folder}", trust_remote_code=trust_remote_code
                )
            except EmbinitError as error:
                found.append(Finding("error", "tokenizer_cannot_be_loaded", str(error), "Save it again"))
        loaded = _load(folder, found, trust_remote_code)
        if loaded is None:
            return found
        model = loaded
    try:
        tables = EmbeddingTables(model)
        found += _sizes(tables, tokenizer)
        found += _ties(tables)
        for table in tables.own_tables:
            found += _rows(table, tables.read(table), tokenizer, _new_ids(model))
    except EmbinitError as error:
        found.append(Finding("error", "unsupported", str(error), "The tables cannot be looked at"))
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        found += _tokenizer(tokenizer)
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def repair(
    model: PreTrainedModel,
    tokenizer: Any = None,
    rows: Sequence[int] | None = None,
    init: str = "mean",
    *,
    seed: int = 0,
    **options: Any,
) -> list[int]:
    """Refills rows by an initialiser for new rows, in place, and records it; gives their ids.

    `rows` are by default those of tokens that `doctor` found empty or broken. Other rows stay bit for bit.
    Raises `InvalidArgumentError` for rows that the model lacks.
    """
    tables = EmbeddingTables(model)
    if rows is None:
        wanted = sorted({row for finding in doctor(model, tokenizer) for row in finding.rows})
    else:
        wanted = sorted(set(rows))
    size = tables.vocab_size()
    for row in wanted:
        if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row < size:
            raise InvalidArgumentError(f"rows has {row!r}: expected ids from 0 to {size - 1}")
    if wanted:
        request = RowRequest(init, seed, options, tokenizer, tokenizer)
        plan = tables.plan()
        made = make_rows(tables, request, plan, wanted)
        event = {"event": "repair", "init": init, "seed": seed, "options": options, "rows": wanted}
        tables.change(plan, made, event=event)
    return wanted


def _load(folder: Path, found: list[Finding], trust_remote_code: bool) -> PreTrainedModel | None:
    """The model of a folder; what loading says becomes findings."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        name = next(iter(config.architectures or ()), "AutoModel")
        model, told = getattr(transformers, name, transformers.AutoModel).from_pretrained(
            folder, output_loading_info=True
        )
    except Exception as error:  # whatever is wrong with the files
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        found.append(
            Finding("error", "cannot_be_loaded", f"{folder} cannot be loaded: {line}", "Save the model again")
        )
        return None
    missing = set(told["missing_keys"])
    tables = [t.name for t in EmbeddingTables(model).own_tables if t.name in missing]
    for name in tables:
        found.append(
            Finding(
                "error",
                "never_loaded",
                f"{name} is not in the files of {folder}, so that loading draws it at random",
                "Save the model with this table, or tie it",
            )
        )
    return model


def _sizes(tables: EmbeddingTables, tokenizer: Any) -> Iterator[Finding]:
    model = tables.model
    size = max(t.num_embeddings - t.extra_rows for t in tables.tables)
    said = vars(model.config.get_text_config()).get("vocab_size")
    if isinstance(said, int) and said != size and len({t.side for t in tables.tables}) == 1:
        yield Finding(
            "error",
            "config_size",
            f"config.vocab_size is {said}, but the tables have {size} rows",
            f"Set it to {size}: servers and a reload go by it",
        )
    for field in id_fields(model, size):
        beyond = sorted(i for i in field.ids if i >= size)
        if beyond:
            yield Finding(
                "error",
                "configured_id_beyond_rows",
                f"{type(field.holder).__name__}.{field.name} is {beyond[0]}, but there are {size} rows",
                "Set it to the tokenizer's id, or to None",
            )
    if tokenizer is None:
        return
    ids = set(tokenizer.get_vocab().values())
    highest = max(ids, default=-1)
    if highest >= size:
        yield Finding(
            "error",
            "ids_beyond_rows",
            f"the tokenizer has ids up to {highest}, but there are {size} rows: {highest + 1 - size} too few",
            "Resize the model (hf_embinit.patch, expand_vocabulary), or take its own tokenizer",
        )
    elif size > highest + 1:
        yield Finding(
            "note",
            "rows_beyond_tokenizer",
            f"{size - highest - 1} rows lie beyond the tokenizer's {highest + 1} ids",
            "Padding is harmless; do not shrink to len(tokenizer) before merging an adapter",
        )
    for role in _ROLES:
        own = getattr(tokenizer, f"{role}_token_id", None)
        there = getattr(model.config.get_text_config(), f"{role}_token_id", None)
        of_config = there if isinstance(there, list) else [there]
        if own is not None and there is not None and own not in of_config:
            yield Finding(
                "warning",
                "special_id_differs",
                f"{role}_token_id is {own} in the tokenizer and {there} in the config",
                "Set both to the id that the model was trained with",
            )


def _ties(tables: EmbeddingTables) -> Iterator[Finding]:
    said = bool(getattr(tables.model.config.get_text_config(), "tie_word_embeddings", False))
    for output in tables.output_tables:
        source = next((t for t in tables.input_tables if t.side == output.side), None)
        if source is None or source.num_embeddings != output.num_embeddings:
            continue
        if output.tied_to is not None and not said:
            yield Finding(
                "warning",
                "tie_not_in_config",
                f"{output.name} is {output.tied_to}, but config.tie_word_embeddings is False",
                "Set it to True, so that PEFT and servers know",
            )
        elif output.tied_to is None and said and not torch.equal(tables.read(output), tables.read(source)):
            yield Finding(
                "error",
                "tie_only_in_config",
                f"config.tie_word_embeddings is True, but {output.name} differs from {source.name}",
                "Set it to False (hf-embinit merge does), or a reload may put the embedding in its place",
            )


def _rows(table: Table, rows: Tensor, tokenizer: Any, new: list[int]) -> Iterator[Finding]:
    """Findings on the rows `[V, D]` of one table. A row whose largest entry is tiny may have large negative
    ones: norms and equality tell, not signed maxima."""
    used = None if tokenizer is None else {i: token for token, i in tokenizer.get_vocab().items()}
    names = None if used is None else [used.get(i, "") for i in range(max(used, default=-1) + 1)]
    try:
        unusable = unusable_rows(rows, table, tokens=names)
    except InvalidArgumentError as error:
        everything = tuple(range(len(rows)))
        yield Finding("error", "rows_not_finite", str(error), "Load the weights first", everything)
        return

    def of_tokens(reason: str) -> tuple[int, ...]:
        reserved = {*unusable.get("reserved", ()), *unusable.get("padding", ())}
        found = (i for i in unusable.get(reason, ()) if i not in reserved)
        return tuple(i for i in found if used is None or i in used)

    kinds: list[tuple[str, str, Severity, str]] = [
        ("not_finite", "rows_not_finite", "error", "have NaN or infinite entries"),
        ("zero", "rows_of_zeros", "warning", "are zero"),
        ("repeated", "equal_rows", "warning", "are equal to others"),
    ]
    special = {getattr(tokenizer, f"{role}_token_id", None): role for role in _ROLES[1:]}
    for reason, code, severity, text in kinds:
        ids = of_tokens(reason)
        if not ids:
            continue
        roles = [f"{special[i]} ({i})" for i in ids if i in special]
        if roles and reason != "repeated":
            message = f"{', '.join(roles)} of the tokenizer in {table.name} {text}: never trained"
            yield Finding("error", "special_token_untrained", message, _REFILL, ids)
        told = f"{len(ids)} rows of {table.name} {text}: {_few(ids, used)}"
        if reason == "repeated":
            yield Finding(
                severity, code, told, "Give them rows of their own: repair(rows=..., init='mean_cov')"
            )
        else:
            yield Finding(severity, code, told, _REFILL, ids)
    good = rows.float()
    distance = (good - good.nanmean(0)).norm(dim=1)
    far = (distance > FAR * distance.nanmedian()).nonzero().flatten().tolist()
    if far:
        message = f"{len(far)} rows of {table.name} lie far from all others: {_few(far, used)}"
        yield Finding("note", "far_rows", message, "Compare them with hf-embinit analyze")
    new = [i for i in new if i < len(rows)]
    if len(new) > 1:
        yield from _new_rows(table, rows[new])


_REFILL = "Refill them: hf_embinit.repair(model, tokenizer)"


def _new_rows(table: Table, rows: Tensor) -> Iterator[Finding]:
    """Findings on rows `[R, D]` that this package made: whether training can tell them apart."""
    exact = rows.float()
    distances = torch.cdist(exact[:4096].double(), exact[:4096].double())
    distances.fill_diagonal_(torch.inf)
    smallest = float(distances.min())
    values = torch.linalg.svdvals((exact - exact.mean(0)).double())
    shares = values / values.sum().clamp(min=1e-30)
    rank = float(torch.exp(-(shares * shares.clamp(min=1e-30).log()).sum())) if smallest else 1.0
    text = f"smallest distance {smallest:.3g}, effective rank {rank:.1f} in {str(rows.dtype)[6:]}"
    if smallest == 0:
        message = f"new rows of {table.name} are equal in the saved dtype ({text})"
        yield Finding("warning", "equal_new_rows", message, "Choose mean_cov or subword_mean, or train on")
    else:
        yield Finding("note", "new_rows", f"{len(rows)} new rows of {table.name}: {text}", "Nothing to do")


def _new_ids(model: PreTrainedModel) -> list[int]:
    from .adapters import grown_ids

    return sorted(set().union(*grown_ids(read_manifest(model)).values()))


def _tokenizer(tokenizer: PreTrainedTokenizerBase) -> Iterator[Finding]:
    added = {str(token): i for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    lost = [
        t for t, i in added.items() if i not in tokenizer(f"a {t} b", add_special_tokens=False)["input_ids"]
    ]
    if lost:
        yield Finding(
            "warning",
            "added_token_swallowed",
            f"{len(lost)} added tokens are not found in a text: {', '.join(map(repr, lost[:_SHOWN]))}",
            "Add them with normalized=False, or without single_word=True",
        )
    texts = [f"a {token} b" for token in added] + ["The quick brown fox.", "Überall ☃ 42\n"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            tokenizer.save_pretrained(folder)
            again = type(tokenizer).from_pretrained(folder)
            changed = [t for t in texts if again(t)["input_ids"] != tokenizer(t)["input_ids"]]
        except Exception as error:  # whatever a tokenizer's own code does
            changed = [f"saving it fails: {error}"]
    if changed:
        yield Finding(
            "error",
            "splits_differently_after_saving",
            f"the tokenizer splits differently once saved and loaded: {changed[0]!r}",
            "Save it from the class it was loaded as",
        )


def _few(ids: Sequence[int], names: dict[int, str] | None) -> str:
    shown = [f"{i} {names[i]!r}" if names and i in names else str(i) for i in ids[:_SHOWN]]
    return ", ".join(shown) + (" ..." if len(ids) > _SHOWN else "")
