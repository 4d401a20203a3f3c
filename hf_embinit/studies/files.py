"""Reads a study file: YAML with known fields only; errors name the file and the line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError, UnknownNameError
from ..foreign import reading

PaperValue = tuple[float | None, float | None, str]
"""Mean and sd that the paper prints, and the text as printed."""


@dataclass(frozen=True)
class Value:
    """One number of a cell: which field of a record it is and how it is printed."""

    title: str
    field: str
    """Path in a record, by `/`; a step may be a pattern.
    Examples: `best_epoch`, `minutes_per_epoch`,
    `metrics/test_bleu`,
    `embedding_statistics/*encoder*/before_scaling/std`,
    `history/max/validation_accuracy`,
    `history/epoch_of_max/validation_accuracy`."""
    scale: float = 1.0
    """Factor from the field to what the paper prints: 100 for percent."""
    digits: int = 1
    better: str | None = None
    """`higher` or `lower`; values without it are shown, but not compared."""
    relative_to: str | None = None
    """A column: the value is divided by that column's mean of its value at the same place, in the same row.
    It is not measured where that is 0."""


@dataclass
class Part:
    """What a study, a column, a row or a group of cells sets for the runs of its cells."""

    title: str = ""
    box: str = ""
    """Columns or rows of one box are compared with each other, as in the paper's experiments."""
    recipe: str | None = None
    results: str | None = None
    """File of the run folder that is the record and is written last."""
    arguments: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    """Values for `{name}` in arguments; `{seed}` is always known."""
    values: list[Value] | None = None
    seeds: int | None = None
    """Number of seeds, from 1 on."""
    grid: dict[str, list[Any]] | None = None
    """Arguments and their candidates: every combination is run, and the one with the best mean of the first
    value is shown."""
    smoke: dict[str, Any] = field(default_factory=dict)
    """Arguments of a smoke run, which override all others."""
    minutes: float | None = None
    """Minutes that the paper reports for one run."""


@dataclass
class StudyFile:
    """The content of a study file."""

    path: Path
    source: str
    note: str
    compare: str
    against: str | None
    """A row (or column, by `compare`): differences are printed from it and the best alone, not of all."""
    figure: dict[str, Any]
    without: list[str]
    smoke: dict[str, Any]
    """`only`, `seeds` and `arguments` of a smoke run."""
    part: Part
    columns: dict[str, Part]
    rows: dict[str, Part]
    patterns: list[tuple[str, Part]]
    """Patterns of `column/row`, and the settings of those cells."""
    paper: dict[tuple[str, str], list[PaperValue]]
    """The paper's values by row and column."""


_TYPES: dict[str, Any] = {
    **dict.fromkeys(("title", "box", "recipe", "results", "source", "note", "compare", "against"), str),
    **dict.fromkeys(("field", "better", "relative_to"), str),
    **dict.fromkeys(("kind", "metric", "label", "x", "value", "legend"), str),
    **dict.fromkeys(("arguments", "variables", "grid", "smoke", "figure"), dict),
    **dict.fromkeys(("columns", "rows", "cells", "paper"), dict),
    **dict.fromkeys(("values", "titles", "without", "only"), list),
    **dict.fromkeys(("seeds", "digits"), int),
    **dict.fromkeys(("minutes", "scale"), (int, float)),
}
OF_THE_DRIVER = {"seed": "--seeds, or 'seeds' of a study", "output_dir": "--output_dir"}
"""Arguments that each run is given in any case, and how to choose them."""
PICKS = ("max", "min", "epoch_of_max", "epoch_of_min")
"""What a value can be of a metric in a run's history."""
_VALUE = {"title", "field", "scale", "digits", "better", "relative_to"}
_PART = {"title", "box", "recipe", "results", "arguments", "variables", "values", "seeds", "grid", "smoke"}
_PART |= {"minutes"}
_STUDY = (_PART - {"box", "grid"}) | {"source", "note", "compare", "against", "figure", "without"}
_STUDY |= {"columns", "rows", "cells", "paper"}
_SMOKE = {"only", "seeds", "arguments"}
_FIGURES = {
    "curves": ("metric", {"label", "x", "against", "better"}),
    "bars": ("value", {"legend"}),
    "rankings": ("values", set()),
    "sweeps": ("titles", set()),
}
"""For each kind of figure the field that it needs, and those it may have. Needed are: a field of a run's
history, the title of a value, those of several, those of rows."""


