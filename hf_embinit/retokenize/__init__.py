"""Rows for a new vocabulary from those of an old one: methods from a context to sparse coefficients.

Nothing here changes a model: `hf_embinit.vocabulary` does (`replace_tokenizer`). Importing this room puts the
methods into the registry of initialisers, which it therefore gives on, complete.
"""

from __future__ import annotations

from ..initializers import get_initializer, list_initializers, register_initializer
from . import (  # they register their methods
    distillation,
    from_donor,
    from_encoder,
    from_parallel,
    from_vectors,
    methods,
    shares,
    spans,
    tokens2words,
)
from .alignment import AlignmentCounts, count_alignments
from .chain import piece_means
from .coefficients import COEFFICIENTS, Coefficients, Step, Weight, coefficients_file
from .context import Recipe, RetokenizeContext
from .overlap import SIBLINGS, Match, overlap_map, role_map
from .parallel import Pair, read_parallel
from .pieces import split_tokens
from .refinement import Body, RefineContext
from .rows_of_tables import bias_of_table, rows_of_table
from .solving import solve
from .texts import TokenTexts

__all__ = [
    "COEFFICIENTS",
    "SIBLINGS",
    "AlignmentCounts",
    "Body",
    "Coefficients",
    "Match",
    "Pair",
    "Recipe",
    "RefineContext",
    "RetokenizeContext",
    "Step",
    "TokenTexts",
    "Weight",
    "bias_of_table",
    "coefficients_file",
    "count_alignments",
    "distillation",
    "from_donor",
    "from_encoder",
    "from_parallel",
    "from_vectors",
    "get_initializer",
    "list_initializers",
    "methods",
    "overlap_map",
    "piece_means",
    "read_parallel",
    "register_initializer",
    "role_map",
    "rows_of_table",
    "shares",
    "solve",
    "spans",
    "split_tokens",
    "tokens2words",
]
