"""What the runs of a study read, whether it is there, and how to get it: reported before anything starts."""

from __future__ import annotations

import difflib
import os
import runpy
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from ..errors import DataNotFoundError, EmbinitError, InvalidArgumentError, UnknownNameError
from ..hub import hub_is_reachable
from ..initializers import read_init
from ..retokenize import get_initializer
from ..tasks import DATA_VARIABLE, SPLIT_FILES, DataSpec, find_folder, find_model, list_tasks
from ..vectors import SOURCES
from .scheduling import Launch
from .study import RUN_PREFIX, Run, Study

_GUARD = '__name__ == "__main__"'


@dataclass
class Requirement:
    """Something that runs of a study read."""

    kind: str
    """`data set`, `vectors`, `model`, `tokenizer` or `file`; `init` for a name that no initialiser has."""
    name: str
    found: str | None
    """Where it is, or will be fetched from; None when it is missing."""
    way_out: str
    """How to get it when it is missing."""
    cells: list[str] = field(default_factory=list)
    """`column/row` of the cells that need it."""

    def __str__(self) -> str:
        if self.found is not None:
            return f"  found    {self.kind} {self.name}: {self.found}"
        shown = ", ".join(self.cells[:3]) + (f" and {len(self.cells) - 3} more" if self.cells[3:] else "")
        return f"  MISSING  {self.kind} {self.name}, for {shown}: {self.way_out}"


def list_requirements(study: Study, launch: Launch) -> list[Requirement]:
    """What the runs of a study read from files and from the Hub, missing things first.

    Nothing is loaded or fetched: files are looked for, and the Hub is asked once whether it can be reached.
    """
    requirements: dict[tuple[str, str], Requirement] = {}
    for cell in study.cells:
        for run in cell.runs:
            for kind, name in _read_by(run):
                entry = requirements.setdefault((kind, name), Requirement(kind, name, None, ""))
                if not entry.cells:
                    entry.found, entry.way_out = _look(kind, name, launch, run)
                place = f"{cell.column}/{cell.row}"
                if place not in entry.cells:
                    entry.cells.append(place)
    return sorted(requirements.values(), key=lambda r: (r.found is not None, r.kind, r.name))


def check_flags(study: Study, launch: Launch) -> None:
    """Raises `InvalidArgumentError` for a recipe that is none, or an argument that a recipe has no flag for.

    The flags are the fields of the dataclasses that the recipe names. A script that would run when it is
    imported is not looked into.
    """
    flags: dict[str, set[str]] = {}
    for run in study.runs:
        if run.recipe not in flags:
            if not (launch.recipes / run.recipe).is_file():
                recipes = [path.name for path in launch.recipes.glob("*.py")]
                wrong = UnknownNameError("recipe", run.recipe, recipes)
                raise InvalidArgumentError(f"{study.name}, run {run.name}: {wrong}")
            flags[run.recipe] = _flags(launch.recipes / run.recipe)
        for name in run.arguments if flags[run.recipe] else ():
            if name not in flags[run.recipe]:
                close = difflib.get_close_matches(name, flags[run.recipe], n=3)
                hint = f"; did you mean {' or '.join(close)}?" if close else ""
                raise InvalidArgumentError(
                    f"{study.name}, run {run.name}: {run.recipe} has no flag --{name}{hint} (--set "
                    f"'pattern:{name}=...' is for the cells of a pattern alone)"
                )


def _flags(recipe: Path) -> set[str]:
    if _GUARD not in recipe.read_text(encoding="utf-8"):
        return set()
    named = runpy.run_path(str(recipe), run_name=recipe.stem).values()
    return {f.name for part in named if isinstance(part, type) and is_dataclass(part) for f in fields(part)}


