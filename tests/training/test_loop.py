"""What a run checks before it begins."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, TrainingArguments

from hf_embinit.errors import InvalidArgumentError, RunFolderError
from hf_embinit.records import unlock_folder
from hf_embinit.tasks import get_task
from hf_embinit.training import checks, loop
from hf_embinit.training.callbacks import tracker_links
from hf_embinit.training.shared_arguments import BY_LOSS, every_epoch

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
        checks.warn_of_emulated_bf16(args)
    assert ("--bf16" in caplog.text) is warned


@pytest.mark.parametrize(
    ("tracker", "sentence"),
    [
        ("nonsense", "nonsense is not known to transformers; known: .*tensorboard"),
        ("neptune", "neptune is not installed; `pip install neptune`"),
    ],
)
def test_a_tracker_that_cannot_be_used_is_said_before_any_work(tmp_path, tracker, sentence) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    args.report_to = [tracker]
    with pytest.raises(InvalidArgumentError, match=sentence):
        loop._prepare_reports(args)


@pytest.mark.parametrize("metric, higher", [(None, False), ("eval_bleu", True), ("bleu", True)])
def test_the_best_epoch_by_a_score_is_the_highest(tmp_path, metric, higher) -> None:
    chosen = BY_LOSS | ({"metric_for_best_model": metric} if metric else {})
    when = {key: value for key, value in every_epoch().items() if key != "dataloader_pin_memory"}
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], **when, **chosen)
    assert args.greater_is_better is higher


def test_a_run_goes_on_with_the_same_training_alone(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(resume: str | None, **settings: Any) -> None:
        args = TrainingArguments(
            output_dir=str(tmp_path), use_cpu=True, report_to=[], resume_from_checkpoint=resume, **settings
        )
        names = {"dataset": "captions", "init": "xavier", "tokenizer": "words"}
        loop.start(get_task("translation"), args, **names)
        unlock_folder(tmp_path)

    begin(None, learning_rate=1e-3)
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint / name).write_bytes(b"x")
    (checkpoint / "trainer_state.json").write_text("{}")
    begin("last", learning_rate=1e-3, dataloader_num_workers=1, disable_tqdm=True)  # what changes no result
    for flag, value in {"learning_rate": 2e-3, "per_device_train_batch_size": 3, "max_steps": 7}.items():
        with pytest.raises(RunFolderError, match=f"--{flag} is {value}, but the interrupted run"):
            begin("last", **{"learning_rate": 1e-3, flag: value})
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda args: 2))
    with pytest.raises(RunFolderError, match=r"--num_processes is 2, but the interrupted run .* had 1"):
        begin("last", learning_rate=1e-3)


def test_a_run_knows_what_it_reads() -> None:
    """Texts, vectors and the ids of tokens: another order of the text gives the same words other ids."""
    digests = {"train": {"rows": 2, "sha256": "1a"}}
    source = {"digest": "sha256:2b", "name": "v.txt", "revision": None}
    events = [{"tables": [{"side": "shared", "rows": [0, 1], "source": source}]}]
    rows = [{"a": 0, "b": 1}, {"b": 0, "a": 1}]
    found = []
    for ids in rows:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(ids, unk_token="a")))
        found.append(loop._input_digests(SimpleNamespace(digests=digests), events, tokenizer))
    first, second = (one.pop("vocabulary") for one in found)
    assert first != second
    assert found == [{"train split": "1a", "vectors, shared": "2b"}] * 2


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
