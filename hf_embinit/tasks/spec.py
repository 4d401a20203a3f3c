"""`TaskSpec` describes one task completely; `DataSpec` describes one of its data sets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import VectorFileError
from ..initializers import get_initializer
from ..tokens import token_family, vocabulary, word_candidates
from ..vectors import PretrainedVectors, load_vectors
from . import corpus_vectors

_NAMED_KINDS: dict[str | None, tuple[str, ...]] = {"WordPiece": ("bert", "mbert"), "Unigram": ("t5", "mt5")}
"""Class of a tokenizer's model -> the names in `DataSpec.presets` that it can have."""
_MODULES = ("translation", "classification", "language_modeling")


@dataclass(frozen=True)
class DataSpec:
    """A data set with a name: its place, its columns and labels, and the settings used on it."""

    name: str
    hub_id: str | None = None
    """Its Hub id; None for an embedded corpus."""
    hub_config: str | None = None
    hub_revision: str | None = None
    columns: tuple[str, ...] = ()
    """Columns of the texts."""
    labels: tuple[str, ...] = ()
    """Names of the labels 0, 1, ...; empty for a score to be predicted, and for tasks without labels."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    """Settings of a new model by tokenizer (`words`, `bert`, `mt5`); `*` is for any other."""
    text: str | None = None
    """For an embedded corpus the name of its text for vectors, which may contain `{language}`."""

    def preset(self, tokenizer: str) -> dict[str, Any]:
        """The settings for a tokenizer, by its name or else by its model.

        A folder or Hub id with BERT's tokenizer gets the settings of `bert`.
        """
        names = [tokenizer, *_NAMED_KINDS.get(_tokenizer_kind(tokenizer), ())] if self.presets else []
        return dict(next((self.presets[n] for n in names if n in self.presets), self.presets.get("*", {})))


@dataclass(frozen=True)
class TaskSpec:
    """One task: its data sets, what it measures, and how its models are loaded and described."""

    name: str
    """Its name in records."""
    recipe: str
    """The script in `recipes/` that trains it."""
    datasets: Mapping[str, DataSpec] = field(hash=False)
    metrics: Mapping[str, str] = field(hash=False)
    """Each metric and its name on a card, the most important first; losses come last."""
    auto_class: str
    """The Auto class of transformers that loads its models."""
    pipeline_tag: str
    """The Hub's name of the task."""
    also: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Other numbers of a record and their names on a card."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings of the architecture and the optimizer for every new model."""

    def default_vectors(
        self, dataset: str, init: str, tokenizer: Any, language: str, *, dim: int
    ) -> PretrainedVectors | None:
        """What `init` reads when no vectors are given: GloVe `[V, dim]` of an embedded corpus, for words.

        None when the initialiser reads no vectors or has its own (`bert` means BERT's, whatever the data),
        when the data are not embedded, and for sub-words.
        """
        initializer = get_initializer(init)
        named = initializer.defaults.get("vectors", "glove")
        spec = self.datasets.get(dataset)
        if "vectors" not in initializer.needs or named != "glove" or spec is None or spec.text is None:
            return None
        if token_family(tokenizer) != "words":
            return None
        return corpus_vectors.corpus_vectors(spec.text.format(language=language), dim)


def given_vectors(
    given: str | None, tokenizer: Any, *, target: bool = False, allow_pickle: bool = False
) -> PretrainedVectors | None:
    """The vectors that `--vectors` names, for the tokens of the source or the target vocabulary.

    Raises `VectorFileError` for NaN or infinity in the row of one of these tokens, which would otherwise be
    left out and drawn at random.
    """
    if given is None:
        return None
    family = token_family(tokenizer)
    tokens = word_candidates(vocabulary(tokenizer, "target" if target else "source"), family)
    vectors = load_vectors(given, tokens=tokens, allow_pickle=allow_pickle)
    bad = vectors.report.get("non_finite")
    if bad:
        raise VectorFileError(
            f"{'--target_vectors' if target else '--vectors'} {given!r} has NaN or infinity in the rows of "
            f"{len(bad)} tokens of the text, such as {bad[0]!r}; repair or remove these rows"
        )
    return vectors


def _tokenizer_kind(name: str) -> str | None:
    """`WordPiece`, `Unigram` or `BPE`: the model in the `tokenizer.json` of a folder or of the Hub's cache.

    None where there is none; loading the tokenizer will tell.
    """
    from huggingface_hub import try_to_load_from_cache

    path: Any = Path(name).expanduser() / "tokenizer.json"
    if not path.is_file():
        looks_like_id = name.count("/") == 1 and not name.startswith((".", "/", "~"))
        path = try_to_load_from_cache(name, "tokenizer.json") if looks_like_id else None
    if not isinstance(path, (str, Path)):
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))["model"]["type"]
    except (OSError, ValueError, KeyError, TypeError):  # damaged: loading it will say how
        return None


def task_of(name: str, metrics: Mapping[str, Any] | None = None) -> TaskSpec | None:
    """The task with that name in records, None for another kind of record.

    `metrics` distinguish the expansion of a vocabulary from other language modeling.
    """
    if name not in _MODULES:
        return None
    module = "expansion" if metrics and metrics.get("new_tokens") else name
    return import_module(f".{module}", __package__).TASK
