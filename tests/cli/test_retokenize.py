"""`hf-embinit retokenize` and `explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders.command_line import embinit, save_bert
from builders.retokenizing import word_tokenizer
from builders.tiny_tokenizers import model, tokenizer
from transformers import AutoTokenizer

import hf_embinit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_bert(tmp_path / "model")
    (tmp_path / "model" / "modules.json").write_text("[]", encoding="utf-8")
    tokenizer("unigram", 400).save_pretrained(tmp_path / "new")
    return tmp_path


def test_a_checkpoint_gets_another_tokenizer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    code, told, _ = embinit(
        capsys, "retokenize", folder / "model", folder / "new", "--output_dir", out, "--json"
    )
    data = json.loads(told)
    assert code == 0 and data["init"] == "fvt" and data["rows"] == [[320], [400]]
    assert {p.name for p in out.iterdir()} >= {"modules.json", "embinit_coefficients.safetensors"}
    new = AutoTokenizer.from_pretrained(out)
    assert new.get_vocab() == tokenizer("unigram", 400).get_vocab()
    assert {finding.code for finding in hf_embinit.doctor(out)} <= {"equal_rows"}


def test_explain_says_what_a_row_is_made_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--option", "output_pooling=first", "--init", "fvt", "--output_dir", folder / "out"]
    assert embinit(capsys, "retokenize", folder / "model", folder / "new", *flags)[0] == 0
    assert (folder / "out" / "embinit_coefficients_output.safetensors").is_file()
    code, told, _ = embinit(capsys, "explain", folder / "out", "dog", "<pad>")
    assert code == 0 and told.splitlines()[:2] == [
        "'▁dog': overlap: 'dog' 1.000",
        "'<pad>': copied: '[PAD]' 1.000",
    ]
    new = AutoTokenizer.from_pretrained(folder / "new")
    old = AutoTokenizer.from_pretrained(folder / "model")
    word = next(t[1:] for t in new.get_vocab() if t[:1] == "▁" and len(old.tokenize(t[1:])) == 2)
    data = json.loads(embinit(capsys, "explain", folder / "out", word, "--json")[1])
    assert sorted(data[0]["weights"]) == sorted([piece, 0.5] for piece in old.tokenize(word))
    assert data[1]["part"] == "output" and data[1]["weights"] == [[old.tokenize(word)[0], 1.0]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["retokenize", "model", "gone", "--output_dir", "out"], "gone"),
        (["retokenize", "model", "new", "--output_dir", "model"], "model"),
        (["retokenize", "model", "new", "--init", "fvtt", "--output_dir", "out"], "Unknown init 'fvtt'"),
        (["retokenize", "model", "new", "--parallel", "gone.tsv", "--output_dir", "out"], "gone.tsv"),
        (["retokenize", "model", "new", "--option", "x=1", "--output_dir", "out"], "has no option 'x'"),
        (["explain", "model", "dog"], "has no embinit_coefficients.safetensors"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    words: list[str],
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    code, _, error = embinit(capsys, *words)
    assert code != 0 and message in error and error.strip().count("\n") == 0
    assert not (folder / "out").exists()


def test_tokens_that_cannot_be_explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    assert embinit(capsys, "retokenize", folder / "model", folder / "new", "--output_dir", out)[0] == 0
    code, _, error = embinit(capsys, "explain", out, "qwertyuiop")
    assert code != 0 and "'qwertyuiop' is not one token of the new tokenizer but" in error
    tokenizer("unigram", 350).save_pretrained(out)
    code, _, error = embinit(capsys, "explain", out, "dog")
    assert code != 0 and "is not the one that embinit_coefficients.safetensors is of" in error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "have no token in common, and 'fvt' finds no other source"),
        (["--parallel", "swapped.tsv"], "swapped.tsv seems to have the languages in the wrong order"),
        (["--dictionary", "swapped.tsv"], "swapped.tsv seems to have the languages in the wrong order"),
        (["--parallel", "strange.tsv"], "such as 'un chien', which old_tokenizer does not know"),
    ],
)
def test_languages_that_do_not_fit_are_one_line_and_write_nothing(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    english, german = word_tokenizer(["the", "dog", "runs"]), word_tokenizer(["der", "hund", "rennt"])
    model("bert", len(english)).save_pretrained("model")
    english.save_pretrained("model")
    german.save_pretrained("new")
    Path("swapped.tsv").write_text("hund\tdog\nrennt\truns\n")
    Path("strange.tsv").write_text("un chien\tder hund\n")
    code, _, error = embinit(capsys, "retokenize", "model", "new", *flags, "--output_dir", "out")
    assert code == 1 and message in error and len(error.strip().splitlines()[-1]) < 400
    assert not Path("out").exists()
