"""hf_embinit: where token embeddings come from.

Importing it imports nothing else and patches nothing: everything is imported on first use, the vanilla
transformers when an Auto class of transformers is asked for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import lazy_names, register_on_demand

__version__ = "0.1.0"

register_on_demand()

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "cards": ("publish", "publish_all", "publish_embeddings"),
        "errors": ("EmbinitError",),
        "initialization": ("InitReport", "initialize"),
        "manifest": ("read_manifest",),
        "measures": ("knn_match_similarity",),
        "models": (),
        "patching": ("patch", "patched", "unpatch"),
        "report": ("compare",),
        "retokenize": ("get_initializer", "list_initializers", "register_initializer"),
        "surgery": (),
        "tables": ("open_checkpoint", "save_checkpoint"),
        "vectors": ("PretrainedVectors",),
        "vocabulary": (
            "ExpansionReport",
            "ReplacementReport",
            "VocabularyCallback",
            "carry_vocabulary",
            "doctor",
            "expand_vocabulary",
            "load_adapter",
            "merge_adapter",
            "parameter_groups",
            "peft_config_for_new_tokens",
            "propose_tokens",
            "prune_vocabulary",
            "repair",
            "replace_tokenizer",
            "save_vocabulary",
            "train_new_rows_only",
        ),
    },
)
__all__ += ["__version__"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from . import models as models
    from . import surgery as surgery
    from .cards import publish as publish
    from .cards import publish_all as publish_all
    from .cards import publish_embeddings as publish_embeddings
    from .errors import EmbinitError as EmbinitError
    from .initialization import InitReport as InitReport
    from .initialization import initialize as initialize
    from .manifest import read_manifest as read_manifest
    from .measures import knn_match_similarity as knn_match_similarity
    from .patching import patch as patch
    from .patching import patched as patched
    from .patching import unpatch as unpatch
    from .report import compare as compare
    from .retokenize import get_initializer as get_initializer
    from .retokenize import list_initializers as list_initializers
    from .retokenize import register_initializer as register_initializer
    from .tables import open_checkpoint as open_checkpoint
    from .tables import save_checkpoint as save_checkpoint
    from .vectors import PretrainedVectors as PretrainedVectors
    from .vocabulary import ExpansionReport as ExpansionReport
    from .vocabulary import ReplacementReport as ReplacementReport
    from .vocabulary import VocabularyCallback as VocabularyCallback
    from .vocabulary import carry_vocabulary as carry_vocabulary
    from .vocabulary import doctor as doctor
    from .vocabulary import expand_vocabulary as expand_vocabulary
    from .vocabulary import load_adapter as load_adapter
    from .vocabulary import merge_adapter as merge_adapter
    from .vocabulary import parameter_groups as parameter_groups
    from .vocabulary import peft_config_for_new_tokens as peft_config_for_new_tokens
    from .vocabulary import propose_tokens as propose_tokens
    from .vocabulary import prune_vocabulary as prune_vocabulary
    from .vocabulary import repair as repair
    from .vocabulary import replace_tokenizer as replace_tokenizer
    from .vocabulary import save_vocabulary as save_vocabulary
    from .vocabulary import train_new_rows_only as train_new_rows_only
