from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.retokenizing import bilingual, word_tokenizer

from hf_embinit.errors import DataNotFoundError, InvalidArgumentError, VocabularyWarning
from hf_embinit.retokenize import TokenTexts
from hf_embinit.retokenize.parallel import Pair, read_parallel

OLD_WORDS, NEW_WORDS, PAIRS = bilingual(20, 50)


def letters(words: list[str]) -> TokenTexts:
    """A tokenizer that has these words and spells any other by its letters."""
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
    return TokenTexts(word_tokenizer([*words, *alphabet, *(f"##{c}" for c in alphabet)]))


OLD, NEW = letters(OLD_WORDS), letters(NEW_WORDS)


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_every_form_gives_the_same_pairs(tmp_path: Path) -> None:
    expected = [Pair(*pair) for pair in PAIRS]
    nested = [json.dumps({"translation": {"de": b, "en": a}}) for a, b in PAIRS]
    flat = [json.dumps({"id": 3, "de": b, "en": a}) for a, b in PAIRS]
    columns = ["\ufeff" + "\t".join(PAIRS[0]), "", *("\t".join(pair) + "\r" for pair in PAIRS[1:])]
    assert read_parallel(written(tmp_path / "nested.jsonl", nested), OLD, NEW) == expected
    assert read_parallel(written(tmp_path / "flat.jsonl", flat), OLD, NEW) == expected
    assert read_parallel(f"{tmp_path}/flat.jsonl:en,de", OLD, NEW) == expected
    assert read_parallel(written(tmp_path / "a.tsv", columns), OLD, NEW) == expected
    assert read_parallel(PAIRS, OLD, NEW) == expected
    assert read_parallel([("en1", ""), *PAIRS], OLD, NEW) == expected


def test_the_order_of_named_columns_is_told_from_the_tokenizers(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", [json.dumps({"en": a, "de": b}) for a, b in PAIRS])
    assert read_parallel(path, OLD, NEW)[0] == Pair(*PAIRS[0])
    assert read_parallel(path, NEW, OLD)[0] == Pair(*PAIRS[0][::-1])
    with pytest.warns(VocabularyWarning, match="in the wrong order"):
        assert read_parallel(f"{path}:de,en", OLD, NEW)[0] == Pair(*PAIRS[0][::-1])  # as it was told


def test_the_wrong_order_of_columns_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "p.tsv", [f"{b}\t{a}" for a, b in PAIRS])
    with pytest.raises(InvalidArgumentError, match=r"wrong order: 'de.* suits the new tokenizer better"):
        read_parallel(path, OLD, NEW)
    with pytest.raises(InvalidArgumentError, match="wrong order"):
        read_parallel([pair[::-1] for pair in PAIRS], OLD, NEW)


def test_the_order_of_a_few_pairs_is_doubted_and_kept() -> None:
    swapped = [pair[::-1] for pair in PAIRS]
    with pytest.warns(VocabularyWarning, match="in the wrong order"):
        assert read_parallel(swapped[:19], OLD, NEW)[0] == Pair(*swapped[0])
    with pytest.raises(InvalidArgumentError, match="in the wrong order"):
        read_parallel(swapped[:20], OLD, NEW)


def test_words_that_a_tokenizer_does_not_know_tell_the_order_and_the_language() -> None:
    english, german = word_tokenizer(["the", "dog", "runs"]), word_tokenizer(["der", "hund", "rennt"])
    old, new = TokenTexts(english), TokenTexts(german)
    pairs = [("the dog runs", "der hund rennt")] * 3
    assert read_parallel(pairs, old, new)[0] == Pair(*pairs[0])
    with pytest.raises(InvalidArgumentError, match="dictionary= seems to have the languages in the wrong"):
        read_parallel([("hund", "dog"), ("rennt", "runs")] * 10, old, new, name="dictionary")
    with pytest.raises(InvalidArgumentError, match="such as 'hun', which new_tokenizer does not know"):
        read_parallel([("the dog", "hun")], old, new)


@pytest.mark.parametrize(
    ("name", "lines", "words"),
    [
        ("p.tsv", [], "has no pair of texts: it is empty"),
        ("p.jsonl", [], "has no pair of texts: it is empty"),
        (
            "p.txt",
            ["", "only one"],
            "line 2 is one column where two .*: .* columns in a file need a tab between",
        ),
        ("p.tsv", ["a\tb\tc"], "line 1 is 3 columns"),
        ("p.tsv", ["\t"], "has no pair of texts"),
        ("p.jsonl", ["{"], "line 1 is no JSON"),
        ("p.jsonl", ["[" * 100_000], "line 1 is no JSON"),
        ("p.jsonl", ["[1]"], "line 1 is no object"),
        ("p.jsonl", ['{"text": "a"}'], "has the texts 'text' where two are expected: name them"),
        ("p.jsonl", ['{"a": "x", "b": "y", "c": "z"}'], "has the texts 'a', 'b', 'c' where two"),
        ("p.jsonl", ['{"a": "x", "b": "y"}', '{"a": "x"}'], "line 2 has no text 'b', but 'a'"),
    ],
)
def test_what_is_no_parallel_text_is_said(tmp_path: Path, name: str, lines: list[str], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        read_parallel(written(tmp_path / name, lines), OLD, NEW)


def test_lists_and_files_that_are_no_pairs(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="parallel= entry 1 is 'ab'"):
        read_parallel([("a", "b"), "ab"], OLD, NEW)
    with pytest.raises(InvalidArgumentError, match="parallel= has no pair"):
        read_parallel([], OLD, NEW)
    for entry in ({"en": "a", "de": "b"}, {"a", "b"}, 5, None, (1, 2)):
        with pytest.raises(
            InvalidArgumentError, match=r"^parallel= entry 1 is .* where two texts are .*\(old, new\)"
        ):
            read_parallel([("a", "b"), entry], OLD, NEW)
    with pytest.raises(DataNotFoundError, match="is no file here"):
        read_parallel(tmp_path / "none.tsv", OLD, NEW)
    (tmp_path / "bad.tsv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgumentError, match="cannot be read as UTF-8"):
        read_parallel(tmp_path / "bad.tsv", OLD, NEW)


@pytest.mark.parametrize("value", [5, 0.5, object()])
def test_what_is_neither_a_file_nor_a_list_is_said(value) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^parallel=.*: expected a file or a list of pairs"):
        read_parallel(value)
