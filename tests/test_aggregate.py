from __future__ import annotations

import dataclasses

import pytest

from hf_embinit.errors import DataNotFoundError
from hf_embinit.runs.aggregate import read_records, results_table
from hf_embinit.runs.record import RunRecord, write_record


def record(init: str, seed: int, bleu: float, **changes) -> RunRecord:
    made = RunRecord(
        task="translation",
        dataset="captions",
        init=init,
        tokenizer="words",
        seed=seed,
        arguments={"num_train_epochs": 5.0, "max_train_samples": None},
        metrics={"test_bleu": bleu},
        best_epoch=5.0,
        history=[],
        parameters=1,
        embedding_statistics={},
        coverage={},
        runtime={},
        versions={},
    )
    return dataclasses.replace(made, **changes)


def test_seeds_share_a_row_and_settings_do_not(tmp_path) -> None:
    runs = [
        record("xavier", 0, 30.0),
        record("xavier", 1, 32.0),
        record("glove", 0, 20.0),
        record("xavier", 0, 9.0, arguments={"num_train_epochs": 1.0, "max_train_samples": 100}),
    ]
    for i, run in enumerate(runs):
        write_record(tmp_path / str(i), run)
    table = results_table(read_records(tmp_path)).splitlines()
    assert table[0] == "| data | tokenizer | epochs | init | seeds | test BLEU | best epoch |"
    assert table[2] == "| captions | words | 5 | `xavier` | 2 | 31.00 (1.41) | 5.0 (0.0) |"
    assert table[3] == "| captions | words | 5 | `glove` | 1 | 20.00 | 5.0 |"
    assert table[4] == "| captions, first 100 | words | 1 | `xavier` | 1 | 9.00 | 5.0 |"
    assert len(table) == 5


def test_the_best_row_of_a_setting_stands_first() -> None:
    scores = {"glove": 20.0, "xavier": 30.0, "bert": 25.0}
    runs = [record(init, seed, scores[init]) for init in scores for seed in (0, 1)]
    runs.insert(1, record("zeros", 0, 90.0, dataset="multi30k"))
    rows = results_table([*runs, record("none", 0, 0.0, metrics={})]).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == ["xavier", "bert", "glove", "none", "zeros"]
    losses = [record(init, 0, 0.0, metrics={"validation_loss": score}) for init, score in scores.items()]
    rows = results_table(losses).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == ["glove", "bert", "xavier"]


def test_what_was_not_measured_says_so() -> None:
    table = results_table([record("xavier", 0, 1.0), record("glove", 0, 0.0, metrics={}, best_epoch=None)])
    assert "| `glove` | 1 | not measured | not measured |" in table


def test_a_folder_without_records_is_an_error(tmp_path) -> None:
    with pytest.raises(DataNotFoundError, match="finished runs"):
        read_records(tmp_path)


def test_each_task_has_its_table_with_its_scores() -> None:
    arguments = {"num_train_epochs": 3.0, "max_train_samples": None, "model": "folder/of/encoder"}
    runs = [
        record("xavier", 0, 30.0),
        *(
            record(
                "reversed",
                seed,
                0.0,
                task="classification",
                dataset="sst2",
                tokenizer="folder/of/encoder",
                arguments=arguments,
                metrics={"validation_accuracy": 0.8 + seed / 100},
            )
            for seed in (1, 2)
        ),
        record("xavier", 0, 0.0, task="language_modeling", metrics={"test_perplexity": 48.123}),
    ]
    translation, classification, language_modeling = results_table(runs).split("\n\n")
    assert "test BLEU" in translation and "accuracy" not in translation
    assert classification.splitlines()[0] == (
        "| data | model | tokenizer | epochs | init | seeds | validation accuracy | best epoch |"
    )
    assert "| sst2 | encoder | encoder | 3 | `reversed` | 2 | 0.8150 (0.0071) | 5.0 (0.0) |" in classification
    assert "48.12" in language_modeling
