"""`hf-embinit prune`: what a corpus uses is split as before, with the logits that it had."""

from __future__ import annotations

import json

import pytest
import torch
from builders.command_line import save_bert
from builders.tiny_tokenizers import logits, model, tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from hf_embinit.__main__ import main

TEXTS = ["a man and a dog", "two men see a dog"]


@pytest.fixture
def folder(tmp_path):
    t = tokenizer("byte_level", 600)
    model("llama", len(t)).save_pretrained(tmp_path / "model")
    t.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "modules.json").write_text("[]", encoding="utf-8")
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return tmp_path


def test_what_the_corpus_uses_stays(folder, capsys) -> None:
    out = folder / "small"
    flags = ["--corpus", str(folder / "corpus.txt"), "--keep", "Ġwoman", "--output_dir", str(out), "--json"]
    assert main(["prune", str(folder / "model"), *flags]) == 0
    told = json.loads(capsys.readouterr().out)
    old, new = AutoTokenizer.from_pretrained(folder / "model"), AutoTokenizer.from_pretrained(out)
    big, small = (AutoModelForCausalLM.from_pretrained(f).eval() for f in (folder / "model", out))
    assert told["new_num_embeddings"] == len(new) == small.config.vocab_size < 320
    assert told["parameters"] == [sum(p.numel() for p in m.parameters()) for m in (big, small)]
    assert "Ġwoman" in new.get_vocab() and "Ġchildren" not in new.get_vocab()
    for text in TEXTS:
        assert new.tokenize(text) == old.tokenize(text)
        before = logits(big, torch.tensor([old(text)["input_ids"]]))
        after = logits(small, torch.tensor([new(text)["input_ids"]]))
        assert torch.equal(after, before[..., torch.tensor(told["old_ids"])])
    assert (out / "modules.json").is_file()


def test_tokens_that_span_lines_stay(folder, capsys, monkeypatch) -> None:
    """A line alone has no `ĊĊ`, which stands between two paragraphs; also where a block of lines ends."""
    text = "a dog.\n\na man sees\na dog.\n\n  the dog\n" * 5
    (folder / "paragraphs.txt").write_text(text, encoding="utf-8")
    trained = tokenizer("byte_level").train_new_from_iterator([text] * 9, 320)
    trained.save_pretrained(folder / "model")
    model("llama", len(trained)).save_pretrained(folder / "model")
    assert any(token.count("Ċ") > 1 for token in trained.tokenize(text))
    monkeypatch.setattr("hf_embinit.cli.pruning._LINES", 4)
    corpus = ["--corpus", str(folder / "paragraphs.txt")]
    assert main(["prune", str(folder / "model"), *corpus, "--output_dir", str(folder / "out")]) == 0
    assert AutoTokenizer.from_pretrained(folder / "out").tokenize(text) == trained.tokenize(text)


