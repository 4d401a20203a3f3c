"""Tasks to train on: one module with a `TaskSpec` each, the loading of their data, the embedded corpora.

`corpora/` holds data, not code. Nothing here trains or knows of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

TASK_MODULES = ("classification", "expansion", "language_modeling", "retokenizing", "translation")
"""The modules that each describe a task, and register it."""

__getattr__, __all__ = lazy_names(
    __name__,
    {
        **dict.fromkeys((*TASK_MODULES, "trials"), ()),
        "caption_model": ("caption_language_model",),
        "causal_models": (
            "check_fits",
            "choose_tokenizer",
            "load_causal_lm",
            "own_tokenizer",
        ),
        "classification_data": ("load_classification", "training_texts"),
        "classifiers": (
            "check_length",
            "load_pretrained_classifier",
        ),
        "data": (
            "DATA_VARIABLE",
            "SPLIT_FILES",
            "find_folder",
            "find_model",
            "texts_digest",
        ),
        "spec": (
            "DataSpec",
            "Score",
            "TaskSpec",
            "check_vectors",
            "get_task",
            "given_vectors",
            "list_tasks",
            "register_task",
            "task_of",
        ),
        "task_data": (
            "Outcome",
            "TaskData",
        ),
        "texts": ("load_texts",),
        "tokenizers": ("find_tokenizer",),
    },
)

if TYPE_CHECKING:
    from . import classification as classification
    from . import expansion as expansion
    from . import language_modeling as language_modeling
    from . import retokenizing as retokenizing
    from . import translation as translation
    from . import trials as trials
    from .caption_model import caption_language_model as caption_language_model
    from .causal_models import check_fits as check_fits
    from .causal_models import choose_tokenizer as choose_tokenizer
    from .causal_models import load_causal_lm as load_causal_lm
    from .causal_models import own_tokenizer as own_tokenizer
    from .classification_data import load_classification as load_classification
    from .classification_data import training_texts as training_texts
    from .classifiers import check_length as check_length
    from .classifiers import load_pretrained_classifier as load_pretrained_classifier
    from .data import DATA_VARIABLE as DATA_VARIABLE
    from .data import SPLIT_FILES as SPLIT_FILES
    from .data import find_folder as find_folder
    from .data import find_model as find_model
    from .data import texts_digest as texts_digest
    from .spec import DataSpec as DataSpec
    from .spec import Score as Score
    from .spec import TaskSpec as TaskSpec
    from .spec import check_vectors as check_vectors
    from .spec import get_task as get_task
    from .spec import given_vectors as given_vectors
    from .spec import list_tasks as list_tasks
    from .spec import register_task as register_task
    from .spec import task_of as task_of
    from .task_data import Outcome as Outcome
    from .task_data import TaskData as TaskData
    from .texts import load_texts as load_texts
    from .tokenizers import find_tokenizer as find_tokenizer
