"""The matrix of runs behind a published table: one readable file a study, expanded into runs of recipes.

A study is a table: `columns` by `rows`, each cell a call of a recipe for every seed. Arguments add up from
the study, the column, the row and the matching `cells`, later ones winning. A run is known by what it does
(recipe, arguments, seed, package version), not by the table that asks for it: tables that need the same run
share it, and a run with other settings is another run, in another folder.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import InvalidArgumentError, UnknownNameError
from .record import RESULTS_NAME

STUDIES = Path(__file__).parent / "studies"
_NAMING = ("task", "dataset", "model", "tokenizer", "init", "surgery")


@dataclass(frozen=True)
class Value:
    """One number of a cell: which field of a record it is and how it is printed."""

    title: str
    field: str
    """Path in a record, by `/`; a step may be a pattern. `best_epoch`, `metrics/test_bleu`,
    `embedding_statistics/*encoder*/before_scaling/std`, `history/max/validation_accuracy`,
    `history/epoch_of_max/validation_accuracy`, `minutes_per_epoch`."""
    scale: float = 1.0
    """The field times this is what the paper prints: 100 for percent."""
    digits: int = 1
    better: str | None = None
    """`higher` or `lower`; values without it are shown, but not compared."""


@dataclass
class Part:
    """What a study, a column, a row or a group of cells says about the runs of its cells."""

    title: str = ""
    box: str = ""
    """Columns or rows of one box are compared with each other: the paper's experiments."""
    recipe: str | None = None
    results: str | None = None
    """File of the run folder that is the record and is written last."""
    arguments: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    """What `{name}` in arguments stands for."""
    values: list[Value] | None = None
    seeds: int | None = None
    """How many: seeds 1 to this."""
    grid: dict[str, list[Any]] | None = None
    """Arguments and their candidates: every combination is run, the best mean of the first value is shown."""
    smoke: dict[str, Any] = field(default_factory=dict)
    """Arguments of a smoke run, over all others."""
    minutes: float | None = None
    """What the paper needed for one run."""


@dataclass(frozen=True)
class Run:
    """One call of a recipe."""

    recipe: str
    arguments: dict[str, Any]
    seed: int
    results: str = RESULTS_NAME

    @property
    def name(self) -> str:
        """Folder of the run below `runs/`: readable, with a digest of all that decides its result."""
        text = json.dumps([self.recipe, self.arguments, self.seed, __version__], sort_keys=True)
        names = (
            str(self.arguments[key]).rstrip("/").split("/")[-1] for key in _NAMING if key in self.arguments
        )
        words = [*names, f"seed{self.seed}", hashlib.sha256(text.encode()).hexdigest()[:8]]
        return f"{self.recipe.removesuffix('.py')}/" + "-".join(words)


@dataclass
class Cell:
    """One cell of the table: its runs for each point of its grid (one point without a grid), by seed."""

    column: str
    row: str
    values: list[Value]
    points: list[tuple[dict[str, Any], list[Run]]]
    paper: list[tuple[float | None, float | None]]
    """Mean and sd that the paper prints, one pair a value."""
    minutes: float | None

    @property
    def runs(self) -> list[Run]:
        """Every run of the cell."""
        return [run for _, runs in self.points for run in runs]


@dataclass
class Study:
    """A table of a paper as runs."""

    name: str
    title: str
    source: str
    note: str
    compare: str
    """`rows` or `columns`: what is compared within a box, for the same column or row."""
    figure: dict[str, Any]
    columns: dict[str, Part]
    rows: dict[str, Part]
    cells: list[Cell]
    left_out: list[str] = field(default_factory=list)
    """What `--only`, `--seeds`, `--set` and `--smoke` changed, in words."""

    @property
    def runs(self) -> list[Run]:
        """Every run once, the first seed of all cells before the second: an interrupted table is even."""
        found = {run.name: run for cell in self.cells for run in cell.runs}
        return sorted(found.values(), key=lambda run: run.seed)


