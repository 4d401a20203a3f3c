"""A file imports only from floors below its own; nothing imports a recipe; importing the package is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "hf_embinit"
FLOORS = {
    "errors": 0,
    "registry": 0.5,
    "moments": 0.5,
    "hub_access": 0.5,
    "tokens": 0.5,
    "vectors": 1,
    "measures": 1,
    "manifest": 1,
    "initializers": 2,
    "table_slots": 2.25,
    "table_discovery": 2.5,
    "tables": 3,
    "models": 4,
    "surgery": 4.5,
    "initialization": 4,
    "new_rows": 4,
    "patching": 4.5,
    "vocabulary": 4.5,
    "new_row_training": 4.2,
    "tasks": 5,
    "runs": 6,
    "commands": 7,
    "__main__": 7.5,
}
"""The house's floors; a half is a step within one."""


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms of the package that a file imports from, wherever in the file."""
    found = set()
    parts = ("hf_embinit", *path.relative_to(PACKAGE).parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            names = [module] if node.module or not node.level else []
            names += [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            pieces = name.split(".")
            if pieces[0] == "hf_embinit" and len(pieces) > 1:
                found.add(pieces[1])
    return found


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    here = room(path)
    assert here in FLOORS, f"{here} has no floor"
    for other in imports(path) & set(FLOORS):
        if other != here:
            assert FLOORS[other] < FLOORS[here], (
                f"{path.relative_to(PACKAGE)} (floor {FLOORS[here]}) imports {other} (floor {FLOORS[other]})"
            )


def test_nothing_imports_a_recipe() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "recipes" for name in names), path


def test_import_is_light_and_patches_nothing() -> None:
    code = (
        "import sys; from transformers import PreTrainedModel as P; "
        "before = P.resize_token_embeddings, P._init_weights; loaded = set(sys.modules); "
        "import hf_embinit; "
        "assert before == (P.resize_token_embeddings, P._init_weights); "
        "heavy = [m for m in ('datasets', 'spacy', 'matplotlib', 'sklearn', 'scipy', 'evaluate', 'peft', "
        "'sacrebleu') "
        "if m in set(sys.modules) - loaded]; assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
