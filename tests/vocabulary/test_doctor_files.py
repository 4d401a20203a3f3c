"""`doctor` on folders that lack some of the files, or bring code of their own."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from builders.tiny_tokenizers import model, tokenizer
from transformers import dynamic_module_utils

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


def test_a_folder_without_a_tokenizer_says_so(tmp_path) -> None:
    model("gpt2", 320).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert codes(tmp_path) == {"no_tokenizer": "note"}
    (tmp_path / "tokenizer.json").write_text("{}")
    assert codes(tmp_path) == {"tokenizer_cannot_be_loaded": "error"}


# --- code of their own


CONFIG = """
from transformers import GPT2Config


class NovelConfig(GPT2Config):
    model_type = "novel_of_{name}"
"""

MODELING = """
from transformers import GPT2LMHeadModel, GPT2Model

from .configuration_novel import NovelConfig


class NovelModel(GPT2Model):
    config_class = NovelConfig


class NovelModelForCausalLM(GPT2LMHeadModel):
    config_class = NovelConfig
"""

TOKENIZATION = """
from transformers import PreTrainedTokenizerFast


class NovelTokenizerFast(PreTrainedTokenizerFast):
    pass
"""


def loaded_modules() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]


@pytest.fixture
def own_modules(tmp_path, monkeypatch) -> Iterator[None]:
    """Code that is loaded is copied into the test's folder, and forgotten."""
    shared = dynamic_module_utils.HF_MODULES_CACHE  # is in the path once any test has loaded such code
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != shared])
    for name in loaded_modules():
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in loaded_modules():
        del sys.modules[name]


def novel(folder: Path, rows: int = 320, auto: str = "AutoModelForCausalLM", named: bool = True) -> Path:
    """A sound checkpoint whose `auto_map` has one class of models."""
    model("gpt2", rows).save_pretrained(folder)
    (folder / "configuration_novel.py").write_text(CONFIG.format(name=folder.name))
    (folder / "modeling_novel.py").write_text(MODELING)
    config = json.loads((folder / "config.json").read_text())
    name = auto.replace("Auto", "Novel")
    config["auto_map"] = {"AutoConfig": "configuration_novel.NovelConfig", auto: f"modeling_novel.{name}"}
    config |= {"model_type": f"novel_of_{folder.name}", "architectures": [name] if named else None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("auto", "named"), [("AutoModelForCausalLM", True), ("AutoModel", True), ("AutoModel", False)]
)
def test_a_sound_model_of_its_own_code_has_nothing(auto, named, tmp_path, own_modules) -> None:
    folder = novel(tmp_path / f"{auto.lower()}_{named}", auto=auto, named=named)
    tokenizer("byte_level").save_pretrained(folder)
    assert doctor(folder, trust_remote_code=True) == []
    assert main(["doctor", str(folder), "--trust_remote_code"]) == 0


def test_a_broken_model_of_its_own_code_has_its_line(tmp_path, own_modules) -> None:
    folder = novel(tmp_path / "small", rows=300)
    tokenizer("byte_level").save_pretrained(folder)
    assert codes(folder, trust_remote_code=True)["ids_beyond_rows"] == "error"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["UnheardOf"]}))
    (found,) = (f for f in doctor(folder, trust_remote_code=True) if f.code == "cannot_be_loaded")
    assert "UnheardOf" in found.message and found.advice == "Save the model again"


def test_code_that_is_not_trusted_is_told_with_the_way_out(tmp_path, capsys) -> None:
    folder = novel(tmp_path / "untrusted")
    tokenizer("byte_level").save_pretrained(folder)
    (folder / "tokenization_novel.py").write_text(TOKENIZATION)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {
        "tokenizer_class": "NovelTokenizerFast",
        "auto_map": {"AutoTokenizer": [None, "tokenization_novel.NovelTokenizerFast"]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert codes(folder)["cannot_be_loaded"] == "error"
    assert main(["doctor", str(folder)]) == 4
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines and all("trust_remote_code=True" in line and "--trust_remote_code" in line for line in lines)
    assert not any("Save" in line for line in lines)


def test_a_pickle_is_opened_where_one_allows_it_alone(tmp_path: Path, capsys) -> None:
    words = tokenizer("byte_level", 320)
    grown = model("llama", len(words))
    for part in (grown.config, words):
        part.save_pretrained(tmp_path)
    torch.save(grown.state_dict(), tmp_path / "pytorch_model.bin")
    assert codes(tmp_path) == {"cannot_be_loaded": "error"}
    assert "cannot_be_loaded" not in codes(tmp_path, allow_pickle=True)
    assert main(["doctor", str(tmp_path)]) == 4
    assert "stay unread [cannot_be_loaded]. If you trust its author" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path), "--allow_pickle"]) != 4
