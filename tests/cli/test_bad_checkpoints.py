"""Every command that writes a checkpoint from files, given bad ones: one sentence, and nothing written."""

from __future__ import annotations

import copy
import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders.tiny_tokenizers import model, tokenizer
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer

import hf_embinit
from hf_embinit.__main__ import main
from hf_embinit.errors import EmbinitError, VocabularyWarning

COMMANDS = {
    "expand": ["--tokens", " zyxomma"],
    "init": ["--init", "xavier"],
    "prune": ["--keep", "Ġthe"],
    "surgery": ["shuffled_embeddings"],
    "surgery of a loaded model": ["reversed"],
    "merge": ["ADAPTER"],
    "retokenize": ["TOKENIZER", "--init", "fvt"],
}
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sharded checkpoint, an adapter of it, and another tokenizer."""
    folder = tmp_path_factory.mktemp("whole")
    m, t = model("llama", 320), tokenizer("byte_level")
    m.save_pretrained(folder / "model", max_shard_size="8KB")
    t.save_pretrained(folder / "model")
    tokenizer("unigram", 300).save_pretrained(folder / "TOKENIZER")
    get_peft_model(m, LoraConfig(target_modules=["q_proj"])).save_pretrained(folder / "ADAPTER")
    return folder


def second_shard(folder: Path) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[1]


def edit(path: Path, change: Callable[[dict], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def edit_header(path: Path, change: Callable[[dict], object]) -> None:
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def overlap(header: dict) -> None:
    entry = [value for key, value in header.items() if key != "__metadata__"][-1]
    entry["data_offsets"] = [n - 4 for n in entry["data_offsets"]]


def outside(index: dict) -> None:
    index["weight_map"]["lm_head.weight"] = "../model.safetensors"


def rewrite(path: Path, work: Callable[[bytes], bytes]) -> None:
    path.write_bytes(work(path.read_bytes()))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing shard": (lambda f: second_shard(f).unlink(), f"which its {INDEX} names: download it again"),
    "truncated shard": (lambda f: rewrite(second_shard(f), lambda d: d[:-4]), "is truncated: it has"),
    "overlap": (lambda f: edit_header(second_shard(f), overlap), "is damaged: the tensor"),
    "header length": (
        lambda f: rewrite(second_shard(f), lambda d: (2**50).to_bytes(8, "little") + d[8:]),
        "is no safetensors file, or a truncated one",
    ),
    "outside": (lambda f: edit(f / INDEX, outside), "'../model.safetensors', which is no file beside it"),
    "other rows": (
        lambda f: edit(f / "config.json", lambda c: c.update(vocab_size=400)),
        "is not what its config says: ",
    ),
    "more layers": (
        lambda f: edit(f / "config.json", lambda c: c.update(num_hidden_layers=3)),
        "is not what its config says, a LlamaForCausalLM: in its files there is no model.layers.2.",
    ),
    "wider layers": (
        lambda f: edit(f / "config.json", lambda c: c.update(intermediate_size=24)),
        "is not what its config says, a LlamaForCausalLM: in its files model.layers.0.mlp.down_proj.weight "
        "is [16, 16], and not [16, 24]",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_one_sentence_and_writes_nothing(
    bad: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    damage, sentence = BAD[bad]
    damage(tmp_path / "model")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(EmbinitError, match=re.escape(sentence)):
        hf_embinit.open_checkpoint("model")
    for command, words in COMMANDS.items():
        code = main([command.split()[0], "model", *words, "--output_dir", "out"])
        said = capsys.readouterr().err.strip().splitlines()
        assert code == 1 and said[-1].startswith("error: ") and sentence in said[-1], (command, said)
        assert not [line for line in said[:-1] if line.startswith(("error", "Traceback"))], said
        assert sorted(tmp_path.rglob("*")) == before, command


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_one_sentence_and_writes_nothing(
    command: str,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(whole)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    code = main([command.split()[0], "model", *COMMANDS[command], "--output_dir", str(tmp_path / "out")])
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert code == 1 and f"{tmp_path} has 0.00 MiB left, but the checkpoint needs" in said, said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_tokenizer_that_has_changed_since_is_said_by(
    command: str,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(whole)
    grown = tmp_path / "grown"
    assert main(["expand", "model", "--tokens", " zyxomma", " qorvex", "--output_dir", str(grown)]) == 0
    another = AutoTokenizer.from_pretrained(whole / "model")
    another.add_tokens([" other", " tokens"])
    another.save_pretrained(grown)
    words = [w.replace("zyxomma", "again") for w in COMMANDS[command]]
    with pytest.raises(
        VocabularyWarning, match="has changed since the model was expanded"
    ):  # an error in tests
        main([command.split()[0], str(grown), *words, "--output_dir", str(tmp_path / "out")])


def test_a_tokenizer_that_has_changed_since_is_said(whole: Path) -> None:
    def expanded():
        m, t = hf_embinit.open_checkpoint(whole / "model"), AutoTokenizer.from_pretrained(whole / "model")
        hf_embinit.expand_vocabulary(m, t, [" zyxomma", " qorvex"], prefixes=())
        return m, t

    another = AutoTokenizer.from_pretrained(whole / "model")
    another.add_tokens([" other", " tokens"])
    said = r"the tokenizer has changed since .* id 320 should be ' zyxomma', and 2 of 2 added tokens are not"
    unigram = AutoTokenizer.from_pretrained(whole / "TOKENIZER")
    works: list[Callable] = [
        lambda m, t: hf_embinit.expand_vocabulary(m, t, [" more"], prefixes=()),
        lambda m, t: hf_embinit.initialize(m, "xavier", tokenizer=t),
        lambda m, t: hf_embinit.surgery.apply(m, "shuffled_embeddings", tokenizer=t),
        lambda m, t: hf_embinit.prune_vocabulary(m, t, range(320)),
        lambda m, t: hf_embinit.replace_tokenizer(m, t, unigram, "fvt"),
    ]
    for work in works:
        with pytest.warns(VocabularyWarning, match=said):
            work(expanded()[0], copy.deepcopy(another))
    for work in works:
        with warnings.catch_warnings():
            warnings.simplefilter("error", VocabularyWarning)
            work(*expanded())