def _read_by(run: Run) -> Iterator[tuple[str, str]]:
    """Kind and name of what a run reads."""
    given = {k: v for k, v in run.arguments.items() if not str(v).startswith(RUN_PREFIX)}
    data = given.get("dataset") or given.get("task")
    spec = _data_spec(data)
    embedded = spec is not None and spec.hub_id is None
    built_here = {"words", *(model for task in list_tasks() for model in task.models)}
    if data is not None and not embedded:
        yield "data set", str(data)
    for key in ("train_file", "validation_file", "test_file", "analogies"):
        if given.get(key):
            yield "file", str(given[key])
    for kind in ("model", "tokenizer", "donor"):
        if given.get(kind) and given[kind] not in built_here:
            yield ("model" if kind == "donor" else kind), str(given[kind])
    sources = given.get("sources") or []
    for name in sources if isinstance(sources, list) else [sources]:
        yield "vectors", str(name).partition("=")[2] or str(name)
    init, inits = given.get("init"), given.get("inits") or []
    for name in (init, *(inits if isinstance(inits, list) else [inits])):
        if name and _wrong_init(str(name)):
            yield "init", str(name)
    needed = get_initializer(init).defaults.get("vectors") if init and "vectors" in _needs(init) else None
    if needed and not given.get("vectors") and not (embedded and given.get("tokenizer") == "words"):
        yield "vectors", str(needed)
    for key in ("vectors", "target_vectors"):
        if given.get(key):
            yield "vectors", str(given[key])


def _needs(init: str) -> Any:
    try:
        return get_initializer(init).needs
    except EmbinitError:  # `_wrong_init` says so
        return ()


def _wrong_init(init: str) -> str:
    """What is wrong with the name of an initialiser or its options; "" when nothing is."""
    try:
        read_init(init)
    except EmbinitError as error:
        return str(error)
    return ""


def _look(kind: str, name: str, launch: Launch, run: Run) -> tuple[str | None, str]:
    """Where something is or will come from (None: missing), and how to get it."""
    if kind == "data set":
        return _data(name, launch, bool(run.arguments.get("train_file")))
    if kind == "init":
        return None, _wrong_init(name)
    path = Path(name).expanduser()
    if path.exists() or (":" in name and Path(name.rpartition(":")[0]).exists()):
        return str(path), ""
    if kind in ("model", "tokenizer") and launch.data_dir is None:
        folders = [find_model(name), find_folder(f"tokenizers/{name}", None)]
        if found := next((folder for folder in folders if folder and Path(folder).is_dir()), None):
            return str(found), ""
    if kind == "vectors" and name == "glove":
        return None, (
            "not on the Hub; get glove.840B.300d.zip from https://nlp.stanford.edu/projects/glove (German: "
            "train your own with recipes/train_vectors.py), then --set '<cells>:vectors=<file>'"
        )
    hub_id = SOURCES.get(name, name)
    if kind == "file" or hub_id.count("/") > 1 or hub_id.startswith((".", "~", "/")) or path.suffix:
        return None, f"there is no {name} in {Path.cwd()}; relative paths start there"
    return _from_hub(hub_id, "model")


def _data(name: str, launch: Launch, has_train_file: bool) -> tuple[str | None, str]:
    if Path(name).is_dir():
        return name, ""
    spec = _data_spec(name)
    folder = None
    for spelled in (name, f"glue/{name}"):
        try:
            candidate = find_folder(spelled, launch.data_dir)
        except DataNotFoundError as error:
            return None, str(error)
        if candidate is not None and _has_split(candidate, ("train", "validation", "test")):
            folder = candidate
            break
    if folder is not None:
        if has_train_file or _has_split(folder, ("train",)):
            return str(folder), ""
        return None, (
            f"{folder} has no training split; add train.jsonl, or give --set '<cells>:train_file=<file>'"
        )
    if spec is None or spec.hub_id is None:
        return None, f"put it in a folder {name} of --data_dir or of {DATA_VARIABLE}"
    found, way_out = _from_hub(spec.hub_id, "dataset")
    return found, f"{way_out}, or put it in a folder {name} of --data_dir or of {DATA_VARIABLE}"


def _data_spec(name: Any) -> DataSpec | None:
    """The data set of that name, whatever the task."""
    return next((task.datasets[name] for task in list_tasks() if name in task.datasets), None)


def _has_split(folder: Path, splits: tuple[str, ...]) -> bool:
    stems = tuple(stem for split in splits for stem in SPLIT_FILES[split])
    return any(path.stem in stems for path in folder.iterdir() if path.is_file())


def _from_hub(hub_id: str, kind: str) -> tuple[str | None, str]:
    from huggingface_hub import constants

    cached = Path(constants.HF_HUB_CACHE) / f"{kind}s--{hub_id.replace('/', '--')}" / "snapshots"
    if cached.is_dir() and os.listdir(cached):
        return f"the Hub's cache of {hub_id}", ""
    if hub_is_reachable():
        return f"the Hub, {hub_id}", ""
    flag = "" if kind == "model" else " --repo-type dataset"
    return None, f"the Hub is not reachable; where it is: hf download {hub_id}{flag}"
