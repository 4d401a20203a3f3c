"""What `replace_tokenizer` did."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..arguments import FilePath, checked
from ..disk import writing
from ..display import printable
from ..errors import InvalidArgumentError
from ..retokenize import Coefficients, Recipe, TokenTexts, coefficients_file

_SHOWN = 5


@dataclass
class ReplacedSide:
    """One vocabulary of the model."""

    old: TokenTexts
    new: TokenTexts
    recipe: Recipe
    """With every row made; `input` and `output` are the same coefficients unless a method makes two."""
    steps: dict[str, int]
    """How many new tokens each step of the chain made, by name: `copied`, `overlap`, `method`, `pieces`,
    `mean`, `random`."""

    def explain(self, token: str | int, role: str = "input") -> list[tuple[str, float]]:
        """The old tokens that a new one's row is the sum of, with their weights, the largest first.

        A token is its id, its spelling, or its text. Raises `InvalidArgumentError` for one that is not there.
        """
        made = self.recipe.output if role == "output" else self.recipe.input
        return [(self.old.tokens[i], value) for i, value in made.row(new_token(self.new, token))]


def new_token(new: TokenTexts, token: str | int) -> int:
    """The id of a token: itself, its spelling, or its text with or without a blank before it."""
    if isinstance(token, int):
        if not 0 <= token < len(new):
            raise InvalidArgumentError(f"{token} is no id of the new tokenizer (0 to {len(new) - 1})")
        return token
    if token in new.ids:
        return new.ids[token]
    texts = {text: i for i, text in reversed(list(enumerate(new.texts))) if text is not None}
    for text in (token, f" {token}"):
        if text in texts:
            return texts[text]
    pieces = ", ".join(repr(new.tokens[i]) for i in new.split([token])[0][:8])
    raise InvalidArgumentError(f"{token!r} is not one token of the new tokenizer but {pieces or 'nothing'}")


@dataclass
class ReplacementReport:
    """What `replace_tokenizer` did; `str(report)` is for reading, `to_dict()` for JSON."""

    init: str
    why: str
    """Why this method, where `init="auto"` picked it; else empty."""
    seed: int
    options: dict[str, Any]
    old_num_embeddings: list[int]
    """Rows before, one number a vocabulary."""
    new_num_embeddings: list[int]
    sides: dict[str, ReplacedSide]
    """`shared`, or `source` and `target`."""
    moved_ids: dict[str, Any]
    """Fields of configurations that changed: name -> [before, after]."""
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    """What the method and the refinement report."""
    refine: list[dict[str, Any]] = field(default_factory=list)
    """Name and options of each refinement."""
    row_norm: bool = False
    """Whether sums of several rows got the norm that those have on weighted average."""

    @property
    def steps(self) -> dict[str, int]:
        """New tokens by the step of the chain that made them, all vocabularies together."""
        total: dict[str, int] = {}
        for side in self.sides.values():
            for step, count in side.steps.items():
                total[step] = total.get(step, 0) + count
        return total

    @property
    def coefficients(self) -> Coefficients:
        """The coefficients of the input tables; of the source where there are two vocabularies."""
        return next(iter(self.sides.values())).recipe.input

    @checked
    def explain(self, token: str | int, *, side: str | None = None) -> list[tuple[str, float]]:
        """The old tokens that the row of a new one is made of, with their weights, the largest first.

        `side` is one of `sides`, the first where it is None. Raises `InvalidArgumentError` for another, and
        for a token that is not there.
        """
        if side is not None and side not in self.sides:
            raise InvalidArgumentError(f"side={side!r}: expected {' or '.join(map(repr, self.sides))}")
        return self.sides[side or next(iter(self.sides))].explain(token)

    @checked
    def save(self, folder: FilePath) -> list[Path]:
        """Writes the coefficients into a folder, which is made, for `hf-embinit explain`; gives the files.

        Raises `FileWriteError` where they cannot be written.
        """
        with writing(f"folder={folder}"):
            Path(folder).mkdir(parents=True, exist_ok=True)
        files = []
        for name, side in self.sides.items():
            parts = {"": side.recipe.input}
            if side.recipe.output is not side.recipe.input:
                parts["output"] = side.recipe.output
            for part, made in parts.items():
                path = Path(folder) / coefficients_file(name, part)
                later = {"row_norm": "true"} if self.row_norm else {}
                if self.refine:
                    later["refine"] = "+".join(one["init"] for one in self.refine)
                made.save(
                    path, {"init": self.init, **later, **side.old.to_metadata("old"), "new": side.new.digest}
                )
                files.append(path)
        return files

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-serialisable values, without the coefficients."""
        return {
            "init": self.init,
            "why": self.why,
            "seed": self.seed,
            "options": self.options,
            "row_norm": self.row_norm,
            "refine": self.refine,
            "rows": [self.old_num_embeddings, self.new_num_embeddings],
            "steps": {name: side.steps for name, side in self.sides.items()},
            "moved_ids": self.moved_ids,
            "notes": self.notes,
            "details": self.details,
        }

    def __str__(self) -> str:
        before, after = ("+".join(map(str, n)) for n in (self.old_num_embeddings, self.new_num_embeddings))
        how = ", then ".join([self.init, *(one["init"] for one in self.refine)])
        lines = [f"another tokenizer by {how} (seed {self.seed}), rows {before} -> {after}"]
        if self.why:
            lines.append(f"  picked since {self.why}")
        for name, side in self.sides.items():
            prefix = "" if name == "shared" else f"{name}: "
            steps = ", ".join(f"{count} {step}" for step, count in side.steps.items())
            lines.append(f"  {prefix}{steps}")
        for name, (old, new) in list(self.moved_ids.items())[:_SHOWN]:
            lines.append(f"  {name}: {old} -> {new}")
        lines += [f"  {printable(note)}" for note in self.notes]
        return "\n".join(lines)
