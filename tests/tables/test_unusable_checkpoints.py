"""Checkpoints that cannot be read, and what goes wrong half-way: one sentence, and nothing is written."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders.forks import Fork
from builders.tiny_models import V, llama, saved
from safetensors.torch import load_file, save_file

from hf_embinit.errors import (
    DataNotFoundError,
    EmbinitError,
    InvalidArgumentError,
    RunFolderError,
    UnsupportedModelError,
    VectorFileError,
)
from hf_embinit.tables import checkpoint_writing, open_checkpoint, read_checkpoint_files, save_checkpoint


def test_a_quantised_table_is_refused(tmp_path: Path) -> None:
    folder = saved(llama(), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = "model.embed_tokens.weight"
    save_file({**tensors, name: tensors[name].to(torch.float8_e4m3fn)}, folder / "model.safetensors")
    with pytest.raises(
        UnsupportedModelError, match=r"embed_tokens.* is quantised \(F8_E4M3\).*: change the voc"
    ):
        open_checkpoint(folder)


def test_a_config_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = saved(llama(), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": V + 5}))
    with pytest.raises(
        InvalidArgumentError, match=rf"\[{V}, 16\] in model.safetensors, but .* has \[{V + 5}"
    ):
        open_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidArgumentError, match=r"its files have no tensor for the table lm_head\.weight"):
        open_checkpoint(folder)


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def put_header(path: Path, header: dict[str, Any], data: bytes, length: int | None = None) -> None:
    text = json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def damage(kind: str, folder: Path) -> str:
    """Damages a sharded checkpoint, and gives what the error should say."""
    index = folder / "model.safetensors.index.json"
    shard = sorted(folder.glob("model-0*.safetensors"))[1]
    values = json.loads(index.read_text())
    name = next(tensor for tensor, file in values["weight_map"].items() if file == shard.name)
    header, data = header_of(shard)
    if kind == "missing":
        shard.unlink()
        return f"lacks {shard.name}, which its model.safetensors.index.json names"
    if kind == "outside":
        values["weight_map"][name] = "../model.safetensors"
        index.write_text(json.dumps(values))
        return "which is no file beside it"
    if kind == "moved":
        other = sorted(folder.glob("model-0*.safetensors"))[2].name
        values["weight_map"][name] = other
        index.write_text(json.dumps(values))
        return f"puts '{name}' into {other}, but it is in {shard.name}"
    if kind == "truncated":
        put_header(shard, header, data[:-8])
        return "is truncated: it has"
    if kind == "longer":
        put_header(shard, header, data + bytes(8))
        return "is longer than its tensors"
    if kind == "overlap":
        other = [key for key in header if key != "__metadata__"][1]
        start, end = header[other]["data_offsets"]
        header[other]["data_offsets"] = [start - 4, end - 4]
        put_header(shard, header, data)
        return "overlaps the one before it"
    if kind == "shape":
        header[name]["shape"] = [3, 3, 3]
        put_header(shard, header, data)
        return "[3, 3, 3], but has"
    if kind == "negative":
        header[name]["shape"] = [-1]
        put_header(shard, header, data)
        return "its header describes"
    if kind == "header length":
        put_header(shard, header, data, length=2**40)
        return "no safetensors file, or a truncated one"
    if kind == "header short":
        put_header(shard, header, data, length=10)
        return "its header is no JSON"
    shard.write_bytes(b"abc")
    return "no safetensors file, or a truncated one: it has 3 bytes"


KINDS = (
    "missing",
    "outside",
    "moved",
    "truncated",
    "longer",
    "overlap",
    "shape",
    "negative",
    "header length",
)


@pytest.mark.parametrize("kind", [*KINDS, "header short", "three bytes"])
def test_damaged_files_are_refused_in_one_sentence(kind: str, tmp_path: Path) -> None:
    folder = saved(llama(num_hidden_layers=3), tmp_path / "model", max_shard_size="6KB")
    expected = damage(kind, folder)
    with pytest.raises((DataNotFoundError, VectorFileError)) as raised:
        open_checkpoint(folder)
    assert expected in str(raised.value) and "\n" not in str(raised.value)


def test_a_full_disk_is_said_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_checkpoint(saved(llama(), tmp_path / "model"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=15 * 2**10))
    monkeypatch.setattr(checkpoint_writing, "_write_shard", lambda *_: pytest.fail("wrote"))
    with pytest.raises(RunFolderError, match=r"has 0\.01 MiB left, but the checkpoint needs 0\.02 MiB"):
        save_checkpoint(opened, tmp_path / "o")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("free", "needed", "said"),
    [
        (20 * 2**20, 2**31, "has 20.00 MiB left, but .* needs 2.00 GiB: out"),
        (0, 2**30 - 1, "needs 1,024.00 MiB"),
    ],
)
def test_room_is_told_in_a_unit_that_shows_it(free, needed, said, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(RunFolderError, match=said):
        checkpoint_writing._require_room(needed, tmp_path, "out")


KILLED = """
import os, signal
from hf_embinit.__main__ import run
from hf_embinit.tables import checkpoint_writing
checkpoint_writing._write_index = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run()
"""


def test_killed_half_way_there_is_no_checkpoint(tmp_path: Path) -> None:
    folder = saved(llama(), tmp_path / "model", max_shard_size="6KB")
    fork = Fork(KILLED, "init", str(folder), "--init", "xavier", "--output_dir", str(tmp_path / "out"))
    fork.communicate()
    assert fork.poll() == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    left = [path for path in tmp_path.iterdir() if path.name != "model"]
    assert all(path.name.startswith(".out.") and not (path / "config.json").exists() for path in left)


def test_only_save_checkpoint_saves_it(tmp_path: Path) -> None:
    opened = open_checkpoint(saved(llama(), tmp_path / "model"))
    with pytest.raises(UnsupportedModelError, match="save_checkpoint"):
        opened.save_pretrained(tmp_path / "o")
    with pytest.raises(InvalidArgumentError, match="link=True"):
        save_checkpoint(llama(), tmp_path / "o", link=True)
    (tmp_path / "model" / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidArgumentError, match="is an adapter, not a model"):
        open_checkpoint(tmp_path / "model")
    with pytest.raises(EmbinitError, match=r"neither model\.safetensors nor"):
        read_checkpoint_files(tmp_path)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model: open_checkpoint(5), r"path_or_id=5: expected"),
        (lambda model: open_checkpoint("x", revision=1), r"revision=1: expected"),
        (lambda model: save_checkpoint("model", "o"), r"model='model': expected"),
        (lambda model: save_checkpoint(model, 5), r"folder=5: expected"),
        (lambda model: save_checkpoint(model, "o", "bert"), r"tokenizer='bert': expected a tokenizer"),
        (lambda model: save_checkpoint(model, "o", link="yes"), r"link='yes': expected True or False"),
    ],
)
def test_wrong_arguments_are_one_sentence(call, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=sentence):
        call(llama())
    assert not list(tmp_path.iterdir())