class _Located(dict):
    """A mapping of a YAML file that knows the line of each key."""

    lines: dict[str, int]


def read_study_file(path: Path) -> StudyFile:
    """The study in a YAML file. Raises `InvalidArgumentError`, with file and line, for what is wrong."""
    raw = _read(path)
    _check(raw, _STUDY, "a study", path, 1)
    for key in ("title", "source", "columns", "rows"):
        if not raw.get(key):
            raise InvalidArgumentError(f"{path}: a study needs {key!r}")
    if raw.get("compare", "rows") not in ("rows", "columns"):
        raise InvalidArgumentError(
            f"{path}, line {raw.lines['compare']}: 'compare' is rows or columns, not {raw['compare']!r}"
        )
    against, among = raw.get("against"), raw[raw.get("compare", "rows")]
    if against is not None and against not in among:
        raise InvalidArgumentError(
            f"{path}, line {raw.lines['against']}: 'against' is {' or '.join(among)}, not {against!r}"
        )
    smoke = raw.get("smoke") or {}
    if smoke:
        _check(smoke, _SMOKE, "smoke", path, raw.lines["smoke"])
    own = _Located({k: v for k, v in raw.items() if k in _PART - {"smoke"}})
    own.lines = raw.lines
    columns, rows = (dict(_parts(raw, key, path)) for key in ("columns", "rows"))
    for name, part in (*columns.items(), *rows.items()):
        part.title = part.title or name
    _check_patterns(raw, smoke, columns, rows, path)
    part, patterns = _part(own, "the study", path, 1), list(_parts(raw, "cells", path))
    with_values = [part, *columns.values(), *rows.values(), *(part for _, part in patterns)]
    return StudyFile(
        path=path,
        source=raw["source"],
        note=raw.get("note", ""),
        compare=raw.get("compare", "rows"),
        against=against,
        figure=_figure(raw, with_values, rows, path),
        without=raw.get("without") or [],
        smoke=smoke,
        part=part,
        columns=columns,
        rows=rows,
        patterns=patterns,
        paper=_paper(raw, path, set(columns), set(rows)),
    )


def _read(path: Path) -> _Located:
    """The YAML file as mappings that know their lines."""
    import yaml

    quickest: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(quickest):
        """Records lines, refuses a key that is given twice."""

    def mapping(loader: Any, node: Any) -> _Located:
        own: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: a key must be a name")
            if key.value in own:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: {key.value!r} stands here twice")
            own[key.value] = key.start_mark.line + 1
        loader.flatten_mapping(node)  # what `<<` brings
        pairs = {key.value: loader.construct_object(value, deep=True) for key, value in node.value}
        located = _Located(pairs)  # by names as they are written: 100, no, true
        located.lines = {key.value: key.start_mark.line + 1 for key, _ in node.value} | own
        return located

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    with reading(f"the study {path}", InvalidArgumentError):
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader)  # a SafeLoader
    if not isinstance(raw, _Located):
        raise InvalidArgumentError(f"{path} is not a study: it holds no mapping")
    return raw


