"""`hf-embinit train`: recipes from a clone, and from a package that was installed without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from builders import ROOT
from builders.command_line import OFFLINE

from hf_embinit import __main__ as cli
from hf_embinit.cli.train import recipe_files


def test_a_clone_has_the_recipes(capsys) -> None:
    assert {path.parent for path in recipe_files().values()} == {ROOT / "recipes"}
    assert cli.main(["train", "translat"]) == 1
    assert "Unknown recipe 'translat'. Did you mean: translate?" in capsys.readouterr().err


def test_without_the_packages_that_training_needs(capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert cli.main(["train", "translate"]) == 1
    assert capsys.readouterr().err == "error: train needs accelerate: pip install 'hf-embinit[recipes]'\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The layout of a wheel, as `pyproject.toml` has it: every file of the package, and the recipes in it."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    assert build["include"] == ["/hf_embinit", "/recipes/*.py"]
    folder = tmp_path_factory.mktemp("site")
    for source, target in {**build["targets"]["wheel"]["sources"], "hf_embinit": "hf_embinit"}.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for path in (ROOT / source).iterdir():
            if source == "hf_embinit" or path.suffix == ".py":
                (folder / target / path.name).symlink_to(path)
    return folder


BOTH_WAYS = """
import runpy, sys
for module, *more in (["hf_embinit", "train", "translate"], ["hf_embinit.recipes.translate"]):
    sys.argv = [module, *more, "--help"]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, (module, end.code)
"""


def test_a_wheel_has_them_too(installed) -> None:
    assert (installed / "hf_embinit" / "recipes" / "translate.py").is_file()
    done = subprocess.run(
        [sys.executable, "-c", BOTH_WAYS],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=installed,
        env={**OFFLINE, "PYTHONPATH": str(installed)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    starts = [line.split()[0].rstrip(",") for line in done.stdout.splitlines() if line.startswith("  --")]
    assert starts.count("--init") == starts.count("--target_vectors") == 2
