"""hf_embinit: where token embeddings come from.

Importing it registers the vanilla transformers with the Auto classes and patches nothing. Everything else is
imported on first use.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

_IS_COMMAND = Path(sys.argv[0]).stem == "hf-embinit" or sys.orig_argv[1:3] == ["-m", "hf_embinit"]
if TYPE_CHECKING or not _IS_COMMAND:  # `hf-embinit --help` does not wait for transformers
    from . import models as models  # registers the vanilla transformers with the Auto classes

__version__ = "0.1.0"

_EXPORTS = {
    "errors": ("EmbinitError",),
    "initialization": ("InitReport", "initialize"),
    "manifest": ("read_manifest",),
    "measures": ("knn_match_similarity",),
    "models": (),
    "registry": ("register_initializer",),
    "runs.comparison": ("compare",),
    "runs.embeddings_publishing": ("publish_embeddings",),
    "runs.publishing": ("publish",),
    "initializers": ("get_initializer", "list_initializers"),  # from here, so that the registry is full
    "new_row_training": ("peft_config_for_new_tokens", "train_new_rows_only"),
    "patching": ("patch", "patched", "unpatch"),
    "surgery": (),
    "tokens": (),
    "vectors": ("PretrainedVectors",),
    "vocabulary": ("ExpansionReport", "expand_vocabulary", "propose_tokens", "prune_vocabulary"),
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in (module, *names) if "." not in name}
__all__ = [*(name for names in _EXPORTS.values() for name in names), "__version__", "models"]

if TYPE_CHECKING:
    from .errors import EmbinitError as EmbinitError
    from .initialization import InitReport as InitReport
    from .initialization import initialize as initialize
    from .initializers import get_initializer as get_initializer
    from .initializers import list_initializers as list_initializers
    from .manifest import read_manifest as read_manifest
    from .measures import knn_match_similarity as knn_match_similarity
    from .new_row_training import peft_config_for_new_tokens as peft_config_for_new_tokens
    from .new_row_training import train_new_rows_only as train_new_rows_only
    from .patching import patch as patch
    from .patching import patched as patched
    from .patching import unpatch as unpatch
    from .registry import register_initializer as register_initializer
    from .runs.comparison import compare as compare
    from .runs.embeddings_publishing import publish_embeddings as publish_embeddings
    from .runs.publishing import publish as publish
    from .vectors import PretrainedVectors as PretrainedVectors
    from .vocabulary import ExpansionReport as ExpansionReport
    from .vocabulary import expand_vocabulary as expand_vocabulary
    from .vocabulary import propose_tokens as propose_tokens
    from .vocabulary import prune_vocabulary as prune_vocabulary


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hf_embinit' has no attribute {name!r}")
    module = importlib.import_module(f".{_HOME[name]}", __name__)
    value = module if name == _HOME[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