def _check(given: Any, known: set[str], what: str, path: Path, line: int) -> None:
    """Raises for a field that is not known here or has a value of the wrong type."""
    if not isinstance(given, _Located):
        raise InvalidArgumentError(f"{path}, line {line}: {what} must be a mapping, not {given!r}")
    for key, value in given.items():
        line = given.lines[str(key)]
        if key not in known:
            wrong = UnknownNameError(f"field of {what}", str(key), known)
            raise InvalidArgumentError(f"{path}, line {line}: {wrong}")
        kind = _TYPES.get(key)
        if kind and value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise InvalidArgumentError(f"{path}, line {line}: {key!r} cannot be {value!r}")
        if value is not None and (problem := _problem(key, value)):
            raise InvalidArgumentError(f"{path}, line {line}: {problem}")


def _problem(field: str, value: Any) -> str | None:
    """What is wrong with a value of the right type; None when nothing is."""
    if field == "seeds" and value < 1:
        return f"'seeds' is 1 or more, not {value}"
    if field == "scale" and not (value and math.isfinite(value)):
        return f"'scale' is a factor, not {value}"
    if field == "digits" and value < 0:
        return f"'digits' is 0 or more, not {value}"
    if field == "results" and (Path(value).is_absolute() or ".." in Path(value).parts):
        return f"'results' is a file in the run's folder, such as results.json, not {value!r}"
    if field == "better" and value not in ("higher", "lower"):
        return f"'better' is higher or lower, not {value!r}"
    if field == "field" and value.split("/")[0] == "history":
        _, *picked = value.split("/")
        if len(picked) != 2 or picked[0] not in PICKS:
            return f"'field' is history/<{'|'.join(PICKS)}>/<metric>, not {value!r}"
    if field in ("without", "only") and not all(isinstance(pattern, str) for pattern in value):
        return f"{field!r} has patterns of column/row, of a column or of a row, not {value!r}"
    if field == "values" and not value:
        return "'values' needs one value or more, not []"
    for name, given in value.items() if field in ("arguments", "grid", "smoke") else ():
        if not name.isidentifier():
            return f"{field!r} has names of flags, not {name!r}"
        if name in OF_THE_DRIVER:
            return f"{field!r} cannot have {name!r}, every run gets its own; use {OF_THE_DRIVER[name]}"
        if field == "grid" and not (isinstance(given, list) and given):
            return f"'grid' has a list of candidates for {name!r}, not {given!r}"
    return None


def _parts(raw: _Located, key: str, path: Path) -> Iterator[tuple[str, Part]]:
    for name, given in (raw.get(key) or {}).items():
        yield str(name), _part(given, f"{key} {name}", path, raw[key].lines[str(name)])


def _part(given: Any, what: str, path: Path, line: int) -> Part:
    if given is None:
        return Part()
    _check(given, _PART, what, path, line)
    fields = {k: v for k, v in given.items() if k != "values" and v is not None}  # a blank one is not given
    values = given.get("values")
    return Part(**fields, values=values and [_value(v, path, given.lines["values"]) for v in values])


def _value(given: Any, path: Path, line: int) -> Value:
    _check(given, _VALUE, "a value", path, line)
    line = min(given.lines.values(), default=line)
    if not {"title", "field"} <= set(given):
        raise InvalidArgumentError(f"{path}, line {line}: a value needs 'title' and 'field'")
    for key, content in given.items():
        if content is None:
            raise InvalidArgumentError(f"{path}, line {given.lines[key]}: {key!r} of a value is blank")
    return Value(**given)


def selected(column: str, row: str, patterns: Sequence[str]) -> bool:
    """Whether a cell matches one of the patterns, of which none means all."""
    return not patterns or any(
        fnmatchcase(name, pattern) for pattern in patterns for name in (f"{column}/{row}", column, row)
    )


