"""`doctor` on folders that lack some of the files, or bring code of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builders.tiny_tokenizers import model, tokenizer

from hf_embinit import doctor
from hf_embinit.__main__ import main


def codes(folder: Path, **options: bool) -> dict[str, str]:
    return {finding.code: finding.severity for finding in doctor(folder, **options)}


# --- tokenizers without tokenizer_config.json


def whole(folder: Path, saved: Path) -> None:
    shutil.copy(saved / "tokenizer.json", folder)


def words(folder: Path, saved: Path) -> None:
    ids = json.loads((saved / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(ids, key=ids.get)))


def merges(folder: Path, saved: Path) -> None:
    backend = json.loads((saved / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(backend["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, backend["merges"])))


@pytest.mark.parametrize(
    ("kind", "family", "left"),
    [("gpt2", "byte_level", whole), ("bert", "wordpiece", words), ("gpt2", "byte_level", merges)],
    ids=["tokenizer.json", "vocab.txt", "vocab.json and merges.txt"],
)
def test_a_tokenizer_without_its_config_is_looked_at(kind, family, left, tmp_path) -> None:
    t = tokenizer(family)
    t.save_pretrained(tmp_path / "tokenizer")
    for name, rows in (("fits", len(t)), ("small", len(t) - 20)):
        model(kind, rows).save_pretrained(tmp_path / name)
        left(tmp_path / name, tmp_path / "tokenizer")
    assert doctor(tmp_path / "fits") == []
    assert codes(tmp_path / "small")["ids_beyond_rows"] == "error"
    assert main(["doctor", str(tmp_path / "small")]) == 4


def test_a_folder_without_a_tokenizer_has_none(tmp_path) -> None:
    model("gpt2", 320).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert doctor(tmp_path) == []
    (tmp_path / "tokenizer.json").write_text("{}")
    assert codes(tmp_path) == {"tokenizer_cannot_be_loaded": "error"}
