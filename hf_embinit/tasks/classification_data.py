"""Loads the texts and labels of a classification task, and checks them before any training."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataNotFoundError, InvalidArgumentError, UnknownNameError
from .classification import DATASETS, PAIR_COLUMNS, SENTENCE_COLUMNS, ClassificationTask
from .data import SPLIT_FILES, find_folder, first_samples, load_file, load_folder, load_from_hub

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
_FILES = {
    "train": SPLIT_FILES["train"],
    "validation": (*SPLIT_FILES["validation"], "validation_matched", "dev_matched"),
    "validation_mismatched": ("validation_mismatched", "dev_mismatched"),
    "test": (*SPLIT_FILES["test"], "test_matched"),
    "test_mismatched": ("test_mismatched",),
}
"""File stems of each split; MNLI has matched and mismatched ones."""
_HIDDEN = -1
"""GLUE's label of a text whose label is not published."""


def load_classification(
    task: str,
    *,
    data_dir: str | None = None,
    files: Mapping[str, str | None] | None = None,
    limits: Mapping[str, int | None] | None = None,
    text_columns: list[str] | None = None,
) -> tuple[ClassificationTask, DatasetDict]:
    """The task, and its `train`, `validation` and (where labels are known) `test` texts.

    Each split has the columns `text`, `text_pair` (tasks on pairs), `label` (a number), and `mismatched`
    where texts of other genres follow the matched ones (MNLI). `task` is a name of `DATASETS` or a folder
    of data files (also one in `HF_EMBINIT_DATA`); a GLUE task is looked for in `data_dir` (itself, `<task>`
    or `glue/<task>` in it), then in `HF_EMBINIT_DATA`, then on the Hub. `files` overrides single splits,
    `limits` cuts them to their first examples. `text_columns`, the one or two columns of texts, are needed
    for a folder without usual names.

    Raises `UnknownNameError` for another name, `DataNotFoundError` when a split is nowhere, and
    `InvalidArgumentError` for texts and labels that cannot be trained or scored on, naming split and row.
    """
    from datasets import DatasetDict

    overrides = {split: path for split, path in (files or {}).items() if path is not None}
    complete = overrides.keys() >= {"train", "validation"}
    spec = DATASETS.get(task)
    if spec is None and not Path(task).is_dir():
        with suppress(DataNotFoundError):
            task = str(find_folder(task, data_dir) or task)
        if not complete and not Path(task).is_dir():
            raise _unknown(task)
    splits, origin = DatasetDict(), ""
    if set(overrides) != set(SPLITS) and (spec is not None or Path(task).is_dir()):
        with suppress(*[DataNotFoundError] if complete else []):  # then a test split is all that is missed
            splits, origin = _load(task, data_dir)
    for split, path in overrides.items():
        splits[split] = load_file(path)
        splits.pop(f"{split}_mismatched", None)
    for split in ("train", "validation"):
        if split not in splits:
            raise DataNotFoundError(
                f"--task {task}: {origin} has no {split} split; "
                f"give --{split}_file, or a --data_dir that has it"
            )
    if spec is None or text_columns:
        columns = _text_columns(splits["train"], text_columns)
        spec = replace(spec or ClassificationTask(task), columns=columns)
    if task not in DATASETS:
        spec = replace(spec, labels=_label_names(splits["train"], task))
    checked = {name: _checked(split, name, spec) for name, split in splits.items()}
    glue = spec.hub_id is not None
    for name in [name for name in checked if name.startswith("test")]:
        if all(label == _HIDDEN for label in checked[name]["label"][:]):
            if not glue or name in overrides:
                raise InvalidArgumentError(
                    f"the test split of --task {task} has no labels (all are {_HIDDEN}): there is nothing to "
                    f"score; leave it out, or give a --test_file with labels"
                )
            logger.info("the labels of %s's %s split are not published: it is not used", task, name)
            del checked[name]
    for name, split in checked.items():
        _check_labels(split, name, spec)
    return spec, first_samples(_joined(checked), limits or {})


def _unknown(task: str) -> Exception:
    if "/" in task or task.startswith((".", "~")):
        return DataNotFoundError(
            f"--task {task!r} is no folder here, and none of: {', '.join(sorted(DATASETS))}"
        )
    return UnknownNameError("task", task, DATASETS)


