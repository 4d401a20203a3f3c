"""Rooms import only from rooms below, by the names that those give; importing the package is light."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "hf_embinit"
ROOMS = [
    "lazy",
    "display",
    "errors",
    "arguments",
    "disk",
    "interrupts",
    "registry",
    "files",
    "foreign",
    "models",
    "drawing",
    "moments",
    "modes",
    "hub",
    "tokens",
    "vectors",
    "measures",
    "manifest",
    "initializers",
    "tables",
    "retokenize",
    "rows",
    "resize",
    "initialization",
    "patching",
    "vocabulary",
    "surgery",
    "tasks",
    "records",
    "studies",
    "cards",
    "training",
    "report",
    "cli",
    "__main__",
    "axolotl",
]
"""The house from the ground up: a file imports only from rooms that stand before its own."""


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, str | None]]:
    """Module and name of every import from the package in a file: `hf_embinit.tables` and `unwrap`.

    The name is None for `import module`; `from .. import surgery` gives the module `hf_embinit.surgery`.
    """
    package = ("hf_embinit", *path.relative_to(PACKAGE).parts) if PACKAGE in path.parents else ()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules: list[tuple[str, str | None]] = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            modules = [(module, alias.name) for alias in node.names]
            if module == "hf_embinit":
                modules = [(f"hf_embinit.{alias.name}", None) for alias in node.names]
        else:
            continue
        yield from (pair for pair in modules if pair[0].split(".")[0] == "hf_embinit" and "." in pair[0])


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")
RECIPES = sorted((PACKAGE.parent / "recipes").glob("*.py"))
LAZY = ["hf_embinit.measures", "hf_embinit.report", "hf_embinit.tasks", "hf_embinit.training"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    here = room(path)
    assert here in ROOMS, f"{here} is no room of the house"
    for other in {module.split(".")[1] for module, _ in imported(path)} & set(ROOMS) - {here}:
        down = ROOMS.index(other) < ROOMS.index(here)
        assert down, f"{path.relative_to(PACKAGE)} imports {other}, which stands above {here}"


def test_a_room_is_entered_by_the_names_that_it_gives() -> None:
    past = []
    for path in [*FILES, PACKAGE / "__init__.py", *RECIPES]:
        here = room(path) if path in FILES else None
        for module, name in imported(path):
            other = module.split(".")[1]
            if other == here or not (PACKAGE / other).is_dir():
                continue
            given = importlib.import_module(f"hf_embinit.{other}").__all__
            _, _, *inner = module.split(".")
            if inner and inner[0] in given:  # a module that the room gives, such as `tasks.translation`
                continue
            if inner or (name is not None and name not in given):
                past.append(f"{path.relative_to(PACKAGE.parent)}: {module} {name or ''}")
    assert not past


def test_benchmarks_import_what_there_is() -> None:
    for path in PACKAGE.parent.glob("tests/benchmarks/*.py"):
        for module, name in imported(path):
            assert name is None or hasattr(importlib.import_module(module), name), f"{path.name}: {name}"


@pytest.mark.parametrize("package", LAZY)
def test_lazy_names_are_those_that_type_checkers_see(package: str) -> None:
    module = importlib.import_module(package)
    (block,) = (
        node
        for node in ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = [alias.name for node in imports for alias in node.names]
    assert sorted(seen) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)
    files = {path.stem for path in Path(module.__file__ or "").parent.glob("*.py")}
    given = {alias.name for node in imports if node.module for alias in node.names}
    assert not given & files  # importing such a file would put the module in the place of what it defines
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_the_map_of_contributors_has_every_room_in_this_order() -> None:
    guide = (PACKAGE.parent / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| \S.* \|$", guide, re.MULTILINE) == ROOMS
    there = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if not path.name.startswith("__p")}
    assert set(ROOMS) == {name for name in there if name not in ("__init__", "py.typed", "guides", "skills")}


def test_nothing_imports_a_recipe() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "recipes" for name in names), path
