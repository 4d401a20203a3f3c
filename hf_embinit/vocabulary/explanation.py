"""What rows of a saved checkpoint are made of, from the coefficients beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import DataNotFoundError, InvalidArgumentError
from ..hub import load_pretrained_tokenizer
from ..retokenize import Coefficients, Step, TokenTexts
from ..tokens import Side
from .replacement_report import coefficients_file, new_token


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


def explain_tokens(
    folder: Path, tokens: Sequence[str | int], *, side: Side | None = None
) -> list[Explanation]:
    """What the rows of `tokens` are made of in a folder that `hf-embinit retokenize` wrote.

    Raises `DataNotFoundError` for a folder without coefficients, `InvalidArgumentError` for a token that its
    tokenizer does not have, and for a tokenizer that has changed since.
    """
    name: Side = "shared" if side is None else side
    if side is None and (folder / coefficients_file("source")).is_file():
        name = "source"
    files = {part: folder / coefficients_file(name, part) for part in ("", "output")}
    if not files[""].is_file():
        raise DataNotFoundError(
            f"{folder} has no {files[''].name}: expected a folder that `hf-embinit retokenize` wrote"
        )
    new = TokenTexts(load_pretrained_tokenizer(str(folder), f"the tokenizer of {folder}"), name)
    found = []
    for part, file in files.items():
        if not file.is_file():
            continue
        made, about = Coefficients.load(file)
        if about.get("new") != new.digest:
            raise InvalidArgumentError(f"the tokenizer in {folder} is not the one that {file.name} is of")
        old = json.loads(about["old_tokens"])
        for token in tokens:
            i = new_token(new, token)
            weights = [OldToken(old[w.id] if w.id < len(old) else "", w.value) for w in made.row(i)]
            step = Step(int(made.step[i])).name.lower()
            scaled = "row_norm" in about and len(weights) > 1
            found.append(Explanation(new.tokens[i], part, step, weights, scaled))
    return found
