"""Wheel and sdist as they are published: built here, installed in an environment without them, and driven."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import tomllib
import torch
import yaml
from builders import ROOT
from builders.command_line import OFFLINE
from packaging.requirements import Requirement

import hf_embinit

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPES = sorted((ROOT / "recipes").glob("*.py"))


def build(source: Path, target: str, folder: Path) -> Path:
    """A sdist or wheel of a tree, made in `folder` by the build backend alone, which needs no network."""
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    code = (
        f"import os; os.chdir({str(source)!r}); from hatchling import build; "
        f"print(build.build_{target}({str(folder)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """The wheel that pip makes of the sdist."""
    shutil.unpack_archive(sdist, sdist.parent / "unpacked")
    (tree,) = (sdist.parent / "unpacked").iterdir()
    return build(tree, "wheel", sdist.parent)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with torch and that wheel, found by the name in a recipe's first lines."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    words = ["install", "-q", "--no-deps", "--no-index", "--find-links", str(wheel.parent)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            *words,
            *script_header(RECIPES[0])["dependencies"],
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    return python


def script_header(recipe: Path) -> dict:
    """What uv and HF Jobs read (PEP 723)."""
    text = recipe.read_text(encoding="utf-8")
    (found,) = re.findall(r"(?m)^# /// script\n((?:#(?: .*)?\n)+?)# ///$", text)
    return tomllib.loads(
        "".join(line.removeprefix("# ").removeprefix("#") for line in found.splitlines(True))
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_first_lines_of_a_recipe_name_what_it_imports(recipe: Path) -> None:
    header = script_header(recipe)
    wanted = {r.name: r for r in map(Requirement, header["dependencies"])}
    ours = wanted.pop(PROJECT["name"])
    assert ours.extras == {"recipes"} and not ours.specifier and ours.url is None
    imported = set(re.findall(r"(?m)^\s*(?:from|import) (\w+)", recipe.read_text(encoding="utf-8")))
    everything = map(Requirement, (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["recipes"]))
    brought = (
        {r.name for r in everything} | {*wanted, "hf_embinit", "tqdm", "__future__"} | sys.stdlib_module_names
    )
    assert imported <= brought, f"{recipe.name} imports {imported - brought}"
    assert set(wanted) <= imported


def test_the_sdist_and_the_tree_make_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(build(ROOT, "wheel", tmp_path)) as a, zipfile.ZipFile(wheel) as b:
        assert {n: a.getinfo(n).CRC for n in a.namelist()} == {n: b.getinfo(n).CRC for n in b.namelist()}
        names = set(b.namelist())
    tracked = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "hf_embinit").rglob("*.*") if path.is_file()
    }
    assert {name for name in tracked if "__pycache__" not in name} <= names
    assert {f"hf_embinit/recipes/{path.name}" for path in RECIPES} <= names
    assert not [
        name for name in names if name.startswith(("tests", "model_cards")) or "results" in name.split("/")
    ]


def test_it_is_driven_where_nothing_else_of_it_is(installed: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in OFFLINE.items() if name != "PYTHONPATH"}

    def call(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=200, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    command = str(installed.with_name("hf-embinit"))
    where = call(str(installed), "-c", "import hf_embinit; print(hf_embinit.__file__)")
    assert where.startswith(str(installed.parent.parent)), where
    assert call(command, "--version") == f"hf-embinit {PROJECT['version']}\n"
    assert "glove_xavier" in call(command, "list", "glove*")
    assert "  --target_vectors" in call(command, "train", "translate", "--help")


def test_one_version_in_all_places() -> None:
    citation = yaml.safe_load((ROOT / ".github" / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / ".github" / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"(?m)^## (\d[\w.]*)", changes)[0]
    assert {PROJECT["version"], hf_embinit.__version__, citation["version"], newest} == {PROJECT["version"]}
    assert citation["license"] == PROJECT["license"] and {"title", "authors", "message"} <= set(citation)


def test_the_workflows_run_the_gate_and_publish_without_a_token() -> None:
    flows = {
        name: yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
        for name in ("test", "release", "versions")
    }
    assert [step["run"] for step in flows["test"]["jobs"]["gate"]["steps"] if "run" in step] == [
        "bash .ci/run"
    ]
    assert flows["test"]["jobs"]["versions"]["uses"] == "./.github/workflows/versions.yml"
    assert (
        "workflow_call" in flows["versions"][True] and "workflow_call" in flows["test"][True]
    )  # `on` is a bool
    jobs = flows["release"]["jobs"]
    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("test", "build")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
