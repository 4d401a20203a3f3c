"""Tasks to train on: one module with a `TaskSpec` each, the loading of their data, the embedded corpora.

`corpora/` holds data, not code. Nothing here trains or knows of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "caption_model": ("caption_language_model",),
        "classification": (),
        "classification_data": ("load_classification",),
        "classifiers": (
            "check_length",
            "load_pretrained_classifier",
            "surgery_options",
        ),
        "data": (
            "DATA_VARIABLE",
            "SPLIT_FILES",
            "data_digests",
            "find_folder",
            "texts_digest",
        ),
        "expansion": (),
        "language_modeling": (),
        "spec": (
            "DataSpec",
            "TaskSpec",
            "given_vectors",
            "task_of",
        ),
        "task_data": (
            "Outcome",
            "TaskData",
        ),
        "texts": ("load_texts",),
        "tokenizers": ("find_tokenizer",),
        "translation": (),
    },
)

if TYPE_CHECKING:
    from . import classification as classification
    from . import expansion as expansion
    from . import language_modeling as language_modeling
    from . import translation as translation
    from .caption_model import caption_language_model as caption_language_model
    from .classification_data import load_classification as load_classification
    from .classifiers import check_length as check_length
    from .classifiers import load_pretrained_classifier as load_pretrained_classifier
    from .classifiers import surgery_options as surgery_options
    from .data import DATA_VARIABLE as DATA_VARIABLE
    from .data import SPLIT_FILES as SPLIT_FILES
    from .data import data_digests as data_digests
    from .data import find_folder as find_folder
    from .data import texts_digest as texts_digest
    from .spec import DataSpec as DataSpec
    from .spec import TaskSpec as TaskSpec
    from .spec import given_vectors as given_vectors
    from .spec import task_of as task_of
    from .task_data import Outcome as Outcome
    from .task_data import TaskData as TaskData
    from .texts import load_texts as load_texts
    from .tokenizers import find_tokenizer as find_tokenizer