def list_studies() -> list[str]:
    """Names of the studies that come with the package."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load_study(
    name: str,
    *,
    only: Sequence[str] = (),
    seeds: int | None = None,
    overrides: Sequence[str] = (),
    smoke: bool = False,
) -> Study:
    """The study `name` (or of a `.yaml` file) with its cells and runs.

    `only` are patterns of `column/row`, or of a column or row alone; `seeds` the number of seeds of every
    cell; `overrides` are `argument=value` for every run, or `pattern:argument=value` for some cells.

    Raises `UnknownNameError` for a name that is none, and `InvalidArgumentError`, with file and line, for a
    field that does not belong there.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else STUDIES / f"{name}.yaml"
    if not path.is_file():
        raise UnknownNameError("study", name, list_studies())
    raw = _read(path)
    study = _parse(raw, path)
    smoke_only: list[str] = []
    if smoke:
        smoke_only, seeds = study.smoke.get("only", []), seeds or study.smoke.get("seeds", 1)
    changes = [_override(text) for text in overrides]
    cells = [
        cell
        for column, row in itertools.product(study.columns, study.rows)
        if _selected(column, row, only)
        and _selected(column, row, smoke_only)
        and (cell := study.cell(column, row, seeds, changes, smoke)) is not None
    ]
    if not cells:
        raise InvalidArgumentError(
            f"--only {' '.join(only)}: no cell of {path.stem} matches. Columns: {', '.join(study.columns)}; "
            f"rows: {', '.join(study.rows)}"
        )
    for pattern, key, _ in changes:
        if not any(_selected(cell.column, cell.row, [pattern]) for cell in cells):
            raise InvalidArgumentError(f"--set {pattern}:{key}: no cell of this plan matches {pattern!r}")
    said = [f"only {' '.join(only)}"] if only else []
    said += ["smoke test: tiny models and data, numbers mean nothing"] if smoke else []
    said += [f"set {text}" for text in overrides]
    columns = {name: part for name, part in study.columns.items() if any(c.column == name for c in cells)}
    rows = {name: part for name, part in study.rows.items() if any(c.row == name for c in cells)}
    if not smoke:  # cells left out by --only stay in the table, as not run
        columns, rows = study.columns, study.rows
    top = study.top
    return Study(
        path.stem, study.part.title, top["source"], top["note"], top["compare"], top["figure"],
        columns, rows, cells, said,
    )  # fmt: skip


# --- reading a study file -----------------------------------------------------------------------------------

_PART = {"title", "box", "recipe", "results", "arguments", "variables", "values", "seeds", "grid", "smoke",
         "minutes"}  # fmt: skip
_STUDY = (_PART - {"box", "grid"}) | {
    "source",
    "note",
    "compare",
    "figure",
    "columns",
    "rows",
    "cells",
    "paper",
}
_SMOKE = {"only", "seeds", "arguments"}


class Located(dict):
    """A mapping of a YAML file that knows the line of each key."""

    lines: dict[str, int]


@dataclass
class _Parsed:
    path: Path
    part: Part
    top: dict[str, Any]
    columns: dict[str, Part]
    rows: dict[str, Part]
    patterns: list[tuple[str, Part]]
    paper: dict[tuple[str, str], list[tuple[float | None, float | None]]]
    smoke: dict[str, Any]

    def cell(
        self, column: str, row: str, seeds: int | None, changes: Sequence[tuple[str, str, Any]], smoke: bool
    ) -> Cell | None:
        parts = [self.part, self.columns[column], self.rows[row]]
        parts += [part for pattern, part in self.patterns if fnmatchcase(f"{column}/{row}", pattern)]

        def last(name: str) -> Any:
            return next((v for p in reversed(parts) if (v := getattr(p, name)) is not None), None)

        recipe, values = last("recipe"), last("values")
        if recipe is None or values is None:
            missing = "recipe" if recipe is None else "values"
            raise InvalidArgumentError(f"{self.path}: cell {column}/{row} has no {missing!r}")
        arguments = {k: v for part in parts for k, v in part.arguments.items()}
        variables = {k: v for part in parts for k, v in part.variables.items()}
        grid = last("grid") or {}
        if smoke:
            arguments |= self.smoke.get("arguments", {})
            arguments |= {k: v for part in parts[1:] for k, v in part.smoke.items()}
            grid = {}
        arguments |= {k: v for pattern, k, v in changes if _selected(column, row, [pattern])}
        grid = {k: v for k, v in grid.items() if k not in {key for _, key, _ in changes}}
        try:
            arguments = {k: _fill(v, variables) for k, v in arguments.items() if v is not None}
            results = _fill(last("results") or RESULTS_NAME, variables)
        except KeyError as error:
            raise InvalidArgumentError(
                f"{self.path}: cell {column}/{row} uses {{{error.args[0]}}}, which 'variables' do not define"
            ) from None
        count = seeds or last("seeds") or 1
        points = []
        for combination in itertools.product(*grid.values()):
            point = dict(zip(grid, combination, strict=True))
            runs = [Run(recipe, arguments | point, seed, results) for seed in range(1, count + 1)]
            points.append((point, runs))
        paper = self.paper.get((row, column), [(None, None)] * len(values))
        if len(paper) != len(values):
            raise InvalidArgumentError(
                f"{self.path}: 'paper' has {len(paper)} values for {row} and {column}, the cell {len(values)}"
            )
        return Cell(column, row, values, points, paper, last("minutes"))


