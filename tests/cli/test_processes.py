"""Every command that reads a checkpoint, in a process of its own, on a run folder of a vanilla model.

`prune`, `retokenize` and `explain` want a tokenizer.json, so they read a GPT-2.

One process imports torch, transformers and PEFT, and is forked for each command before anything of this
package is imported: no model class of ours is registered beforehand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders.command_line import OFFLINE
from builders.run_folders import run_folder
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

COMMANDS = {
    "analyze": "run --k 2 --sample 20 --lengths 8 --output_dir report",
    "compare": "run run/init --k 2",
    "manifest": "run",
    "results": "run",
    "doctor": "run --fix fixed",
    "expand": "run --tokens zyxomma --output_dir expanded",
    "prune": "gpt2 --keep Ġthe --output_dir pruned",
    "merge": "run adapter --output_dir merged",
    "retokenize": "gpt2 bert --init fvt --output_dir other",
    "explain": "other dog",
    "init": "run --init normal --output_dir started",
    "surgery": "run clean_embeddings --output_dir changed",
    "cards": "run cards",
    "publish": "run user/name --dry_run",
}
CODES = {"doctor": (0, 3)}
"""Exit codes of those that need not end with 0."""
WRITTEN = ("report", "fixed", "expanded", "pruned", "merged", "other", "started", "changed", "cards")
DRIVER = """
import json, os, sys
import torch, transformers, transformers.models.auto.modeling_auto, matplotlib.pyplot, scipy.stats
import peft, transformers.modeling_utils, transformers.trainer_utils, transformers.generation
assert not any(name.startswith("hf_embinit") for name in sys.modules)
codes = {}
for name, words in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        for number, stream in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{stream}", os.O_WRONLY | os.O_CREAT), number)
        from hf_embinit.__main__ import main
        code = 99
        try:
            code = main([name, *words.split()])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    codes[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(codes))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_every_command_reads_a_run_folder_of_ours(tmp_path: Path) -> None:
    for name, kind in (("run", "language_modeling"), ("gpt2", "gpt2"), ("bert", "bert")):
        run_folder(tmp_path / name, kind)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    get_peft_model(base, LoraConfig(r=2, target_modules="all-linear")).save_pretrained(tmp_path / "adapter")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(COMMANDS)],
        env={**OFFLINE, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    codes = json.loads(done.stdout)
    for name in COMMANDS:
        out, err = ((tmp_path / f"{name}.{stream}").read_text() for stream in ("out", "err"))
        assert codes[name] in CODES.get(name, (0,)), (name, out, err)
        assert "custom code" not in err and "Traceback" not in err, (name, err)
        assert out.strip(), name
    assert all(list((tmp_path / name).iterdir()) for name in WRITTEN)


@pytest.mark.parametrize("json_flag", [[], ["--json"]], ids=["text", "json"])
def test_a_terminal_without_the_letters_gets_escapes(tmp_path: Path, json_flag: list[str]) -> None:
    """What was done is saved by then, and must not end in a traceback."""
    run_folder(tmp_path / "gpt2", "gpt2")
    words = ["expand", "gpt2", "--tokens", "Фрукт", "--output_dir", "grown", *json_flag]
    done = subprocess.run(
        [sys.executable, "-m", "hf_embinit", *words],
        env={**OFFLINE, "PYTHONIOENCODING": "ascii"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "\\u0424" in done.stdout and (tmp_path / "grown" / "config.json").is_file()
    if json_flag:
        assert "Фрукт" in str(json.loads(done.stdout))


def test_a_closed_stdout_is_no_error() -> None:
    done = subprocess.run(
        ["bash", "-c", '"$0" -m hf_embinit list >&-', sys.executable],
        env=OFFLINE,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr
