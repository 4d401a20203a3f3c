"""Rows for a new vocabulary from those of an old one: methods from a context to sparse coefficients.

Nothing here changes a model: `hf_embinit.vocabulary` does (`replace_tokenizer`).
"""

from __future__ import annotations

from . import from_donor, from_encoder, from_parallel, from_vectors  # they register their methods
from .alignment import AlignmentCounts, count_alignments
from .coefficients import Coefficients, Step, Weight
from .context import Groups, Recipe, RetokenizeContext
from .overlap import Match, overlap_map, role_map
from .parallel import Pair, read_parallel
from .texts import ROLES, TokenTexts

__all__ = [
    "ROLES",
    "AlignmentCounts",
    "Coefficients",
    "Groups",
    "Match",
    "Pair",
    "Recipe",
    "RetokenizeContext",
    "Step",
    "TokenTexts",
    "Weight",
    "count_alignments",
    "from_donor",
    "from_encoder",
    "from_parallel",
    "from_vectors",
    "overlap_map",
    "read_parallel",
    "role_map",
]
