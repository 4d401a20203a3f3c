"""What a run checks before it begins."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainingArguments

from hf_embinit.training import loop
from hf_embinit.training.callbacks import tracker_links

CPU = {"architecture": "x86_64", "cpu_name": "a CPU", "avx512_bf16": False, "amx_bf16": False}


@pytest.mark.parametrize(
    "bf16, cpu, warned",
    [
        (True, CPU, True),
        (False, CPU, False),
        (True, {**CPU, "avx512_bf16": True}, False),
        (True, {**CPU, "amx_bf16": True}, False),
        (True, {"architecture": "aarch64"}, False),
    ],
)
def test_bfloat16_that_a_cpu_only_emulates_is_said(
    tmp_path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bf16, cpu, warned
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: cpu)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=bf16, report_to=[])
    with caplog.at_level(logging.WARNING):
        loop._warn_of_emulated_bf16(args)
    assert ("--bf16" in caplog.text) is warned


def test_pages_of_trackers_are_known_where_they_have_one(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def links(*trackers: str, space: str | None = None, url: str | None = None) -> dict[str, str]:
        monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=SimpleNamespace(url=url)))
        args = TrainingArguments(output_dir=str(tmp_path), report_to=[], trackio_space_id=space)
        args.report_to = list(trackers)
        return tracker_links(args)

    page = "https://wandb.ai/me/hf_embinit/runs/1"
    assert links("wandb", url=page) == {"wandb": page} and links("wandb") == {} == links(url=page)
    assert links("trackio", space="me/curves") == {"trackio": "https://huggingface.co/spaces/me/curves"}
    assert links("trackio", space="curves") == {} == links("trackio")  # whose space it is, the Hub knows


@pytest.mark.parametrize(
    ("variable", "size", "threads"),
    [(None, 1000, 1), (None, loop._MANY_PARAMETERS, 3), ("2", 1000, 2)],
    ids=["small", "large", "OMP_NUM_THREADS"],
)
def test_a_small_model_has_one_thread_unless_told(tmp_path, monkeypatch, variable, size, threads) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(loop, "_THREADS", 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    try:
        torch.set_num_threads(2)
        loop.choose_threads(args, size)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
