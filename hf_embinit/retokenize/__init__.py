"""Rows for a new vocabulary from those of an old one: methods from a context to sparse coefficients.

Nothing here changes a model: `hf_embinit.vocabulary` does (`replace_tokenizer`).
"""

from __future__ import annotations

from .coefficients import Coefficients, Step, Weight
from .context import Groups, Recipe, RetokenizeContext
from .overlap import Match, overlap_map, role_map
from .texts import ROLES, TokenTexts

__all__ = [
    "ROLES",
    "Coefficients",
    "Groups",
    "Match",
    "Recipe",
    "RetokenizeContext",
    "Step",
    "TokenTexts",
    "Weight",
    "overlap_map",
    "role_map",
]
