"""Every run below a folder, those of `recipes/retokenize.py` among them, which trains little or nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..display import counted
from ..errors import DataNotFoundError, RunFolderError
from ..foreign import read_json
from .record import RESULTS_NAME, RunRecord, read_record
from .writing import to_plain

RETOKENIZATION = "retokenization"
"""The task of a run of `recipes/retokenize.py`."""
_OF_RETOKENIZE = {"dataset", "init", "seed", "arguments", "metrics", "report", "runtime", "versions"}


def find_records(folder: str | os.PathLike[str]) -> tuple[dict[str, RunRecord], list[str]]:
    """Path of each record below `folder`, relative to it -> the record; and the paths of what is none.

    The latter are other files of that name: reports, comparisons, damaged ones. Raises `DataNotFoundError`
    when there is no record, with what is wrong with the first of these.
    """
    records, others, problems = dict[str, RunRecord](), list[str](), list[RunFolderError]()
    for path in sorted(Path(folder).rglob(RESULTS_NAME)):
        name = path.relative_to(folder).as_posix()
        try:
            records[name] = read_result(path)
        except RunFolderError as error:
            others.append(name)
            problems.append(error)
    if not records:
        raise none_found(folder, problems)
    return records, others


def none_found(folder: str | os.PathLike[str], problems: Sequence[RunFolderError]) -> DataNotFoundError:
    """The error of a folder without a run's record; `problems` are those of files of that name."""
    way_out, path = "give the folder of one or more finished runs", Path(folder)
    if path.is_file():
        return DataNotFoundError(f"{str(folder)!r} is a file: {way_out}")
    absent = "" if path.exists() else ", which is not there"
    left_out = f"; left out {counted(len(problems), 'file')} of that name: {problems[0]}" if problems else ""
    return DataNotFoundError(f"no run's {RESULTS_NAME} below {str(folder)!r}{absent}: {way_out}{left_out}")


def read_result(folder: str | os.PathLike[str]) -> RunRecord:
    """`read_record`, also of a run of `recipes/retokenize.py`, whose task is `retokenization`."""
    path = Path(folder)
    path = path / RESULTS_NAME if path.is_dir() else path
    return (_of_retokenize(path) if path.is_file() else None) or read_record(path)


def _of_retokenize(path: Path) -> RunRecord | None:
    """The record of a run of `recipes/retokenize.py`; None for any other file."""
    values = to_plain(read_json(path, error=RunFolderError))
    if not set(values) >= _OF_RETOKENIZE or not _has_its_shape(values):
        return None
    arguments = values["arguments"]
    refine, words = arguments.get("refine"), arguments.get("expand")
    learnt = f"its own and {words} words" if words else f"learnt, {arguments.get('vocab_size')} tokens"
    return RunRecord(
        task=RETOKENIZATION,
        dataset=values["dataset"],
        init=f"{values['init']}, then {refine}" if refine else values["init"],
        tokenizer=arguments.get("tokenizer") or learnt,
        seed=values["seed"],
        arguments=arguments,
        metrics=values["metrics"],
        best_epoch=None,
        history=[],
        parameters=0,
        embedding_statistics={},
        coverage={},
        runtime=values["runtime"],
        versions=values["versions"],
        data=_digests(values.get("data")),
    )


def _digests(data: Any) -> dict[str, Any]:
    """What a record says of its texts, where it does."""
    splits = data.items() if isinstance(data, dict) else ()
    return {name: one for name, one in splits if isinstance(one, dict) and isinstance(one.get("sha256"), str)}


def _has_its_shape(values: dict[str, Any]) -> bool:
    numbers = values["metrics"]
    return (
        all(isinstance(values[name], str) for name in ("dataset", "init"))
        and isinstance(values["seed"], int)
        and all(isinstance(values[name], dict) for name in ("arguments", "metrics", "runtime", "versions"))
        and all(v is None or isinstance(v, (int, float)) for v in numbers.values())
    )