def _check_patterns(
    raw: _Located, smoke: Any, columns: dict[str, Part], rows: dict[str, Part], path: Path
) -> None:
    """Raises for a pattern that no cell matches; `only` is of the cells that `without` leaves."""
    cells, without = list(itertools.product(columns, rows)), raw.get("without") or []
    left = [cell for cell in cells if not (without and selected(*cell, without))]
    if not left:
        raise InvalidArgumentError(f"{path}, line {raw.lines['without']}: 'without' leaves no cell")
    known = f"Columns: {', '.join(columns)}; rows: {', '.join(rows)}"
    for where, key, among in ((raw, "without", cells), (smoke, "only", left)):
        for pattern in where.get(key) or []:
            if not any(selected(*cell, [pattern]) for cell in among):
                raise InvalidArgumentError(
                    f"{path}, line {where.lines[key]}: {key!r} has {pattern!r}, which no cell matches. "
                    f"{known}"
                )
    for pattern in raw.get("cells") or {}:
        if not any(fnmatchcase("/".join(cell), pattern) for cell in cells):
            raise InvalidArgumentError(
                f"{path}, line {raw['cells'].lines[pattern]}: 'cells' has {pattern!r}, which no column/row "
                f"matches. {known}"
            )


def _figure(raw: _Located, parts: list[Part], rows: dict[str, Part], path: Path) -> dict[str, Any]:
    """The study's figure, checked before anything is run: `parts` are all that may have values."""
    given: Any = raw.get("figure") or {}
    if not given:
        return {}
    line = raw.lines["figure"]
    if given.get("kind") not in _FIGURES:
        raise InvalidArgumentError(
            f"{path}, line {line}: {UnknownNameError('kind of figure', str(given.get('kind')), _FIGURES)}"
        )
    needed, more = _FIGURES[given["kind"]]
    _check(given, {"kind", needed, *more}, f"a figure of {given['kind']}", path, line)
    if not given.get(needed):
        raise InvalidArgumentError(f"{path}, line {line}: a figure of {given['kind']} needs {needed!r}")
    values = {value.title for part in parts for value in part.values or []}
    known = {
        "value": values,
        "values": values,
        "titles": {row.title for row in rows.values()},
        "against": set(rows),
    }
    for key in known.keys() & given.keys():
        for name in given[key] if isinstance(given[key], list) else [given[key]]:
            if not isinstance(name, str) or name not in known[key]:
                wrong = UnknownNameError(f"{key!r} of a figure", str(name), known[key])
                raise InvalidArgumentError(f"{path}, line {given.lines[key]}: {wrong}")
    for own in (part.values or [] for part in parts):
        ranked = {"rankings": [v for v in own if v.title in given.get("values", [])], "sweeps": own[:1]}
        for value in ranked.get(given["kind"], []):
            if value.better is None:
                raise InvalidArgumentError(
                    f"{path}, line {line}: a figure of {given['kind']} shows which is best, and "
                    f"{value.title!r} has no 'better': give it higher or lower"
                )
    return given


def _paper(
    raw: _Located, path: Path, columns: set[str], rows: set[str]
) -> dict[tuple[str, str], list[PaperValue]]:
    paper = {}
    for row, by_column in (raw.get("paper") or {}).items():
        line = raw["paper"].lines[str(row)]
        if row not in rows:
            raise InvalidArgumentError(f"{path}, line {line}: {UnknownNameError('row', str(row), rows)}")
        _check(by_column, columns, "the paper's row, by column", path, line)
        for column, numbers in by_column.items():
            numbers = numbers if isinstance(numbers, list) else [numbers]
            try:
                paper[row, column] = [_paper_value(n) for n in numbers]
            except ValueError:
                raise InvalidArgumentError(
                    f"{path}, line {by_column.lines[column]}: {numbers!r} of {row}, {column} are no "
                    "numbers: give 37.3 or 37.3 (0.4)"
                ) from None
    return paper


def _paper_value(value: Any) -> PaperValue:
    """`37.3`, `37.3 (0.4)` or null."""
    if value is None:
        return None, None, ""
    mean, _, sd = str(value).partition("(")
    return float(mean), float(sd.rstrip(") ")) if sd else None, str(value)