def training_texts(data: Mapping[str, Dataset]) -> list[str]:
    """Every text of the training split, both of each pair."""
    train = data["train"]
    return [text for name in ("text", "text_pair") if name in train.features for text in train[name]]


def _load(task: str, data_dir: str | None) -> tuple[DatasetDict, str]:
    from datasets import Dataset, DatasetDict

    if task in ("sentiment", "entailment"):
        from .embedded import corpus_splits, refuse_places

        refuse_places("--task", task, data_dir)
        rows = {_split_name(name): Dataset.from_list(split) for name, split in corpus_splits(task).items()}
        return DatasetDict(rows), "the embedded corpus"
    if task not in DATASETS:
        return load_folder(task, _FILES), task
    folder = _glue_folder(task, data_dir)
    if folder is not None:
        return load_folder(folder, _FILES), str(folder)
    hub_id = DATASETS[task].hub_id
    assert hub_id is not None
    try:
        data = load_from_hub(hub_id, task)
    except DataNotFoundError as error:
        raise DataNotFoundError(f"--task {task}: {error}, in `glue/{task}`") from error
    return DatasetDict({_split_name(name): split for name, split in data.items()}), hub_id


def _glue_folder(task: str, data_dir: str | None) -> Path | None:
    """`glue/<task>` or `<task>` in `data_dir`, or that itself; else `glue/<task>` in HF_EMBINIT_DATA."""
    folder = find_folder(f"glue/{task}", data_dir)
    return find_folder(task, data_dir) if data_dir is not None and folder == Path(data_dir) else folder


def _split_name(name: str) -> str:
    return name.removesuffix("_matched")


def _text_columns(train: Dataset, given: list[str] | None) -> tuple[str, ...]:
    columns = train.column_names
    if given:
        missing = [column for column in given if column not in columns]
        problem = ""
        if missing:
            problem = f"{missing[0]!r} is not in the train split"
        elif "label" in given:
            problem = "'label' is what the model predicts, not a text"
        elif len(given) > 2 or len(set(given)) < len(given):
            problem = "give one column or two different ones"
        if problem:
            raise InvalidArgumentError(
                f"--text_columns {' '.join(given)}: {problem}; it has: {', '.join(columns)}"
            )
        return tuple(given)
    for pair in PAIR_COLUMNS:
        if set(pair) <= set(columns):
            return pair
    for single in SENTENCE_COLUMNS:
        if single in columns:
            return (single,)
    raise InvalidArgumentError(
        f"the train split has no column of texts that is known; it has: {', '.join(columns)}. Name one "
        f"or two by --text_columns"
    )


def _label_names(train: Dataset, task: str) -> tuple[str, ...]:
    """Names of the labels of a folder of one's own; none for numbers with fractions (regression)."""
    from datasets import ClassLabel

    if "label" not in train.column_names:
        raise InvalidArgumentError(
            f"the train split of --task {task} has no column 'label'; it has: {', '.join(train.column_names)}"
        )
    if isinstance(train.features["label"], ClassLabel):
        return tuple(train.features["label"].names)
    values = [value for value in train["label"][:] if value is not None]
    if all(isinstance(value, str) for value in values):
        _refuse_words_among_scores(train["label"][:], task)
        names = tuple(sorted(set(values)))
    elif all(isinstance(value, (bool, int)) for value in values):
        names = tuple(str(i) for i in sorted({int(value) for value in values if value >= 0}))
    else:
        whole = all(isinstance(value, float) and value.is_integer() for value in values)
        if whole and None not in train["label"][:]:  # beside one without a label integers are read so
            logger.warning(
                "the labels of --task %s are numbers with a point (%s), so this is regression; write classes "
                "as 0, 1, ... or as words",
                task,
                values[0],
            )
        return ()
    if len(names) < 2:
        raise InvalidArgumentError(
            f"the train split of --task {task} has one label only ({', '.join(names)}): nothing to learn"
        )
    return names


