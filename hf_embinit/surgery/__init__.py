"""Surgery: changes to the parts of a trained model, by name: `surgery.apply(model, "reversed")`.

Layers are reordered or removed, weights re-drawn, permuted or rescaled, embeddings replaced (Zhang 2021).
Changes to the vocabulary are made in `hf_embinit.vocabulary`, initialisers in `hf_embinit.initializers`.
"""

from __future__ import annotations

from . import embeddings, layers, weights  # noqa: F401  (fills the registry)
from .composition import apply, changes_tables_alone, check
from .registry import Surgery
from .registry import list_surgeries as list

__all__ = ["Surgery", "apply", "changes_tables_alone", "check", "list"]
