"""`hf-embinit` as it is installed: the script, the module, without extras, as an extension of `hf`."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomllib
import torch
from builders import ROOT
from builders.command_line import OFFLINE

from hf_embinit import __main__ as cli


def entry_point() -> str:
    with open(ROOT / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]["scripts"]["hf-embinit"]


def test_the_console_script_is_declared_and_quick(tmp_path) -> None:
    module, _, function = entry_point().partition(":")
    assert (module, function) == ("hf_embinit.__main__", "run")
    slow = "('torch', 'transformers', 'numpy', 'datasets', 'matplotlib', 'huggingface_hub')"
    code = (
        f"import sys; sys.argv[0] = '/somewhere/bin/hf-embinit'; from {module} import {function}\n"
        f"try: {function}()\n"
        f"finally: print([m for m in {slow} if m in sys.modules])"
    )
    for words in (["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS)):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, env=OFFLINE, timeout=120
        )
        assert done.returncode == 0 and done.stdout.endswith("[]\n"), (words, done.stdout[-300:], done.stderr)
    done = subprocess.run(
        [sys.executable, "-c", code, "list", "glove"],
        capture_output=True,
        text=True,
        env=OFFLINE,
        timeout=120,
    )
    assert "transformers" not in done.stdout.splitlines()[-1]


def test_as_a_module_and_with_a_reader_that_stops(tmp_path) -> None:
    command = f"{shlex.quote(sys.executable)} -m hf_embinit list | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=OFFLINE, timeout=200, cwd=tmp_path
    )
    assert done.stdout == "141\n" and done.stderr == ""


EXTRAS = """
import json, re, sys, tomllib
from pathlib import Path
project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
lines = [line for extra in ("recipes", "words") for line in project["optional-dependencies"][extra]]
extras = {re.split("[<>=]", line)[0] for line in lines} - {"hf-embinit[words]", "transformers"}
names = {"pyyaml": "yaml", "scikit-learn": "sklearn", "markdown-it-py": "markdown_it"}
for name in extras - {"pyyaml", "jinja2"}:  # what the others need anyway
    sys.modules[names.get(name, name)] = None
from hf_embinit.__main__ import main
print(json.dumps([main(words) for words in json.loads(sys.argv[2])]))
"""


def test_without_the_packages_of_the_recipes(model, vectors, tmp_path) -> None:
    out = ["--output_dir", str(tmp_path / "o")]
    lines = [
        ["init", str(model), "--init", "pretrained", "--vectors", str(vectors), *out],
        ["expand", str(model), "--tokens", "aragorn", "--dry_run"],
        ["surgery", "--list"],
        ["compare", str(model), str(tmp_path / "o"), "--k", "3"],
        ["manifest", str(tmp_path / "o")],
        ["results", str(ROOT / "recipes" / "results")],
        ["analyze", str(vectors), "--k", "3", "--output_dir", str(tmp_path / "report")],
    ]
    done = subprocess.run(
        [sys.executable, "-c", EXTRAS, str(ROOT / "pyproject.toml"), json.dumps(lines)],
        capture_output=True, text=True, env=OFFLINE, timeout=250, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == json.dumps([0] * 6 + [1]), done.stderr[-2000:]
    assert "error: analyze needs " in done.stderr and "pip install 'hf-embinit[recipes]'" in done.stderr


def install_as_an_extension(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `hf extensions install someone/hf-embinit` does, by the client's own code: only GitHub is played,
    and instead of downloading, pip's console script is made for the package that is here."""
    extensions = pytest.importorskip("huggingface_hub.cli.extensions")
    script_maker = pytest.importorskip("pip._vendor.distlib.scripts").ScriptMaker
    if not hasattr(extensions, "_install_extension"):
        pytest.skip("another version of the client")
    root = home / ".local" / "share" / "hf" / "extensions"

    def github(method: str, url: str, **_: Any) -> Any:
        if not url.endswith("/HEAD/pyproject.toml"):
            raise OSError(
                f"404: {url}"
            )  # such as /HEAD/hf-embinit: the repository has no executable of that name
        return argparse.Namespace(text=(ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if command[-1] != "https://github.com/someone/hf-embinit/archive/HEAD.zip":
            return subprocess.CompletedProcess(command, 1)
        python = root / "hf-embinit" / "venv" / "bin" / "python"
        (packages,) = (root / "hf-embinit" / "venv" / "lib").glob("python*/site-packages")
        here = Path(torch.__file__).parent.parent
        (packages / "here.pth").write_text(f"{ROOT}\n{here}\n")
        maker = script_maker(None, str(python.parent))
        maker.executable, maker.variants = str(python), {""}
        maker.make(f"hf-embinit = {entry_point()}")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(extensions, "EXTENSIONS_ROOT", root)
    monkeypatch.setattr(extensions, "_github_request", github)
    monkeypatch.setattr(extensions, "_fetch_latest_commit_sha", lambda **_: "0" * 40)
    monkeypatch.setattr(extensions.shutil, "which", lambda name: None)  # no uv
    builder = extensions.venv.EnvBuilder
    monkeypatch.setattr(
        extensions.venv, "EnvBuilder", lambda with_pip, symlinks: builder(with_pip=False, symlinks=symlinks)
    )
    monkeypatch.setattr(extensions.subprocess, "run", pip)
    manifest = extensions._install_extension(owner="someone", repo_name="hf-embinit", short_name="embinit")
    monkeypatch.undo()
    assert manifest.type == "python" and "initialisers" in manifest.description
    return root / "hf-embinit"


@pytest.mark.skipif(os.name == "nt", reason="the layout of a POSIX virtual environment")
def test_as_an_extension_of_hf(tmp_path, monkeypatch) -> None:
    assert not (ROOT / "hf-embinit").exists()  # the client would take such a file for the whole extension
    folder = install_as_an_extension(tmp_path, monkeypatch)
    assert json.loads((folder / "manifest.json").read_text())["executable_path"].endswith(
        "venv/bin/hf-embinit"
    )
    env = {
        **OFFLINE,
        "HOME": str(tmp_path),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    }
    env.pop("PYTHONPATH")
    hf = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'hf'; from huggingface_hub.cli.hf import main; main()",
    ]

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*hf, *words], capture_output=True, text=True, env=env, timeout=200, cwd=tmp_path
        )

    done = call("embinit", "list", "glove*")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "glove",
        "glove_orthogonal",
        "glove_shuffled",
        "glove_xavier",
    ]
    assert call("embinit", "list", "--colour").returncode == 2
    assert "embinit" in call("--help").stdout


def test_the_installed_command(tmp_path) -> None:
    script = Path(sys.executable).with_name("hf-embinit")
    if not script.exists():
        pytest.skip("the package is not installed")
    done = subprocess.run(
        [script, "list", "glove_x*", "--json"], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [record["name"] for record in json.loads(done.stdout)] == ["glove_xavier"]
