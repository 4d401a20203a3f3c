"""A study: the table of a paper as the runs behind it, read from one YAML file.

Its cells are `columns` by `rows`, each a call of a recipe for every seed. Arguments are merged from the
study, the column, the row and the matching `cells`; later ones win. A run is identified by what it does
(recipe, arguments, seed, package version), not by the table that asks for it: tables that need the same run
share it, and a run with other settings is another run, in another folder.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import InvalidArgumentError, UnknownNameError
from ..records import RESULTS_NAME
from .files import OF_THE_DRIVER, PaperValue, Part, StudyFile, Value, read_study_file, selected

STUDIES = Path(__file__).parent
RUN_PREFIX = "run:"
"""An argument `run:<column>/<row>/<file>` is that file of the run of another cell with the same seed."""
_FOLDERS = ("runs", "smoke")
"""Folders beside those of the studies, each of which has the name of its file."""
_NAMING = ("task", "dataset", "model", "tokenizer", "init", "refine", "inits", "surgery")


@dataclass(frozen=True)
class Run:
    """One call of a recipe."""

    recipe: str
    arguments: dict[str, Any]
    seed: int
    results: str = RESULTS_NAME
    """File of the run folder that is the record."""

    @property
    def name(self) -> str:
        """Folder of the run below `runs/`: readable, with a digest of all that determines its result."""
        text = json.dumps([self.recipe, self.arguments, self.seed, __version__], sort_keys=True)
        named = (self.arguments[key] for key in _NAMING if key in self.arguments)
        names = ["+".join(map(str, v)) if isinstance(v, list) else str(v) for v in named]
        words = [name.rstrip("/").split("/")[-1] for name in names if not name.startswith(RUN_PREFIX)]
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        plain = [re.sub(r"[^\w.,+=-]", "-", word) for word in words]  # `omp:k=8` is no name on every disk
        return f"{self.recipe.removesuffix('.py')}/" + "-".join([*plain, f"seed{self.seed}", digest])

    @property
    def needs(self) -> list[str]:
        """Names of the runs whose files this one reads."""
        values = (str(value) for value in self.arguments.values())
        paths = [value.removeprefix(RUN_PREFIX) for value in values if value.startswith(RUN_PREFIX)]
        return ["/".join(path.split("/")[:2]) for path in paths]


@dataclass
class Cell:
    """One cell of the table: its runs by seed, for each point of its grid (one point without a grid)."""

    column: str
    row: str
    values: list[Value]
    points: list[tuple[dict[str, Any], list[Run]]]
    paper: list[PaperValue]
    """What the paper prints, for each value."""
    minutes: float | None

    @property
    def runs(self) -> list[Run]:
        """Every run of the cell."""
        return [run for _, runs in self.points for run in runs]


@dataclass
class Study:
    """A table of a paper as runs."""

    name: str
    file: StudyFile
    columns: dict[str, Part]
    rows: dict[str, Part]
    table: list[Cell]
    """Every cell of the paper's table."""
    cells: list[Cell]
    """The cells that are to be run."""
    changes: list[str]
    """What `--set` and `--smoke` changed, in words."""

    @property
    def title(self) -> str:
        """What the table shows."""
        return self.file.part.title

    @property
    def runs(self) -> list[Run]:
        """Every run once, the first seed of all cells before the second: an interrupted table is even.

        A run that reads another's files stands after it.
        """
        runs = {run.name: run for cell in self.cells for run in cell.runs}
        return sorted(runs.values(), key=lambda run: (bool(run.needs), run.seed))


