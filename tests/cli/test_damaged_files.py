"""A tokenizer that is damaged is not taken for none, by commands that can do without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builders.command_line import embinit, load, save_bert


@pytest.mark.parametrize("damage", ["{", '{"version": "1.0"}', None])
def test_a_damaged_tokenizer_is_said_and_an_absent_one_is_not_needed(
    damage: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_bert(tmp_path / "model")
    for path in model.glob("*token*"):
        path.unlink()
    if damage is not None:
        (model / "tokenizer.json").write_text(damage)
    for number, words in enumerate((["init", model, "--init", "xavier"], ["surgery", model, "reversed"])):
        code, _, err = embinit(capsys, *words, "--output_dir", tmp_path / str(number))
        assert code == (0 if damage is None else 1), err
        assert damage is None or "the tokenizer of" in err.splitlines()[-1]
        assert (tmp_path / str(number)).exists() == (damage is None)


DAMAGE = {
    "an unknown token that is none": (
        "tokenizer_config.json",
        {"unk_token": ""},
        "its unknown token '' is none",
    ),
    "no class": ("config.json", {"architectures": [0.5]}, "names no model class"),
    "a class of one letter each": ("config.json", {"architectures": "Bert"}, "names no model class"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_values_of_a_wrong_type_are_said(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, values, sentence = DAMAGE[name]
    path = save_bert(tmp_path / "model") / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    words = ["expand", tmp_path / "model", "--tokens", "zyxomma", "--output_dir", tmp_path / "out"]
    code, _, err = embinit(capsys, *words)
    assert code == 1 and sentence in err.splitlines()[-1]


def test_an_index_with_damaged_metadata_is_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, sharded = load(save_bert(tmp_path / "model"))[0], tmp_path / "sharded"
    shutil.copytree(tmp_path / "model", sharded, ignore=shutil.ignore_patterns("*.safetensors"))
    model.save_pretrained(sharded, max_shard_size="10KB")
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "metadata": "x"}))
    code, _, err = embinit(capsys, "expand", sharded, "--tokens", "<zyx>", "--output_dir", tmp_path / "out")
    assert code == 0, err
    assert load(tmp_path / "out")[0].config.vocab_size == model.config.vocab_size + 1