def _fill(value: Any, variables: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and "{" in value:
        return value.format_map(variables)
    return [_fill(v, variables) for v in value] if isinstance(value, list) else value


def _selected(column: str, row: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(
        fnmatchcase(name, pattern) for pattern in patterns for name in (f"{column}/{row}", column, row)
    )


def _override(text: str) -> tuple[str, str, Any]:
    import yaml

    name, equals, value = text.partition("=")
    pattern, colon, key = name.rpartition(":")
    if not equals or not key.isidentifier() or (colon and not pattern):
        raise InvalidArgumentError(
            f"--set {text!r}: give argument=value, or pattern:argument=value for the cells of a pattern"
        )
    return pattern or "*", key, yaml.safe_load(value)


def _read(path: Path) -> Located:
    """The YAML file as mappings that know their lines."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Keeps lines, refuses a key twice."""

    def mapping(loader: Any, node: Any) -> Located:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if key.value in lines:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: {key.value!r} stands here twice")
            lines[key.value] = key.start_mark.line + 1
        loader.flatten_mapping(node)  # what `<<` brings
        lines = {key.value: key.start_mark.line + 1 for key, _ in node.value} | lines
        found = Located(loader.construct_mapping(node, deep=True))
        found.lines = lines
        return found

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise InvalidArgumentError(f"{path} is not a study: {error}") from None
    if not isinstance(raw, Located):
        raise InvalidArgumentError(f"{path} is not a study: it holds no mapping")
    return raw


def _check(found: Any, known: set[str], what: str, path: Path, line: int) -> None:
    if not isinstance(found, Located):
        raise InvalidArgumentError(f"{path}, line {line}: {what} must be a mapping, not {found!r}")
    for key in found:
        if key not in known:
            name = str(UnknownNameError(f"field of {what}", str(key), known))
            raise InvalidArgumentError(f"{path}, line {found.lines.get(str(key), line)}: {name}")


_TYPES: dict[str, type | tuple[type, ...]] = {
    "title": str, "box": str, "recipe": str, "results": str, "arguments": dict, "variables": dict,
    "values": list, "seeds": int, "grid": dict, "smoke": dict, "minutes": (int, float), "source": str,
    "note": str,
    "compare": str, "figure": dict, "columns": dict, "rows": dict, "cells": dict, "paper": dict,
    "field": str, "scale": (int, float), "digits": int, "better": str,
}  # fmt: skip


def _check_types(found: Located, path: Path) -> None:
    for key, value in found.items():
        if value is not None and not isinstance(value, _TYPES[key]):
            raise InvalidArgumentError(f"{path}, line {found.lines[key]}: {key!r} cannot be {value!r}")


def _part(found: Any, what: str, path: Path, line: int) -> Part:
    found = Located() if found is None else found
    _check(found, _PART, what, path, line)
    _check_types(found, path)
    values = found.get("values")
    fields = {k: v for k, v in found.items() if k != "values"}
    return Part(
        **fields, values=None if values is None else [_value(v, path, found.lines["values"]) for v in values]
    )


def _value(found: Any, path: Path, line: int) -> Value:
    _check(found, {"title", "field", "scale", "digits", "better"}, "a value", path, line)
    _check_types(found, path)
    line = min(found.lines.values(), default=line)
    if not {"title", "field"} <= set(found) or found.get("better") not in (None, "higher", "lower"):
        raise InvalidArgumentError(
            f"{path}, line {line}: a value needs 'title' and 'field'; 'better' is higher or lower"
        )
    return Value(**found)


def _parse(raw: Located, path: Path) -> _Parsed:
    _check(raw, _STUDY, "a study", path, 1)
    _check_types(raw, path)
    for key in ("title", "source", "columns", "rows"):
        if not raw.get(key):
            raise InvalidArgumentError(f"{path} has no {key!r}")
    compare = raw.get("compare", "rows")
    if compare not in ("rows", "columns"):
        raise InvalidArgumentError(
            f"{path}, line {raw.lines['compare']}: 'compare' is rows or columns, not {compare!r}"
        )
    smoke = raw.get("smoke") or Located()
    if smoke:
        _check(smoke, _SMOKE, "smoke", path, raw.lines["smoke"])
    own = Located({k: v for k, v in raw.items() if k in _PART - {"smoke"}})
    own.lines = raw.lines

    def parts(key: str, what: str) -> Iterator[tuple[str, Part]]:
        for name, found in (raw.get(key) or {}).items():
            yield str(name), _part(found, f"{what} {name}", path, raw[key].lines[str(name)])

    columns, rows = dict(parts("columns", "column")), dict(parts("rows", "row"))
    for name, part in (*columns.items(), *rows.items()):
        part.title = part.title or name
    paper = {}
    for row, by_column in (raw.get("paper") or {}).items():
        line = raw["paper"].lines[str(row)]
        if row not in rows:
            raise InvalidArgumentError(f"{path}, line {line}: {UnknownNameError('row', str(row), rows)}")
        _check(by_column, set(columns), "the paper's row, by column", path, line)
        for column, numbers in by_column.items():
            numbers = numbers if isinstance(numbers, list) else [numbers]
            try:
                paper[row, column] = [_paper_number(n) for n in numbers]
            except ValueError:
                raise InvalidArgumentError(
                    f'{path}, line {line}: {column} of {row} is {numbers!r}; give 37.3 or "37.3 (0.4)"'
                ) from None
    top = {
        "source": raw["source"],
        "note": raw.get("note", ""),
        "compare": compare,
        "figure": raw.get("figure") or {},
    }
    patterns = list(parts("cells", "cells"))
    return _Parsed(path, _part(own, "the study", path, 1), top, columns, rows, patterns, paper, smoke)


def _paper_number(value: Any) -> tuple[float | None, float | None]:
    """`37.3`, `"37.3 (0.4)"` or null as mean and sd."""
    if value is None:
        return None, None
    mean, _, sd = str(value).partition("(")
    return float(mean), float(sd.rstrip(") ")) if sd else None
