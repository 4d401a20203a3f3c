"""A damaged or hostile `results.json`, or manifest: one sentence, or all that reads it goes on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from builders.records import make_record
from builders.run_folders import run_folder

from hf_embinit.__main__ import main
from hf_embinit.cards import reference_cards, render_card
from hf_embinit.errors import EmbinitError, RunFolderError
from hf_embinit.manifest import read_manifest, side_of
from hf_embinit.records import read_record, results_table

GOOD = make_record().to_dict()
VALUES: list[Any] = [
    None,
    True,
    "x",
    -1,
    10**400,
    1e300,
    [],
    ["x"],
    {},
    {"x": "y"},
    {"x": [1]},
    [{"epoch": None}],
]
FIELDS = [*GOOD, "arguments.num_train_epochs", "arguments.max_steps", "arguments.model", "arguments.vectors"]
FIELDS += [
    "data.train",
    "runtime.world_size",
    "metrics.test_bleu",
    "embedding_statistics.embed",
    "coverage.embed",
]
BYTES = [
    b"", b"[]", b"null", b"{", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a": ' * 100_000, b"{}",
    b'{"task": 1}', json.dumps(GOOD).encode()[:-20], json.dumps(GOOD).encode() + b"x",
    json.dumps(GOOD).encode("utf-16"),
]  # fmt: skip


def use(folder: Path) -> None:
    """What is done with a record that was read."""
    record = read_record(folder)
    results_table([record])
    for task in ("translation", "classification", "language_modeling"):
        render_card(dataclasses.replace(record, task=task))


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_of_the_wrong_kind(tmp_path: Path, field: str) -> None:
    for value in VALUES:
        values = json.loads(json.dumps(GOOD))
        *outer, name = field.split(".")
        (values[outer[0]] if outer else values)[name] = value
        (tmp_path / "results.json").write_text(json.dumps(values))
        try:
            use(tmp_path)
        except RunFolderError as error:
            assert "results.json" in str(error) and len(str(error)) < 600


def test_bytes_that_are_no_record(tmp_path: Path) -> None:
    for content in BYTES:
        (tmp_path / "results.json").write_bytes(content)
        with pytest.raises(RunFolderError, match=r"results\.json"):
            read_record(tmp_path)
    (tmp_path / "results.json").unlink()
    (tmp_path / "results.json").mkdir()
    with pytest.raises(RunFolderError, match=r"results\.json"):
        read_record(tmp_path)


def test_results_leaves_damaged_records_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in enumerate([json.dumps(GOOD).encode(), *BYTES]):
        (tmp_path / f"run{name}").mkdir()
        (tmp_path / f"run{name}" / "results.json").write_bytes(content)
    assert main(["results", str(tmp_path)]) == 0
    assert "| 35.12 |" in capsys.readouterr().out
    assert len(reference_cards(tmp_path, tmp_path)) == 2  # the one whole record's, and the index


TABLES: list[Any] = [
    {}, "x", [1], [{"rows": "ab"}], [{"rows": [1]}], [{"rows": [None, 2]}], [{"source": "x"}],
    [{"source": [1]}],
    [{"coverage": [1]}], [{"coverage": {"types": "x", "types_found": 1}}], [{"source": {"name": None}}],
    [{"name": None, "rows": [1, 2, 9], "coverage": {"types": 3, "types_found": 1}}], [[]], None, 7,
    [{"rows": [[5, 2]]}], [{"rows": [5, 2]}], [{"coverage": {"types": 3}}],
    [{"coverage": {"tokens_found": 3}}], [{"coverage": {"types": 3, "types_found": None}}],
    [{"coverage": {"types": 3, "types_found": 1, "tokens": 4}}],
]  # fmt: skip
EVENTS: list[Any] = [*({"event": "initialize", "tables": t} for t in TABLES)]
EVENTS += [{"event": "initialize", "init": "normal", "options": options} for options in ("abc", [1], 3, None)]


@pytest.mark.parametrize("value", [1, "x", {}, [1], [None], [[]], *([event] for event in EVENTS)])
def test_a_manifest_of_another_form(tmp_path: Path, value: Any) -> None:
    run_folder(tmp_path / "run", "gpt2")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "embinit": value}))
    try:
        events = read_manifest(tmp_path / "run")
        render_card(make_record(), manifest=events)
        for event in events:
            side_of(event)
    except EmbinitError as error:
        assert "config.json" in str(error)
    assert main(["manifest", str(tmp_path / "run")]) in (0, 1)
    assert main(["compare", str(tmp_path / "run"), str(tmp_path / "run")]) in (0, 1)
