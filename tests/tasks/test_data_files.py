"""Files of one's own: every row is read as it stands, and what is no text is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.tiny_tokenizers import tokenizer

from hf_embinit.errors import DataNotFoundError, InvalidArgumentError
from hf_embinit.tasks import texts
from hf_embinit.tasks.data import load_file
from hf_embinit.tasks.language_modeling import TextData, load_texts
from hf_embinit.tasks.translation import load_translation


def test_a_quotation_mark_in_a_tsv_swallows_no_row(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text('de\ten\n"offen\topen\nein "Zitat"\ta quote\n"zu\tclosed\n', encoding="utf-8")
    rows = load_file(file)
    assert rows["de"][:] == ['"offen', 'ein "Zitat"', '"zu'] and rows["en"][:] == [
        "open",
        "a quote",
        "closed",
    ]


@pytest.mark.parametrize("ending, mark", [("csv", ","), ("tsv", "\t")])
def test_words_that_pandas_takes_for_missing_are_words(tmp_path: Path, ending: str, mark: str) -> None:
    file = tmp_path / f"a.{ending}"
    file.write_text(f"de{mark}en\nNA{mark}None\nnull{mark}nan\nx{mark}\n")
    rows = load_file(file)
    assert rows["de"][:] == ["NA", "null", "x"] and rows["en"][:] == ["None", "nan", None]


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "tsv", "txt"])
def test_a_file_in_another_encoding_is_refused(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"a.{ending}"
    text = '{"text": "schön"}\n' if ending.startswith("json") else "text\nschön\n"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidArgumentError, match=f"not a valid .{ending} file: .*(utf-8|UTF8)"):
        load_file(file)


@pytest.mark.parametrize("ending, mark", [("csv", ","), ("tsv", "\t")])
def test_a_row_with_more_fields_than_the_header_is_not_cut(tmp_path: Path, ending: str, mark: str) -> None:
    """pandas would take the first fields for an index, and the start of each text would be gone."""
    file = tmp_path / f"a.{ending}"
    file.write_text(f"de{mark}en\nJa{mark} gut{mark}Yes\nNein{mark} schlecht{mark}No\n")
    with pytest.raises(
        InvalidArgumentError, match="a row has more fields than the header; a text with a comma"
    ):
        load_file(file)
    file.write_text(f"de{mark}en{mark}\nJa{mark}Yes{mark}\n")
    assert load_file(file)["de"][:] == ["Ja"]
    if ending == "csv":
        file.write_text('de,en\n"Ja, gut",Yes\n')
        assert load_file(file)["de"][:] == ["Ja, gut"]


def test_a_byte_order_mark_is_no_letter_of_a_text(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("Es war\neinmal\n", encoding="utf-8-sig")
    assert load_file(file)["text"][:] == ["Es war", "einmal"]


@pytest.mark.parametrize("other", ["train.csv", "training.jsonl"])
def test_two_files_of_one_split_are_refused(tmp_path: Path, other: str) -> None:
    for name in ("train.jsonl", other):
        write(tmp_path / name, {"text": "a"})
    with pytest.raises(InvalidArgumentError, match=f"train.jsonl and {other} for the train split: leave one"):
        load_texts(str(tmp_path))


def write(path: Path, *rows: dict) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_texts_that_are_null_are_left_out_and_numbers_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", {"text": "a"}, {"text": None}, {"text": " "}, {"text": "b"})
    write(tmp_path / "validation.jsonl", {"text": "c"})
    assert load_texts(str(tmp_path))["train"]["text"][:] == ["a", "b"]
    write(tmp_path / "validation.jsonl", {"text": 5})
    with pytest.raises(InvalidArgumentError, match=r"the validation split .* has 5 in 'text', not text"):
        load_texts(str(tmp_path))


def test_a_text_file_is_a_corpus_without_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mono.gn.txt").write_text("Che aiko.\n\nNde reiko.\n", encoding="utf-8")
    assert (
        texts.load_texts("mono.gn.txt") == texts.load_texts("mono.gn.txt:text") == ["Che aiko.", "Nde reiko."]
    )
    with pytest.raises(DataNotFoundError, match=r"corpus 'gone.txt' is no file here"):
        texts.load_texts("gone.txt")
    with pytest.raises(InvalidArgumentError, match=r"corpus 'gone': .*none for the lines of a .txt file"):
        texts.load_texts("gone")


@pytest.mark.parametrize("row", [{"translation": {"de": "a"}}, {"translation": None}, {}])
def test_a_pair_without_its_translation_is_named(tmp_path: Path, row: dict) -> None:
    whole = {"translation": {"de": "a", "en": "b"}}
    for split in ("train", "validation", "test"):
        write(tmp_path / f"{split}.jsonl", whole, *([row] if split == "test" else []))
    with pytest.raises(InvalidArgumentError, match="text of row 1 of the test split is None, not text"):
        load_translation(str(tmp_path))


def test_digests_are_of_the_texts_that_are_used(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("validation", 20)):
        write(tmp_path / f"{split}.jsonl", *({"text": f"the {i} of the dog"} for i in range(count)))
    texts = load_texts(str(tmp_path))

    def used(limit: int | None) -> dict:
        return TextData(texts, tokenizer("byte_level"), block_size=4, max_train_samples=limit).digests[
            "train"
        ]

    assert (used(None)["rows"], used(30)["rows"]) == (40, 30) and used(40) == used(None) != used(30)
