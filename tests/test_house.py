"""Sizes that keep the code readable: of functions, of files, and of what two recipes have in common."""

from __future__ import annotations

import ast
import re
from itertools import combinations
from pathlib import Path

TOP = Path(__file__).parent.parent
FILES = sorted([*TOP.glob("hf_embinit/**/*.py"), *TOP.glob("recipes/*.py")])
LONGEST_FUNCTION = 80
LONGEST_FILE = 450
LONGEST_SHARED_BLOCK = 5
LONGEST_RECIPE = 150

LONG_FUNCTIONS: set[str] = set()
LONG_FILES: set[str] = set()
SHARED_BLOCKS: set[tuple[str, str]] = set()


def long_functions(files: list[Path]) -> set[str]:
    """`file: function` of every function of more than `LONGEST_FUNCTION` lines, its docstring counted."""
    found = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION:
                found.add(f"{path.relative_to(TOP).as_posix()}: {node.name}")
    return found


def blocks(path: Path, lines: int) -> set[tuple[str, ...]]:
    """Every run of so many lines of a file, without indentation, blank lines, comments and imports."""
    text = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    text = [line for line in text if line and not line.startswith(("#", "from ", "import "))]
    return {tuple(text[i : i + lines]) for i in range(len(text) - lines + 1)}


def test_functions_are_short() -> None:
    assert not long_functions(FILES) - LONG_FUNCTIONS


def test_files_are_short() -> None:
    long = {p for p in FILES if len(p.read_text(encoding="utf-8").splitlines()) > LONGEST_FILE}
    assert not {p.relative_to(TOP).as_posix() for p in long} - LONG_FILES


def test_recipes_are_short() -> None:
    recipes = sorted(TOP.glob("recipes/*.py"))
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in recipes}
    assert len(lines) > 5 and not {name: n for name, n in lines.items() if n > LONGEST_RECIPE}


def test_one_writer_of_markdown_tables() -> None:
    files = [*FILES, *TOP.glob("hf_embinit/**/*.jinja")]
    assert len(files) > len(FILES)
    with_rules = {p.name for p in files if re.search(r"\|\s?-{3}|-{3}\s?\|", p.read_text(encoding="utf-8"))}
    assert not with_rules, "display.markdown_table writes the rule below a header"


def test_recipes_share_no_block() -> None:
    of = {path.name: blocks(path, LONGEST_SHARED_BLOCK + 1) for path in sorted(TOP.glob("recipes/*.py"))}
    shared = {(a, b): sorted(of[a] & of[b]) for a, b in combinations(of, 2)}
    assert not {pair: found for pair, found in shared.items() if found and pair not in SHARED_BLOCKS}
