"""The versions that `pyproject.toml` declares are those that `.ci/versions` tests."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest
import tomllib
import yaml
from builders import ROOT
from packaging.requirements import Requirement
from packaging.version import Version

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SCRIPT = (ROOT / ".ci" / "versions").read_text(encoding="utf-8")
BASE = {r.name: r for r in map(Requirement, PROJECT["project"]["dependencies"])}
STACKS = {
    line.split()[0]: {r.name: r for r in map(Requirement, line.split()[1:])}
    for line in re.findall(r'^STACKS="\n(.*?)^"', SCRIPT, re.MULTILINE | re.DOTALL)[0].splitlines()
}


def bound(requirement: Requirement, operator: str) -> Version:
    (found,) = (s.version for s in requirement.specifier if s.operator == operator)
    return Version(found)


def test_the_base_install_needs_five_packages() -> None:
    assert set(BASE) == {"torch", "transformers", "huggingface_hub", "safetensors", "numpy"}


@pytest.mark.parametrize("name", BASE)
def test_the_lowest_version_is_tested_and_no_cap_is_below_the_next_major_version(name: str) -> None:
    lowest, tested = bound(BASE[name], ">="), bound(STACKS["lowest"][name], "==")
    assert lowest.release[:2] == tested.release[:2] and lowest <= tested
    installed = Version(version(name))
    caps = [Version(s.version) for s in BASE[name].specifier if s.operator not in (">=",)]
    assert all(cap == Version(str(installed.major + 1)) for cap in caps)


def test_each_stack_may_be_installed_beside_this_package() -> None:
    for stack, pins in STACKS.items():
        for pin in pins.values():
            if pin.name in BASE and pin.specifier:
                assert BASE[pin.name].specifier.contains(bound(pin, "==")), (stack, pin)


def test_the_workflow_runs_every_stack_and_the_oldest_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "versions.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["core"]["strategy"]["matrix"]
    assert matrix["stack"] == list(STACKS)
    pythons = {*matrix["python"], *(entry["python"] for entry in matrix["include"])}
    oldest = min(pythons, key=Version)
    assert PROJECT["project"]["requires-python"] == f">={oldest}"
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"


def test_every_core_test_is_there() -> None:
    (core,) = re.findall(r'^CORE="(.*?)"', SCRIPT, re.MULTILINE | re.DOTALL)
    assert all((ROOT / path).exists() for path in core.split())
    files = [file for path in map(ROOT.joinpath, core.split()) for file in (path, *path.glob("test_*.py"))]
    texts = {file.name: file.read_text(encoding="utf-8") for file in files if file.is_file()}
    assert len(texts) > 20
    skipped = (
        r'importorskip\("hf_embinit.models"|needs\("transformers>=5.6"\)'  # which the vanilla models need
    )
    assert not [
        n for n, text in texts.items() if "hf_embinit.models" in text and not re.search(skipped, text)
    ]