def list_studies() -> list[str]:
    """Names of the studies that come with the package."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load_study(
    name: str,
    *,
    only: Sequence[str] = (),
    seeds: int | None = None,
    overrides: Sequence[str] = (),
    smoke: Path | None = None,
) -> Study:
    """The study `name` (or of a `.yaml` file) with its cells and runs.

    `only` are patterns of `column/row`, or of a column or row alone; `seeds` the number of seeds of every
    cell; `overrides` are `argument=value` for every run, or `pattern:argument=value` for some cells; `smoke`
    asks for a smoke run, and is the folder of its small files (`{smoke}` in a study file).

    Raises `UnknownNameError` for a name that is none, and `InvalidArgumentError`, with file and line, for a
    field that does not belong there.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else STUDIES / f"{name}.yaml"
    if not path.is_file():
        raise UnknownNameError("study", name, list_studies())
    if path.stem in _FOLDERS:
        raise InvalidArgumentError(
            f"{path}: {path.stem}/ is a folder of all studies: call the file otherwise"
        )
    packaged = STUDIES / f"{path.stem}.yaml"
    if packaged.is_file() and path.read_bytes() != packaged.read_bytes():
        raise InvalidArgumentError(
            f"{path}: this package has another study {path.stem}, and each would write {path.stem}/ of "
            "--output_dir: call the file otherwise"
        )
    if seeds is not None and seeds < 1:
        raise InvalidArgumentError(f"--seeds {seeds}: give 1 or more")
    file = read_study_file(path)
    changes = [_override(text) for text in overrides]
    expansion = _Expansion(file, seeds, changes, smoke)
    smoke_only = file.smoke.get("only", []) if smoke is not None else []
    table = [
        expansion.cell(column, row)
        for column, row in itertools.product(file.columns, file.rows)
        if selected(column, row, smoke_only) and not (file.without and selected(column, row, file.without))
    ]
    first: dict[str, Cell] = {}
    for cell in table:
        one = first.setdefault(cell.column, cell)
        if len(one.values) != len(cell.values):
            raise InvalidArgumentError(
                f"{path}: cell {cell.column}/{cell.row} has {len(cell.values)} 'values', and "
                f"{one.column}/{one.row} of the same column {len(one.values)}: give each as many"
            )
        for ours, theirs in zip(cell.values, one.values, strict=True) if file.compare == "rows" else ():
            if (ours.title, ours.better) != (theirs.title, theirs.better):
                raise InvalidArgumentError(
                    f"{path}: cell {cell.column}/{cell.row} has the value {ours.title!r} where "
                    f"{one.column}/{one.row} of the same column has {theirs.title!r}: give both one title "
                    f"and one 'better', or compare: columns"
                )
    cells = [cell for cell in table if selected(cell.column, cell.row, only)]
    columns = {name: part for name, part in file.columns.items() if any(c.column == name for c in table)}
    rows = {name: part for name, part in file.rows.items() if any(c.row == name for c in table)}
    for pattern in only:
        if not any(selected(cell.column, cell.row, [pattern]) for cell in table):
            raise InvalidArgumentError(
                f"--only {pattern}: no cell of {path.stem} matches. Columns: {', '.join(columns)}; "
                f"rows: {', '.join(rows)}"
            )
    for pattern, key, _ in changes:
        if not any(selected(cell.column, cell.row, [pattern]) for cell in table):
            raise InvalidArgumentError(f"--set {pattern}:{key}: no cell of {path.stem} matches {pattern!r}")
    changed = ["--smoke: tiny models and data, these numbers mean nothing"] if smoke is not None else []
    changed += [f"--set {text}" for text in overrides]
    return Study(path.stem, file, columns, rows, table, cells, changed)


