"""What a checkpoint keeps beside its weights comes along, from a folder and from the Hub."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from builders.command_line import save_bert
from builders.loopback_hub import Client, Hub
from builders.tiny_models import llama
from safetensors.torch import load_file

from hf_embinit.__main__ import main
from hf_embinit.tables import save_checkpoint

BESIDE = {
    "modules.json": json.dumps([{"path": path} for path in ("", ".", "1_Pooling", "2_Dense", "../out")]),
    "preprocessor_config.json": "{}",
    "sentence_bert_config.json": "{}",
    "1_Pooling/config.json": "{}",
    "2_Dense/config.json": "{}",
    "2_Dense/model.safetensors": "the module's own weights",
}
COMMANDS = {
    "surgery": ["surgery", "user/st", "reversed"],
    "config_only": ["init", "user/st", "--init", "xavier", "--config_only"],
    "opened": ["init", "user/st", "--init", "xavier"],
    "pickle": ["init", "user/pickle", "--init", "xavier", "--allow_pickle"],
    "untied": ["retokenize", "user/st", "{}/words", "--untie"],
}
ON_THE_HUB = """
from hf_embinit.__main__ import main
assert not any(main(words) for words in commands)
"""


def with_modules(folder: Path) -> Path:
    save_bert(folder)
    for name, text in BESIDE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "notes.bin").write_text("of nobody", encoding="utf-8")
    return folder


def test_a_base_of_the_hub_loses_nothing_where_the_model_is_loaded(
    hub: Hub, writer: Client, tmp_path: Path
) -> None:
    pickle = with_modules(tmp_path / "pickle")
    torch.save(load_file(pickle / "model.safetensors"), pickle / "pytorch_model.bin")
    (pickle / "model.safetensors").unlink()
    save_bert(tmp_path / "words")
    lines = [
        [*(word.format(tmp_path) for word in words), "--output_dir", str(tmp_path / "out" / name)]
        for name, words in COMMANDS.items()
    ]
    hub.add_folder("user/st", with_modules(tmp_path / "st"))
    hub.add_folder("user/pickle", pickle)
    writer.run(ON_THE_HUB, commands=lines)
    for name in COMMANDS:
        out = tmp_path / "out" / name
        missing = [file for file in BESIDE if not (out / file).is_file()]
        assert not missing and not (out / "notes.bin").exists(), (name, missing)
        assert (out / "2_Dense/model.safetensors").read_text() == BESIDE["2_Dense/model.safetensors"]


def test_a_model_is_saved_although_nothing_beside_it_can_be_had(tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        save_checkpoint(llama(), tmp_path / "out", beside="user/none")
    assert (tmp_path / "out" / "config.json").is_file()
    assert "beside user/none is not copied, do it by hand: model 'user/none' is not" in caplog.text


@pytest.mark.parametrize("command", ["init", "surgery"])
def test_a_folder_s_files_come_along(command: str, tmp_path: Path) -> None:
    folder, out = with_modules(tmp_path / "st"), tmp_path / "out"
    words = ["--init", "xavier"] if command == "init" else ["reversed"]
    assert main([command, str(folder), *words, "--output_dir", str(out)]) == 0
    assert all((out / name).is_file() for name in BESIDE) and not (out / "notes.bin").exists()