def _refuse_words_among_scores(labels: list[str | None], task: str) -> None:
    """Raises `InvalidArgumentError` where one `NA` among scores would make each score a class."""
    words = [(row, label) for row, label in enumerate(labels) if label is not None and not _is_number(label)]
    numbers = [label for label in labels if label is not None and _is_number(label)]
    if words and len(numbers) >= len(words) and not all(label.strip("+-").isdigit() for label in numbers):
        row, label = words[0]
        raise InvalidArgumentError(
            f"row {row} of the train split of --task {task} has no number: its label is {label!r}, that of "
            f"others {numbers[0]}; for regression leave such rows out, for classes write all as words"
        )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _checked(split: Dataset, name: str, task: ClassificationTask) -> Dataset:
    """The split with exactly the columns `text`, `text_pair` and `label`; names of labels become numbers."""
    from datasets import Dataset

    if len(split) == 0:
        raise InvalidArgumentError(f"the {name} split is empty")
    for column in (*task.columns, "label"):
        if column not in split.column_names:
            has = ", ".join(split.column_names)
            own = f"; for data of your own give them another --task than {task.name}"
            hint = own if task.name in DATASETS else ""
            raise InvalidArgumentError(f"the {name} split has no column {column!r}; it has: {has}{hint}")
    texts = {}
    for target, column in zip(("text", "text_pair"), task.columns, strict=False):
        texts[target] = split[column][:]
        for i, value in enumerate(texts[target]):
            if not isinstance(value, str):
                raise InvalidArgumentError(
                    f"the {column!r} of row {i} of the {name} split is {value!r}, not text"
                )
    kind: Any = int if task.labels else float
    number_of = _numbering(split, task)
    labels = []
    for i, value in enumerate(split["label"][:]):
        try:
            known = number_of(value)
            number = kind(known)
            if number != float(known):
                raise ValueError
        except (TypeError, ValueError):
            missing = value is None or value != value
            raise InvalidArgumentError(
                f"row {i} of the {name} split has no label"
                if missing
                else f"the label of row {i} of the {name} split is {value!r}; expected {_expected(task)}"
            ) from None
        labels.append(number)
    return Dataset.from_dict({**texts, "label": labels})


def _numbering(split: Dataset, task: ClassificationTask) -> Callable[[Any], Any]:
    """What turns a label of the split, its name or its number, into its number; a label that is neither stays
    as it is. Names in digits, such as `1`, `2`, `5` for stars, are no numbers."""
    from datasets import ClassLabel

    numbers = {label: i for i, label in enumerate(task.labels)}
    counted = list(numbers) == [str(i) for i in range(len(numbers))]
    digits = not counted and any(label.isdigit() for label in numbers)
    named = digits and not isinstance(split.features["label"], ClassLabel)

    def number_of(value: Any) -> Any:
        if isinstance(value, str) or (named and isinstance(value, int) and value != _HIDDEN):
            if str(value) in numbers:
                return numbers[str(value)]
            if digits:
                raise ValueError
        return value

    return number_of


def _expected(task: ClassificationTask) -> str:
    if not task.labels:
        return "a number"
    names = ", ".join(f"{i} ({label})" for i, label in enumerate(task.labels[:10]))
    return names + (", ..." if len(task.labels) > 10 else "")


def _check_labels(split: Dataset, name: str, task: ClassificationTask) -> None:
    labels = np.asarray(split["label"][:])
    bad = ~np.isfinite(labels) if not task.labels else (labels < 0) | (labels >= len(task.labels))
    if bad.any():
        row = int(bad.argmax())
        wrong = f"the label of row {row} of the {name} split is {labels[row]}, outside the range"
        raise InvalidArgumentError(f"{wrong}; expected {_expected(task)}")


def _joined(found: dict[str, Dataset]) -> DatasetDict:
    """Mismatched texts after the matched ones, marked by the column `mismatched`."""
    from datasets import DatasetDict, concatenate_datasets

    data = DatasetDict()
    for split in SPLITS:
        parts = [found[name] for name in (split, f"{split}_mismatched") if name in found]
        if len(parts) == 2:
            flagged = [part.add_column("mismatched", [bool(i)] * len(part)) for i, part in enumerate(parts)]
            data[split] = concatenate_datasets(flagged)
        elif parts and split in found:
            data[split] = parts[0]
    return data
