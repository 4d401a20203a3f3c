"""What a run checks before it begins."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import TrainingArguments

from hf_embinit.training import loop

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