@dataclass
class _Expansion:
    file: StudyFile
    seeds: int | None
    changes: Sequence[tuple[str, str, Any]]
    smoke: Path | None

    def cell(self, column: str, row: str) -> Cell:
        parts = self.parts(column, row)
        values = _last(parts, "values")
        if values is None:
            raise InvalidArgumentError(f"{self.file.path}: cell {column}/{row} has no 'values'")
        self.check_references(column, row, values)
        grid = {} if self.smoke is not None else _last(parts, "grid") or {}
        changed = {key for pattern, key, _ in self.changes if selected(column, row, [pattern])}
        grid = {k: v for k, v in grid.items() if k not in changed}
        default = _last(parts, "seeds") or 1
        count = self.seeds or (self.file.smoke.get("seeds") or 1 if self.smoke is not None else default)
        points = []
        for combination in itertools.product(*grid.values()):
            point = dict(zip(grid, combination, strict=True))
            points.append((point, [self.run(column, row, seed, point) for seed in range(1, count + 1)]))
        paper = self.file.paper.get((row, column), [(None, None, "")] * len(values))
        if len(paper) != len(values):
            raise InvalidArgumentError(
                f"{self.file.path}: 'paper' has {len(paper)} numbers for {row}, {column}, "
                f"the cell has {len(values)} values"
            )
        return Cell(column, row, values, points, paper, _last(parts, "minutes"))

    def check_references(self, column: str, row: str, values: Sequence[Value]) -> None:
        """Raises for a `relative_to` that is no column, or one that has no value at that place."""
        for i, value in enumerate(values):
            to, where = value.relative_to, f"{self.file.path}: cell {column}/{row}: 'relative_to'"
            if to is None:
                continue
            if to not in self.file.columns:
                raise InvalidArgumentError(f"{where}: {UnknownNameError('column', to, self.file.columns)}")
            theirs = _last(self.parts(to, row), "values") or []
            if i >= len(theirs):
                raise InvalidArgumentError(
                    f"{where}: {value.title!r} is value {i + 1} of its cell, and {to}/{row} has {len(theirs)}"
                )

    def parts(self, column: str, row: str) -> list[Part]:
        """What the study file says about a cell; what comes later overrides."""
        parts = [self.file.part, self.file.columns[column], self.file.rows[row]]
        return parts + [p for pattern, p in self.file.patterns if fnmatchcase(f"{column}/{row}", pattern)]

    def run(
        self, column: str, row: str, seed: int, point: Mapping[str, Any], readers: tuple[str, ...] = ()
    ) -> Run:
        """The run of a cell; `readers` are the cells that asked for it, since they read its files."""
        parts = self.parts(column, row)
        cell = f"{column}/{row}"
        recipe = _last(parts, "recipe")
        if recipe is None:
            raise InvalidArgumentError(f"{self.file.path}: cell {cell} has no 'recipe'")
        arguments = {k: v for part in parts for k, v in part.arguments.items()}
        variables = {k: v for part in parts for k, v in part.variables.items()} | {"seed": seed}
        if self.smoke is not None:
            variables["smoke"] = str(self.smoke)
            arguments |= self.file.smoke.get("arguments") or {}
            arguments |= {k: v for part in parts[1:] for k, v in part.smoke.items()}
        arguments |= {k: v for pattern, k, v in self.changes if selected(column, row, [pattern])}
        arguments |= point
        arguments = {k: self.filled(cell, k, v, variables) for k, v in arguments.items() if v is not None}
        results = self.filled(cell, "results", _last(parts, "results") or RESULTS_NAME, variables)
        for key, value in arguments.items():
            if any(
                str(one).startswith(RUN_PREFIX) for one in (value if isinstance(value, list) else [value])
            ):
                arguments[key] = self.file_of_run(cell, key, value, seed, readers)
        return Run(recipe, arguments, seed, results)

    def file_of_run(self, cell: str, key: str, value: Any, seed: int, readers: tuple[str, ...]) -> str:
        """The argument `run:<column>/<row>/<file>` of a cell with the name of that run."""
        *read, file = str(value).removeprefix(RUN_PREFIX).split("/", 2)
        known = len(read) == 2 and read[0] in self.file.columns and read[1] in self.file.rows
        if not known or "/".join(read) in (*readers, cell):
            raise InvalidArgumentError(
                f"{self.file.path}: cell {cell}: {key} cannot be {value!r}; expected run:<column>/"
                f"<row>/<file>, with a cell that reads no files of this one. Columns: "
                f"{', '.join(self.file.columns)}; rows: {', '.join(self.file.rows)}"
            )
        if self.smoke is None and _last(self.parts(*read), "grid"):
            raise InvalidArgumentError(
                f"{self.file.path}: cell {cell}: {key} cannot be {value!r}, as {'/'.join(read)} has a "
                f"'grid', so that its runs are several"
            )
        other = self.run(read[0], read[1], seed, {}, (*readers, cell))
        return f"{RUN_PREFIX}{other.name}/{file}"

    def filled(self, cell: str, key: str, value: Any, variables: Mapping[str, Any]) -> Any:
        """An argument of a cell with its variables."""
        try:
            filled = _fill(value, variables)
            json.dumps(filled, sort_keys=True)  # the name of the run is made of it
            return filled
        except KeyError as error:
            raise InvalidArgumentError(
                f"{self.file.path}: cell {cell} uses {{{error.args[0]}}}, which no 'variables' define"
            ) from None
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"{self.file.path}: cell {cell}: {key} cannot be {value!r} ({error}); expected a text, a "
                "number, a list or a mapping; in a text {name} is a variable, and {{ and }} are braces"
            ) from None


def _last(parts: Sequence[Part], name: str) -> Any:
    return next((v for part in reversed(parts) if (v := getattr(part, name)) is not None), None)


def _fill(value: Any, variables: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and "{" in value:
        return value.format_map(variables)
    return [_fill(v, variables) for v in value] if isinstance(value, list) else value


def _override(text: str) -> tuple[str, str, Any]:
    import yaml

    name, equals, value = text.partition("=")
    pattern, colon, key = name.rpartition(":")
    if not equals or not key.isidentifier() or (colon and not pattern):
        raise InvalidArgumentError(
            f"--set {text!r}: give argument=value, or pattern:argument=value for the cells of a pattern"
        )
    if key in OF_THE_DRIVER:
        raise InvalidArgumentError(f"--set {text!r}: every run gets its own {key}; use {OF_THE_DRIVER[key]}")
    if value.lower() in ("no", "yes"):  # YAML's false and true, but --eval_strategy no is a text
        return pattern or "*", key, value
    try:
        return pattern or "*", key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise InvalidArgumentError(
            f"--set {text!r}: {value!r} is no YAML; a text that looks like it takes quotes, as in "
            f"--set '{name}=\"{value}\"'"
        ) from None
