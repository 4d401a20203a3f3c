"""`hf-embinit retokenize` and `explain`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from builders.command_line import embinit, save_bert
from builders.loopback_hub import Client, Hub
from builders.retokenizing import word_tokenizer
from builders.tiny_tokenizers import model, tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

import hf_embinit
from hf_embinit.errors import RunFolderError
from hf_embinit.retokenize import Coefficients


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


def test_explain_says_what_changed_a_sum_later(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model("gpt2", 320).save_pretrained(folder / "gpt2")
    tokenizer("byte_level").save_pretrained(folder / "gpt2")
    (folder / "texts.txt").write_text("the dog sleeps in the garden\n" * 20)
    flags = ["--untie", "--init", "fvt", "--refine", "tokens2words+first_piece_shares"]
    flags += ["--texts", folder / "texts.txt", "--output_dir", folder / "out"]
    assert embinit(capsys, "retokenize", folder / "gpt2", folder / "new", *flags)[0] == 0
    known = AutoTokenizer.from_pretrained(folder / "gpt2").get_vocab()
    new = [
        t
        for t in AutoTokenizer.from_pretrained(folder / "new").get_vocab()
        if t[:1] == "▁" and t[1:].isalpha()
    ]
    shared, own = (next(t for t in new if (f"Ġ{t[1:]}" in known) == there) for there in (True, False))
    lines = embinit(capsys, "explain", folder / "out", shared, own)[1].splitlines()
    assert lines[0].endswith("1.000, its output row then changed by first_piece_shares")
    assert lines[1].endswith(", then changed by tokens2words+first_piece_shares")
    data = json.loads(embinit(capsys, "explain", folder / "out", own, "--json")[1])
    assert data[0]["refined"] == "tokens2words+first_piece_shares"


def test_explain_says_what_a_row_is_made_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--untie", "--option", "output_pooling=first", "--init", "fvt", "--output_dir", folder / "out"]
    assert embinit(capsys, "retokenize", folder / "model", folder / "new", *flags)[0] == 0
    assert (folder / "out" / "embinit_coefficients_output.safetensors").is_file()
    code, told, _ = embinit(capsys, "explain", folder / "out", "dog", "<pad>")
    assert code == 0 and told.splitlines()[:2] == [
        "'▁dog': overlap: 'dog' 1.000",
        "'<pad>': copied: '[PAD]' 1.000",
    ]
    new = AutoTokenizer.from_pretrained(folder / "new")
    old = AutoTokenizer.from_pretrained(folder / "model")
    known = new.get_vocab()
    starts = sorted(t[1:] for t in known if t[:1] == "▁" and t[1:] not in known)  # and no rest of a word
    word = next(start for start in starts if len(old.tokenize(start)) == 2)
    data = json.loads(embinit(capsys, "explain", folder / "out", word, "--json")[1])
    assert sorted(data[0]["weights"]) == sorted([piece, 0.5] for piece in old.tokenize(word))
    assert data[1]["part"] == "output" and data[1]["weights"] == [[old.tokenize(word)[0], 1.0]]
    assert not data[0]["scaled"]
    code, _, said = embinit(capsys, "explain", folder / "out", word, "--side", "source")
    assert code == 1 and "side='source': " in said and "has one vocabulary: leave it out" in said
    flags = ["--row_norm", "--init", "fvt", "--output_dir", folder / "scaled"]
    assert embinit(capsys, "retokenize", folder / "model", folder / "new", *flags)[0] == 0
    lines = embinit(capsys, "explain", folder / "scaled", word, "<pad>")[1].splitlines()
    assert [line.endswith(", then scaled to the norm of these rows") for line in lines] == [True, False]
    assert [hf_embinit.read_manifest(folder / out)[-1]["row_norm"] for out in ("out", "scaled")] == [
        False,
        True,
    ]


@pytest.mark.parametrize("flags", [[], ["--untie", "--option", "output_pooling=first"]])
def test_a_published_checkpoint_is_explained_as_its_folder_is(
    flags: list[str], folder: Path, hub: Hub, writer: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    out, repo_id = folder / "out", "user/untied" if flags else "user/tied"
    words = [folder / "model", folder / "new", "--init", "fvt", "--output_dir", out, *flags]
    assert embinit(capsys, "retokenize", *words)[0] == 0
    writer.run("import hf_embinit; hf_embinit.publish(out, repo_id)", out=str(out), repo_id=repo_id)
    made = {path.name for path in out.glob("embinit_*")}
    assert len(made) == (2 if flags else 1) and made < set(hub.repository(repo_id).files())
    here = embinit(capsys, "explain", out, "dog", "<pad>", "--json")[1]
    code = f"from hf_embinit.__main__ import main; main(['explain', '{repo_id}', 'dog', '<pad>', '--json'])"
    assert writer.run(code) == here
    offline = "from huggingface_hub import constants; constants.HF_HUB_OFFLINE = True\n"
    assert writer.run(f"{offline}{code}; constants.HF_HUB_OFFLINE = False") == here


def test_coefficients_are_no_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    assert embinit(capsys, "retokenize", folder / "model", folder / "new", "--output_dir", out)[0] == 0
    (out / "model.safetensors").unlink()
    with pytest.raises(RunFolderError, match=r"has no model\.safetensors"):
        hf_embinit.publish(out, "user/other")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["retokenize", "model", "gone", "--output_dir", "out"], "gone"),
        (["retokenize", "model", "new", "--output_dir", "model"], "model"),
        (["retokenize", "model", "new", "--init", "fvtt", "--output_dir", "out"], "Unknown init 'fvtt'"),
        (["retokenize", "model", "new", "--parallel", "gone.tsv", "--output_dir", "out"], "gone.tsv"),
        (["retokenize", "model", "new", "--option", "x=1", "--output_dir", "out"], "has no option 'x'"),
        (
            ["retokenize", "model", "new", "--untie", "--link", "--output_dir", "out"],
            "--untie load the model",
        ),
        (["explain", "model", "dog", "--most", "-3"], "--most -3: expected a positive integer"),
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


@pytest.mark.parametrize("old", [None, "{", "5", "{}", "[1]", "[]"])
def test_coefficients_that_name_no_tokens_are_told(folder: Path, capsys, old: str | None) -> None:
    out = folder / "out"
    assert embinit(capsys, "retokenize", folder / "model", folder / "new", "--output_dir", out)[0] == 0
    made, about = Coefficients.load(out / "embinit_coefficients.safetensors")
    about = {k: v for k, v in about.items() if k != "old_tokens"} | ({"old_tokens": old} if old else {})
    made.save(out / "embinit_coefficients.safetensors", about)
    code, _, error = embinit(capsys, "explain", out, "dog")
    assert code == 1 and "does not say which tokens its rows are made of" in error


def test_coefficients_of_a_step_to_come_are_told(folder: Path, capsys) -> None:
    out = folder / "out"
    assert embinit(capsys, "retokenize", folder / "model", folder / "new", "--output_dir", out)[0] == 0
    made, about = Coefficients.load(out / "embinit_coefficients.safetensors")
    made.step[0] = 99
    made.save(out / "embinit_coefficients.safetensors", about)
    code, _, error = embinit(capsys, "explain", out, "dog")
    assert code == 1 and "holds no coefficients of this package: 99 is not a valid Step" in error


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
    Path("swapped.tsv").write_text("hund\tdog\nrennt\truns\n" * 10)
    Path("strange.tsv").write_text("un chien\tder hund\n")
    code, _, error = embinit(capsys, "retokenize", "model", "new", *flags, "--output_dir", "out")
    assert code == 1 and message in error and len(error.strip().splitlines()[-1]) < 400
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model", "german", "--dictionary", "empty.tsv"], "empty.tsv has no pair of texts: it is empty"),
        (["model", "german", "--parallel", "blank.tsv"], "blank.tsv has no pair of texts: it is empty"),
        (["broken", "german", "--parallel", "pairs.tsv"], "NaN or infinite entries, the first at id 6: "),
        (
            ["model", "german", "--parallel", "pairs.tsv", "--tokenizer", "large"],
            "has ids up to 899, but the",
        ),
        (["model", "unknown", "--parallel", "zorg.tsv"], "cannot read 'zorg qux', as it has no unknown"),
        (["model", "german", "--parallel", "pairs.tsv", "--pad_to_multiple_of", "1000000000000"], "GiB are"),
        (["model", "german", "--donor", "./donor"], "made with another tokenizer"),
        (["model", "slow", "--texts", "pairs.txt"], "'align' needs a fast tokenizer"),
        (["model", "german", "--texts", "pairs.tsv"], "--texts pairs.tsv is no text file: write its texts"),
        (["model", "german", "--texts", "pairs.jsonl"], "'en', 'de' where one is expected: name it, as in"),
        (["model", "german", "--init", "random"], "have no token in common, and 'random' finds no other"),
    ],
)
def test_bad_input_is_one_line_and_leaves_the_checkpoint_as_it_is(
    words: list[str], message: str, bad_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def digests() -> dict[str, str]:
        files = sorted(path for path in bad_folder.rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = digests()
    code, _, error = embinit(capsys, "retokenize", *words, "--output_dir", "out")
    assert code == 1 and message in error.strip().splitlines()[-1], error
    assert digests() == before and "Traceback" not in error


@pytest.fixture
def bad_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints, tokenizers and pairs that do not go together."""
    monkeypatch.chdir(tmp_path)
    english, german = word_tokenizer(["the", "dog", "runs"]), word_tokenizer(["der", "hund", "rennt"])
    bert = model("bert", len(english))
    bert.save_pretrained("model")
    bert.get_input_embeddings().weight.data[-1] = float("nan")
    bert.save_pretrained("broken")
    backend = Tokenizer(models.WordLevel({"the": 0, "zorg": 1, "blip": 2}))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    unknown = PreTrainedTokenizerFast(tokenizer_object=backend)
    model("llama", 320).save_pretrained("donor")
    tokenizers = {
        "model": english,
        "broken": english,
        "german": german,
        "large": tokenizer("byte_level", 900),
    }
    tokenizers |= {"unknown": unknown, "donor": tokenizer("byte_level"), "slow": ByT5Tokenizer()}
    for name, one in tokenizers.items():
        one.save_pretrained(name)
    Path("empty.tsv").write_text("")
    Path("blank.tsv").write_text("\n\n")
    Path("pairs.tsv").write_text("dog\thund\nruns\trennt\nthe\tder\n")
    Path("pairs.txt").write_text("hund\nrennt\nder\n")
    Path("pairs.jsonl").write_text('{"en": "the dog", "de": "der hund"}')
    Path("zorg.tsv").write_text("the\tzorg qux\n")
    return tmp_path


@pytest.mark.filterwarnings("default::hf_embinit.errors.VocabularyWarning")
def test_a_slow_tokenizer_and_one_without_an_unknown_token_serve(
    bad_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told, error = embinit(capsys, "retokenize", "model", "unknown", "--output_dir", "out")
    assert code == 0 and "1 overlap, 2 random" in told
    assert "more than half of the new rows are at random (2 of 3)" in error
    code, told, _ = embinit(capsys, "retokenize", "donor", "slow", "--output_dir", "bytes")
    assert code == 0 and "overlap" in told and "random" not in told
