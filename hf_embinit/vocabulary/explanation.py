"""What rows of a saved checkpoint are made of, from the coefficients beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..arguments import FilePath
from ..errors import DataNotFoundError, InvalidArgumentError
from ..hub import checkpoint_file, load_pretrained_tokenizer
from ..retokenize import Coefficients, Step, TokenTexts, coefficients_file
from ..tokens import Side
from .replacement_report import new_token

_OF_ALL_OUTPUT_ROWS = "first_piece_shares"
"""The refinement that changes output rows of tokens which have their old input rows, too."""


class OldToken(NamedTuple):
    """One old token in a sum."""

    token: str
    value: float
    """Its weight."""


@dataclass(frozen=True)
class Explanation:
    """What one new row is made of."""

    token: str
    part: str
    """`output` for what untied output tables have of their own; empty for all others."""
    step: str
    weights: list[OldToken]
    """The largest first; none for means and draws."""
    scaled: bool = False
    """Whether the sum then got the norm that those rows have on weighted average (`row_norm`)."""
    refined: str = ""
    """The refinements that then changed the row, joined by `+` (`refine`); of a row that stays as it was in
    the input tables, those that changed the output table's."""


def explain_tokens(
    model: FilePath, tokens: Sequence[str | int], *, side: Side | None = None
) -> list[Explanation]:
    """What the rows of `tokens` are made of in a folder that `hf-embinit retokenize` wrote, or in the Hub
    repository that it was published as.

    Raises `DataNotFoundError` for a model without coefficients, `InvalidArgumentError` for a token that its
    tokenizer does not have, and for a tokenizer that has changed since.
    """

    def files_of(name: Side) -> dict[str, Path | None]:
        return {part: checkpoint_file(model, coefficients_file(name, part)) for part in ("", "output")}

    name: Side = "shared" if side is None else side
    files = files_of(name)
    if side is None and files[""] is None:
        name = "source"
        files = files_of(name)
    if files[""] is None:
        if side not in (None, "shared") and files_of("shared")[""] is not None:
            raise InvalidArgumentError(f"side={side!r}: {model} has one vocabulary: leave it out")
        raise DataNotFoundError(
            f"{model} has no {coefficients_file()}: expected a folder that `hf-embinit retokenize` wrote, or "
            f"the Hub id that it was published as"
        )
    new = TokenTexts(load_pretrained_tokenizer(str(model), f"the tokenizer of {model}"), name)
    found = []
    for part, file in files.items():
        if file is None:
            continue
        made, about = Coefficients.load(file)
        if about.get("new") != new.digest:
            raise InvalidArgumentError(f"the tokenizer in {model} is not the one that {file.name} is of")
        old = _old_tokens(file, about)
        for token in tokens:
            i = new_token(new, token)
            weights = [OldToken(old[w.id] if w.id < len(old) else "", w.value) for w in made.row(i)]
            step = Step(int(made.step[i])).name.lower()
            scaled = "row_norm" in about and len(weights) > 1
            names = about.get("refine", "").split("+")
            if made.step[i] in (Step.COPIED, Step.OVERLAP):
                names = [name for name in names if name == _OF_ALL_OUTPUT_ROWS]
            found.append(Explanation(new.tokens[i], part, step, weights, scaled, "+".join(names)))
    return found


def _old_tokens(file: Path, about: Mapping[str, str]) -> list[str]:
    """The texts of the tokens that the coefficients in `file` are of; its last rows may be of none."""
    try:
        old = json.loads(about.get("old_tokens") or "")
    except ValueError:
        old = None
    if not isinstance(old, list) or not old or not all(isinstance(text, str) for text in old):
        raise DataNotFoundError(
            f"{file} does not say which tokens its rows are made of: it is damaged, make it again by "
            "`hf-embinit retokenize`"
        )
    return old