@pytest.mark.parametrize("flags", [["corpus.jsonl"], ["both.jsonl:de"], ["nested.jsonl:de"]])
def test_lines_of_json_are_read_as_the_texts_in_them(flags, folder, capsys, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    records = {
        "corpus.jsonl": [{"id": 3, "text": text} for text in TEXTS],
        "both.jsonl": [{"de": text, "en": "three children"} for text in TEXTS],
        "nested.jsonl": [{"translation": {"de": text, "en": "three children"}} for text in TEXTS],
    }
    for name, lines in records.items():
        (folder / name).write_text("\n\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    for corpus, out in ((["corpus.txt"], "plain"), (flags, "out")):
        assert main(["prune", "model", "--corpus", *corpus, "--output_dir", out]) == 0
    plain, new = (AutoTokenizer.from_pretrained(folder / out).get_vocab() for out in ("plain", "out"))
    assert new == plain


def test_lines_are_read_behind_a_bar_on_a_terminal(folder, monkeypatch) -> None:
    real, shown = logging.tqdm, []

    def bar(*args, **options):
        shown.append((options["unit"], options["disable"]))
        return real(*args, **options)

    monkeypatch.setattr(logging, "tqdm", bar)
    flags = ["--corpus", str(folder / "corpus.txt"), "--output_dir", str(folder / "out")]
    assert main(["prune", str(folder / "model"), *flags]) == 0
    assert shown[:2] == [("line", None), ("block", None)]


def test_rare_tokens_go(folder, capsys) -> None:
    corpus = ["--corpus", str(folder / "corpus.txt")]
    flags = ["--min_count", "2", "--output_dir", str(folder / "s")]
    assert main(["prune", str(folder / "model"), *corpus, *flags]) == 0
    kept = AutoTokenizer.from_pretrained(folder / "s").get_vocab()
    assert "Ġdog" in kept and "Ġman" not in kept
    assert "parameters " in capsys.readouterr().out


def test_a_corpus_of_empty_lines_uses_nothing(tmp_path, capsys) -> None:
    """BERT's tokenizer puts special tokens around an empty line, too."""
    (tmp_path / "blank.txt").write_text("\n\n", encoding="utf-8")
    words = ["prune", str(save_bert(tmp_path / "model")), "--corpus", str(tmp_path / "blank.txt")]
    assert main([*words, "--output_dir", str(tmp_path / "out")]) == 1
    assert "uses no token at least 1 times" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main([*words, "--keep", "dog", "--output_dir", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ([], 2, "prune needs --corpus or --keep"),
        (["--keep", "nowhere"], 1, "keep has 'nowhere', which is not in the tokenizer's vocabulary"),
        (["--corpus", "nowhere.txt"], 1, "--corpus nowhere.txt is no file here"),
        (["--keep", "Ġa", "--min_count", "0"], 2, "--min_count 0: expected a positive integer"),
        (["--corpus", "model"], 1, "--corpus model is a folder: give a file"),
        (["--corpus", "bytes.txt"], 1, "--corpus bytes.txt cannot be read as UTF-8 text"),
        (["--corpus", "empty.txt"], 1, "--corpus empty.txt uses no token at least 1 times (--min_count)"),
        (["--corpus", "corpus.txt", "--min_count", "999"], 1, "uses no token at least 999 times"),
        (["--corpus", "corpus.txt", "--keep", ""], 1, "keep has ''"),
        (["--corpus", "both.jsonl"], 1, "line 1 has the texts 'de', 'en' where one is expected: name it"),
        (["--corpus", "both.jsonl:fr"], 1, "both.jsonl:fr, line 1 has no text 'fr', but 'de', 'en'"),
        (["--corpus", "number.jsonl"], 1, "number.jsonl, line 2 has no text 'en', but 3"),
        (["--corpus", "gone.jsonl:fr"], 1, "--corpus gone.jsonl:fr is no file here"),
        (["--corpus", "text.jsonl"], 1, "--corpus text.jsonl, line 1 is no JSON"),
        (["--corpus", "table.csv"], 1, "--corpus table.csv is no text file: write its texts to a .txt"),
        (["--corpus", "corpus.txt.gz"], 1, "--corpus corpus.txt.gz is no text file"),
    ],
)
def test_what_is_wrong_is_one_line(flags, code, message, folder, capsys, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "empty.txt").write_text("")
    (folder / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    (folder / "both.jsonl").write_text('{"de": "ein Hund", "en": "a dog"}')
    (folder / "number.jsonl").write_text('{"en": "a dog"}\n{"en": 3}')
    (folder / "text.jsonl").write_text("a dog")
    assert main(["prune", str(folder / "model"), *flags, "--output_dir", str(folder / "out")]) == code
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and message in error
    assert not (folder / "out").exists()


def test_ids_in_files_of_older_versions_do_not_survive(folder, capsys) -> None:
    """`added_tokens_decoder` in the tokenizer's settings, and files that transformers no longer writes."""
    source, out = folder / "model", folder / "small"
    t = AutoTokenizer.from_pretrained(source)
    t.add_special_tokens({"additional_special_tokens": ["<image>"]})
    model("llama", len(t), image_token_index=len(t) - 1).save_pretrained(source)
    t.save_pretrained(source)
    settings = json.loads((source / "tokenizer_config.json").read_text())
    added = {str(i): {"content": str(a), "special": True} for i, a in t.added_tokens_decoder.items()}
    settings |= {"added_tokens_decoder": added, "tokenizer_class": "PreTrainedTokenizerFast"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    (source / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["<image>"]}))
    (source / "added_tokens.json").write_text(json.dumps({"<image>": len(t) - 1}))
    assert main(["prune", str(source), "--corpus", str(folder / "corpus.txt"), "--output_dir", str(out)]) == 0
    new = AutoTokenizer.from_pretrained(out)
    assert sorted(new.get_vocab().values()) == list(range(len(new))) and len(new) < len(t)
    image = new.convert_tokens_to_ids("<image>")
    assert new("a dog<image>")["input_ids"][-1] == image
    assert json.loads((out / "config.json").read_text())["image_token_index"] == image
    assert not (out / "added_tokens.json").exists()
