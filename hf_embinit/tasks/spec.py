"""`TaskSpec` describes one task completely; `DataSpec` describes one of its data sets.

    TASK = register_task(TaskSpec("translation", recipe="translate.py", ...))

A module of this room registers the task that it describes, and is named in the room's `__init__`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import DataNotFoundError, VectorFileError
from ..initializers import Initializer, get_initializer
from ..registry import Registry
from ..tokens import read_vocabulary, token_family, word_candidates
from ..vectors import PretrainedVectors, check_source, load_vectors
from . import corpus_vectors
from .data import is_hub_id

_NAMED_KINDS: dict[str | None, tuple[str, ...]] = {"WordPiece": ("bert", "mbert"), "Unigram": ("t5", "mt5")}
"""Class of a tokenizer's model -> the names in `DataSpec.presets` that it can have."""


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

    def gives_vectors(self, init: Initializer) -> bool:
        """Whether `init`, which names no others, reads GloVe of this data set's text: an embedded corpus."""
        named = init.defaults.get("vectors", "glove")
        return self.text is not None and "vectors" in init.needs and named == "glove"


@dataclass(frozen=True)
class Score:
    """A number that records of a task hold, and what it is called."""

    title: str
    """On a card and in a figure."""
    short: str = ""
    """In a table; the title unless given."""
    digits: int = 2
    """After the point, in a table."""
    lower_is_better: bool = False
    hub_name: str = ""
    """The Hub's name of the metric; the metric's own unless given."""


LOSS = Score("loss (nats)", "loss", lower_is_better=True)


@dataclass(frozen=True)
class TaskSpec:
    """One task: its data sets, what it measures, and how its models are loaded and described."""

    name: str
    recipe: str
    """The script in `recipes/` that trains it."""
    datasets: Mapping[str, DataSpec] = field(hash=False)
    metrics: Mapping[str, Score] = field(hash=False)
    """What is measured on each split, the most important first; losses come last."""
    columns: tuple[str, ...]
    """What a table of runs shows, in this order: `<split>_<metric>`, or a name of `also`."""
    drawn: tuple[str, ...]
    """Metrics of which the learning curve shows the first that was measured."""
    auto_class: str
    """The Auto class of transformers that loads its models."""
    pipeline_tag: str
    """The Hub's name of the task."""
    also: Mapping[str, Score] = field(default_factory=dict, hash=False)
    """Other numbers of a record."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings of the architecture and the optimizer for every new model."""
    models: tuple[str, ...] = ("vanilla",)
    """Names that `--model` has for what is built here."""
    preset: Callable[[str, str, str], Mapping[str, Any]] | None = field(default=None, hash=False)
    """`preset(dataset, model, tokenizer)`: the settings of a paper's runs that a run is compared with; None
    where no paper has any."""
    takes_models_apart: bool = False
    """Whether `init` in its records is what was done to a trained model, `none` for nothing."""
    special_case_of: str | None = None
    """The task that its records name, where that is another."""
    marker: str = ""
    """Of a special case: the metric that its records alone have."""

    @property
    def record_name(self) -> str:
        """Its name in records."""
        return self.special_case_of or self.name

    def column(self, name: str) -> tuple[str, Score]:
        """The header of one of `columns`, and what stands there."""
        if name in self.also:
            return self.also[name].short or self.also[name].title, self.also[name]
        split, _, metric = name.partition("_")
        score = self.metrics[metric]
        return f"{split} {score.short or score.title}", score

    def default_vectors(
        self, dataset: str, init: str, tokenizer: Any, language: str, *, dim: int
    ) -> PretrainedVectors | None:
        """What `init` reads when no vectors are given: GloVe `[V, dim]` of an embedded corpus, for words.

        None when the initialiser reads no vectors or has its own (`bert` means BERT's, whatever the data),
        when the data are not embedded, and for sub-words.
        """
        data = self.datasets.get(dataset)
        if data is None or data.text is None or not data.gives_vectors(get_initializer(init)):
            return None
        if token_family(tokenizer) != "words":
            return None
        return corpus_vectors.corpus_vectors(data.text.format(language=language), dim)


def given_vectors(
    given: str, tokenizer: Any, *, target: bool = False, allow_pickle: bool = False
) -> PretrainedVectors:
    """The vectors that `--vectors` names, for the tokens of the source or the target vocabulary.

    Raises `VectorFileError` for NaN or infinity in the row of one of these tokens, which would otherwise be
    left out and drawn at random.
    """
    known = read_vocabulary(tokenizer, "target" if target else "source")
    tokens = word_candidates(known.tokens, token_family(tokenizer), plain=known.added)
    flag = "--target_vectors" if target else "--vectors"
    with _called(flag, given):
        vectors = load_vectors(given, tokens=tokens, allow_pickle=allow_pickle)
    bad = vectors.report.get("non_finite")
    if bad:
        raise VectorFileError(
            f"{flag} {given!r} has NaN or infinity in the rows of {len(bad)} tokens of the text, such as "
            f"{bad[0]!r}; repair or remove these rows"
        )
    return vectors


def check_vectors(flag: str, given: str) -> None:
    """Raises the `DataNotFoundError` of vectors that are not there, which needs no data and no model."""
    with _called(flag, given):
        check_source(given)


@contextmanager
def _called(flag: str, given: str) -> Iterator[None]:
    """Has an error name the flag in place of the argument."""
    try:
        yield
    except DataNotFoundError as error:
        raise DataNotFoundError(str(error).replace(f"vectors={given!r}", f"{flag} {given!r}", 1)) from error


def _tokenizer_kind(name: str) -> str | None:
    """`WordPiece`, `Unigram` or `BPE`: the model in the `tokenizer.json` of a folder or of the Hub's cache.

    None where there is none; loading the tokenizer will tell.
    """
    from huggingface_hub import try_to_load_from_cache

    path: Any = Path(name).expanduser() / "tokenizer.json"
    if not path.is_file():
        path = try_to_load_from_cache(name, "tokenizer.json") if is_hub_id(name) else None
    if not isinstance(path, (str, Path)):
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))["model"]["type"]
    except (OSError, ValueError, KeyError, TypeError):  # damaged: loading it will say how
        return None


TASKS: Registry[TaskSpec] = Registry("task")


def register_task(task: TaskSpec) -> TaskSpec:
    """Puts a task into the registry under its name. A name that is taken raises `DuplicateNameError`."""
    TASKS.add(task.name, task)
    return task


def get_task(name: str) -> TaskSpec:
    """The task registered under `name`. Unknown names raise `UnknownNameError` with the nearest ones."""
    return _tasks().get(name)


def list_tasks() -> list[TaskSpec]:
    """All registered tasks, sorted by name."""
    return _tasks().list()


@cache
def _tasks() -> Registry[TaskSpec]:
    """The registry, once every module of a task has been imported."""
    room = import_module(__package__)
    for module in room.TASK_MODULES:
        import_module(f"{__package__}.{module}")
    return TASKS


def task_of(name: str, metrics: Mapping[str, Any]) -> TaskSpec | None:
    """The task of a record that names `name` and has these `metrics`; None for a task that is not registered.

    The metrics distinguish the expansion of a vocabulary from other language modeling.
    """
    tasks = [task for task in list_tasks() if task.record_name == name]
    special = [task for task in tasks if metrics.get(task.marker)]
    return next(iter([*special, *(task for task in tasks if not task.special_case_of)]), None)
