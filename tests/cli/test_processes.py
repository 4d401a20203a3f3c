"""Every command that reads a checkpoint, as a process of its own, on a run folder of a vanilla model."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from builders.command_line import OFFLINE
from builders.run_folders import run_folder

COMMANDS = {
    "analyze": "run --k 2 --sample 20 --lengths 8 --output_dir report",
    "compare": "run run/init --k 2",
    "manifest": "run",
    "results": "run",
    "doctor": "run --fix fixed",
    "expand": "run --tokens zyxomma --output_dir expanded",
    "prune": "run --keep dog --output_dir pruned",
    "init": "run --init normal --output_dir started",
    "surgery": "run clean_embeddings --output_dir changed",
    "cards": "run cards",
    "publish": "run user/name --dry_run",
}
WRITTEN = ["report", "fixed", "expanded", "started", "changed", "cards"]


def test_every_command_reads_a_run_folder_of_ours(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", "language_modeling")

    def call(name: str) -> tuple[str, subprocess.CompletedProcess[str]]:
        words = [sys.executable, "-m", "hf_embinit", name, *COMMANDS[name].split()]
        return name, subprocess.run(words, capture_output=True, text=True, env=OFFLINE, cwd=tmp_path)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, done in pool.map(call, COMMANDS):
            assert "Traceback" not in done.stderr and "custom code" not in done.stderr, (name, done.stderr)
            if name == "prune":
                assert done.returncode == 1 and "keeps its vocabulary in no tokenizer.json" in done.stderr
                continue
            assert done.returncode in ((0, 3) if name == "doctor" else (0,)), (name, done.stdout, done.stderr)
            assert done.stdout.strip(), name
    assert all(list((tmp_path / name).iterdir()) for name in WRITTEN)
