"""The run record and the rules of a run folder."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from builders.records import make_record as whole_record

from hf_embinit.errors import RunFolderError
from hf_embinit.records import public_record, shorten, unlock_folder
from hf_embinit.records.folder import keep_inputs, list_checkpoints, prepare_run_folder
from hf_embinit.records.record import (
    RunRecord,
    collect_versions,
    device_name,
    history_from_log,
    is_finished,
    read_record,
    write_json,
    write_record,
)
from hf_embinit.studies.scores import has_diverged


def make_record(**changes) -> RunRecord:
    """A record with values that JSON does not know."""
    values = {
        "arguments": {"learning_rate": 2e-4, "output_dir": Path("runs/a"), "lr": np.float32(0.5)},
        "metrics": {"test_bleu": 61.2, "test_loss": float("nan")},
        "runtime": {"train_seconds": 1.5, "tokens_per_second": torch.tensor(100.0), "device": "cpu"},
    }
    return whole_record(**{**values, **changes})


def test_record_has_the_documented_fields():
    fields = (
        "task dataset init tokenizer seed arguments metrics best_epoch history parameters "
        "embedding_statistics coverage runtime versions signature data diverged"
    )
    assert set(make_record().to_dict()) == set(fields.split())


def test_record_round_trip(tmp_path):
    path = write_record(tmp_path / "run", make_record())
    assert path.name == "results.json" and is_finished(tmp_path / "run")
    record = read_record(tmp_path / "run")
    assert record == read_record(path)
    assert record.arguments == {"learning_rate": 2e-4, "output_dir": "runs/a", "lr": 0.5}
    assert record.metrics == {"test_bleu": 61.2, "test_loss": None}  # JSON has no NaN
    assert record.runtime["tokens_per_second"] == 100.0
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_record_is_written_once(tmp_path):
    write_record(tmp_path, make_record())
    with pytest.raises(RunFolderError, match="written once"):
        write_record(tmp_path, make_record(seed=4))
    assert read_record(tmp_path).seed == 3


def test_write_is_all_or_nothing(tmp_path, monkeypatch):
    write_json(tmp_path / "x.json", {"a": 1})

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_json(tmp_path / "x.json", {"a": 2})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_unwritable_values_are_named(tmp_path):
    with pytest.raises(TypeError, match="cannot hold a object"):
        write_record(tmp_path, make_record(arguments={"x": object()}))
    assert not is_finished(tmp_path)


@pytest.mark.parametrize(
    "text, message", [(None, "not finished"), ("{", "is no JSON"), ('{"a": 1}', "unknown")]
)
def test_unreadable_records(tmp_path, text, message):
    if text is not None:
        (tmp_path / "results.json").write_text(text)
    with pytest.raises(RunFolderError, match=message):
        read_record(tmp_path)


def test_a_record_from_before_the_digests_of_data_reads(tmp_path):
    path = write_record(tmp_path / "run", make_record())
    values = json.loads(path.read_text())
    del values["data"]
    path.write_text(json.dumps(values))
    assert read_record(path).data == {}


def test_history_from_a_trainer_log():
    log = [
        {"loss": 4.0, "epoch": 0.5, "step": 5},
        {"loss": 2.0, "epoch": 1.0, "step": 10, "grad_norm": 1.0},
        {"eval_loss": 2.5, "eval_bleu": 7.0, "eval_runtime": 1.0, "epoch": 1.0, "step": 10},
        {"eval_loss": 2.25, "epoch": 2.0, "step": 20},
        {"test_loss": 2.0, "epoch": 2.0, "step": 20},
        {"train_runtime": 3.0, "epoch": 2.0, "step": 20},
    ]
    assert history_from_log(log) == [
        {"epoch": 1.0, "step": 10, "train_loss": 3.0, "validation_loss": 2.5, "validation_bleu": 7.0},
        {"epoch": 2.0, "step": 20, "validation_loss": 2.25},
    ]


def test_versions_and_device():
    versions = collect_versions()
    assert versions["torch"] == torch.__version__ and {"python", "hf_embinit", "transformers"} <= set(
        versions
    )
    assert all(isinstance(v, str) and v for v in versions.values())
    if "commit" in versions:
        assert len(versions["commit"].removesuffix("-dirty")) == 40
    assert "cores" in device_name("cpu")


def make_checkpoint(folder: Path, step: int, state: str | None = "{}") -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint / name).write_bytes(b"x")
    if state is not None:
        (checkpoint / "trainer_state.json").write_text(state)
    return checkpoint


def test_fresh_folder(tmp_path):
    state = prepare_run_folder(tmp_path / "a" / "b", None, {"init": "xavier"})
    assert state.checkpoint is None and state.folder.is_dir()
    assert json.loads((state.folder / "arguments.json").read_text()) == {"init": "xavier"}
    assert prepare_run_folder(tmp_path / "a" / "b", None, {"init": "glove"}).checkpoint is None


@pytest.mark.parametrize("resume", [None, True, "last"])
def test_finished_folder_is_refused(tmp_path, resume):
    write_record(tmp_path, make_record())
    with pytest.raises(RunFolderError, match="finished run"):
        prepare_run_folder(tmp_path, resume)


def test_unfinished_folder_needs_the_flag(tmp_path):
    make_checkpoint(tmp_path, 9)
    last = make_checkpoint(tmp_path, 10)
    for no in (None, False, "false"):
        with pytest.raises(RunFolderError, match=r"checkpoint-10.*--resume_from_checkpoint true"):
            prepare_run_folder(tmp_path, no)
    for yes in (True, "True", "last"):
        assert prepare_run_folder(tmp_path, yes).checkpoint == str(last)
    assert prepare_run_folder(tmp_path, str(tmp_path / "checkpoint-9")).checkpoint == str(
        tmp_path / "checkpoint-9"
    )


def test_half_written_files_are_removed(tmp_path):
    whole = make_checkpoint(tmp_path, 9)
    torn = [make_checkpoint(tmp_path, 10, state=None), make_checkpoint(tmp_path, 11, state='{"epoch": ')]
    (tmp_path / ".results.json.abc.tmp").write_text("{")
    assert list_checkpoints(tmp_path) == [whole]
    # another rank looks, and leaves them alone
    assert prepare_run_folder(tmp_path, True, is_main_process=False).checkpoint == str(whole)
    assert all(t.exists() for t in torn)
    assert prepare_run_folder(tmp_path, True).checkpoint == str(whole)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "checkpoint-9"]


def test_a_run_that_is_alive_is_in_use_and_not_unfinished(tmp_path):
    make_checkpoint(tmp_path, 9)
    code = "import pathlib, sys, hf_embinit.records.lock as l; l.lock_folder(pathlib.Path(sys.argv[1])); print(1, flush=True); input()"  # noqa: E501
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], text=True, **pipes) as other:
        assert other.stdout.readline() == "1\n"
        for resume in (None, True):
            with pytest.raises(RunFolderError, match=f"is in use by another run \\(process {other.pid} on"):
                prepare_run_folder(tmp_path, resume)
        other.communicate("\n")
    with pytest.raises(RunFolderError, match="holds an unfinished run"):
        prepare_run_folder(tmp_path, None)


def test_only_half_written_checkpoints_start_afresh(tmp_path, caplog):
    make_checkpoint(tmp_path, 5, state=None)
    assert prepare_run_folder(tmp_path, True).checkpoint is None
    assert "starting from step 0" in caplog.text
    assert list(tmp_path.glob("checkpoint-*")) == []


def test_bad_checkpoint_argument(tmp_path):
    make_checkpoint(tmp_path, 9)
    with pytest.raises(RunFolderError, match=r"nowhere is not a complete checkpoint.*checkpoint-9"):
        prepare_run_folder(tmp_path, "nowhere")


def test_resuming_with_other_inputs_is_refused(tmp_path):
    inputs = {"train split": "1a", "vocabulary": "2b"}
    keep_inputs(tmp_path, inputs)
    checkpoint = str(make_checkpoint(tmp_path, 9))
    keep_inputs(tmp_path, inputs, checkpoint)
    for what in ("train split", "vectors, source"):  # another text, and vectors that were not there
        with pytest.raises(RunFolderError, match=f"'{what}' of this command .* bring them back"):
            keep_inputs(tmp_path, inputs | {what: "3c"}, checkpoint)
    assert json.loads((tmp_path / "inputs.json").read_text()) == inputs
    (tmp_path / "inputs.json").unlink()  # begun by an older version, which did not keep them
    keep_inputs(tmp_path, inputs, checkpoint)
    keep_inputs(tmp_path / "elsewhere", inputs, checkpoint)
    with pytest.raises(RunFolderError, match="train split"):  # the folder of the checkpoint counts
        keep_inputs(tmp_path / "elsewhere", inputs | {"train split": "3c"}, checkpoint)


def test_resuming_with_other_arguments_is_refused(tmp_path):
    arguments = {"init": "xavier", "lr": 2e-4, "vectors": None}
    prepare_run_folder(tmp_path, None, arguments)
    make_checkpoint(tmp_path, 9)
    prepare_run_folder(tmp_path, True, arguments)
    with pytest.raises(RunFolderError, match=r"--init is 'glove', .* had 'xavier'"):
        prepare_run_folder(tmp_path, True, {**arguments, "init": "glove"})
    assert math.isclose(json.loads((tmp_path / "arguments.json").read_text())["lr"], 2e-4)
    for damage in (lambda path: path.write_text("{"), Path.unlink):
        damage(tmp_path / "arguments.json")
        with pytest.raises(
            RunFolderError, match=r"arguments\.json .*whether this command goes on with the run"
        ):
            prepare_run_folder(tmp_path, True, arguments)


def test_output_dir_is_a_file(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        prepare_run_folder(tmp_path / "x")


def test_a_file_has_the_permissions_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {})
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "text, told",
    [
        ("/home/alice/t.json", "t.json"),
        ("/home/alice/secret data/a\nb", "a\nb"),
        ("file:///home/alice/t.json", "t.json"),
        ("see /home/alice/x and ~/y/z.", "see x and z."),
        ("see file:///home/alice/x", "see x"),
        ('{"path": "/home/alice/t.json"}', '{"path": "t.json"}'),
        ("[C:\\Users\\alice\\t.json]", "[t.json]"),
        ("with --data=/mnt/alice/d", "with --data=d"),
        ("https://wandb.ai/alice/project/runs/1", "https://wandb.ai/alice/project/runs/1"),
        ("from hf://datasets/a/b and s3://c/d/e", "from hf://datasets/a/b and s3://c/d/e"),
        ("user/name", "user/name"),
        ("and/or, 1/2/3, </s>, nrefs:1|case:mixed", "and/or, 1/2/3, </s>, nrefs:1|case:mixed"),
    ],
)
def test_of_a_local_path_the_last_part_is_published(text, told):
    assert shorten(text) == shorten([{"a": text}])[0]["a"] == told
    assert shorten(told) == told


def test_no_token_is_published():
    record = make_record(arguments={"hub_token": "hf_x", "wandb_api_key": "x", "eos_token": "</s>"})
    assert public_record(record).arguments == {"eos_token": "</s>"}


def test_a_loss_that_only_the_test_saw_is_a_divergence_too() -> None:
    lost = whole_record(metrics={"test_loss": math.nan, "test_bleu": 31.0})
    assert lost.diverged and has_diverged({"history": [], "metrics": {"test_loss": None}})
    assert not whole_record().diverged and not has_diverged(whole_record().to_dict())


def test_a_number_that_others_wrote_as_nan_is_none(tmp_path: Path) -> None:
    write_record(tmp_path, whole_record())
    text = (tmp_path / "results.json").read_text()
    values = json.loads(text)
    values["metrics"] |= {"test_bleu": math.nan, "test_loss": math.inf}
    (tmp_path / "results.json").write_text(json.dumps(values))
    record = read_record(tmp_path)
    assert record.metrics["test_bleu"] is None and record.diverged


def test_what_a_run_left_that_ended_before_its_first_checkpoint_is_no_part_of_the_next(
    tmp_path: Path,
) -> None:
    prepare_run_folder(tmp_path, None, {"seed": 1})
    for name in ("init/target_vocab.json", "figures/old.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("of the first")
    unlock_folder(tmp_path)
    prepare_run_folder(tmp_path, None, {"seed": 2})
    assert not (tmp_path / "init").exists() and not (tmp_path / "figures").exists()
    assert (tmp_path / "notes.txt").read_text() == "of the first"
    unlock_folder(tmp_path)
