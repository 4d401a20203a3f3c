"""Digests of data: of what the texts are, not of where they come from."""

from __future__ import annotations

from datasets import Dataset

from hf_embinit.tasks.data import data_digests, load_file


def test_equal_texts_have_equal_digests_from_any_file(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text('{"de": "ä", "en": "b"}\n{"de": "c", "en": "d"}\n', encoding="utf-8")
    (tmp_path / "a.tsv").write_text("en\tde\nb\tä\nd\tc\n", encoding="utf-8")
    splits = {name: load_file(tmp_path / f"a.{name}") for name in ("jsonl", "tsv")}
    splits["memory"] = Dataset.from_dict({"en": ["b", "d"], "de": ["ä", "c"]})
    splits["other"] = Dataset.from_dict({"en": ["d", "b"], "de": ["c", "ä"]})
    digests = data_digests(splits)
    assert digests["jsonl"] == digests["tsv"] == digests["memory"] != digests["other"]
    assert digests["jsonl"]["rows"] == 2 and len(digests["jsonl"]["sha256"]) == 64
    assert digests["memory"] != data_digests({"memory": splits["memory"].select([0])})["memory"]
