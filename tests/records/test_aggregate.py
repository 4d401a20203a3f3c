from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from hf_embinit.errors import DataNotFoundError
from hf_embinit.records.aggregate import NO_EFFECT, SEEDS, compare_settings, results_table
from hf_embinit.records.found import find_records
from hf_embinit.records.record import RunRecord, write_record


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
    table = results_table(find_records(tmp_path)[0].values()).splitlines()
    assert table[0] == "| data | tokenizer | epochs | init | seeds | test BLEU | best epoch |"
    assert table[2] == "| captions | words | 5 | `xavier` | 2 | 31.00 (1.41) | 5.0 (0.0) |"
    assert table[3] == "| captions | words | 5 | `glove` | 1 | 20.00 | 5.0 |"
    assert table[4] == "| captions, first 100 | words | 1 | `xavier` | 1 | 9.00 | 5.0 |"
    assert len(table) == 5


def test_a_seed_without_a_number_is_told(tmp_path) -> None:
    for seed, bleu in enumerate((30.0, 32.0, None)):
        write_record(tmp_path / str(seed), record("xavier", seed, bleu))
    table = results_table(find_records(tmp_path)[0].values()).splitlines()
    assert table[2] == "| captions | words | 5 | `xavier` | 3 | 31.00 (1.41), n=2 | 5.0 (0.0) |"


def test_the_best_row_of_a_setting_stands_first() -> None:
    scores = {"glove": 20.0, "xavier": 30.0, "bert": 25.0}
    runs = [record(init, seed, scores[init]) for init in scores for seed in (0, 1)]
    runs.insert(1, record("zeros", 0, 90.0, dataset="multi30k"))
    rows = results_table([*runs, record("none", 0, 0.0, metrics={})]).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == ["xavier", "bert", "glove", "none", "zeros"]
    losses = [record(init, 0, 0.0, metrics={"validation_loss": score}) for init, score in scores.items()]
    rows = results_table(losses).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == ["glove", "bert", "xavier"]


def test_the_best_row_is_the_best_by_the_numbers_that_it_shows() -> None:
    runs = [record("glove", seed, bleu) for seed, bleu in ((1, 20.0), (1, 20.0), (1, 20.5), (2, 30.0))]
    runs += [record("xavier", 1, 24.0), record("zeros", 1, 10.0), record("zeros", 2, 99.0, diverged=True)]
    rows = results_table(runs).splitlines()[2:]
    found = [(row.split("`")[1], row.split(" | ")[5].split(" ")[0]) for row in rows]
    assert found == [("glove", "25.12"), ("xavier", "24.00"), ("zeros", "10.00,")]


def test_what_was_not_measured_says_so() -> None:
    table = results_table([record("xavier", 0, 1.0), record("glove", 0, 0.0, metrics={}, best_epoch=None)])
    assert "| `glove` | 1 | not measured | not measured |" in table


def test_a_folder_without_records_is_an_error(tmp_path) -> None:
    with pytest.raises(DataNotFoundError, match="finished runs"):
        find_records(tmp_path)


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


RECORDED = json.loads(
    next((Path(__file__).parents[2] / "recipes" / "results").rglob("classify/*/results.json")).read_text()
)["arguments"]
"""The arguments of a recorded run."""


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_an_argument_makes_another_experiment_unless_it_cannot_change_a_result(name) -> None:
    value = RECORDED[name]
    others = {bool: not value, int: 7, float: 7.5}
    changed = {**RECORDED, name: others.get(type(value), "another")}
    runs = [
        record("xavier", 1, 10.0, arguments={**RECORDED, "seed": 1}),
        record("xavier", 2, 20.0, arguments={**changed, "seed": changed["seed"] if name == "seed" else 2}),
    ]
    if name in ("task", "init", "tokenizer", "surgery"):  # the record's own fields
        pytest.skip("told by another field of the record")
    rows = results_table(runs).splitlines()[2:]
    assert len(rows) == (1 if name in SEEDS | NO_EFFECT else 2), rows
    if len(rows) == 2:
        assert rows[0] != rows[1].replace("20.00", "10.00"), "the rows do not say in what they differ"


def test_what_cannot_change_a_result_is_an_argument() -> None:
    from transformers import Seq2SeqTrainingArguments

    ours = {"data_dir", "allow_pickle", "twin_seeds"}
    assert set(Seq2SeqTrainingArguments.__dataclass_fields__) | ours >= NO_EFFECT | SEEDS


def test_other_data_or_vectors_under_one_name_are_another_experiment() -> None:
    def of(seed: int, train: str, vectors: str | None, path: str = "de.txt") -> RunRecord:
        data = {"train": {"rows": 2, "sha256": train * 32}}
        if vectors is not None:
            data["vectors, source"] = {"rows": 2, "sha256": vectors * 32, "provenance": None}
        return record("glove", seed, 10.0 + seed, data=data, arguments={"vectors": path})

    assert len(results_table([of(1, "ab", "cd"), of(2, "ab", "cd", "moved/de.txt")]).splitlines()) == 3
    rows = results_table([of(1, "ab", "cd"), of(2, "ab", "ef"), of(3, "00", "cd"), of(4, "ab", None)])
    assert len(rows.splitlines()) == 6
    assert "vectors, source efefefef" in rows and "train 00000000" in rows
    assert "no digest of vectors, source" in rows


def test_runs_of_other_numbers_of_processes_are_another_experiment() -> None:
    runs = [record("xavier", seed, 10.0 + seed, runtime={"world_size": seed // 2 + 1}) for seed in (1, 2)]
    rows = results_table(runs).splitlines()[2:]
    assert [re.findall(r"processes \d", row) for row in rows] == [["processes 1"], ["processes 2"]]
    assert [setting.told for setting in compare_settings(runs)] == ["processes 1", "processes 2"]
    alone = [record("xavier", 1, 11.0), record("xavier", 2, 12.0, runtime={"world_size": 1})]
    assert "| `xavier` | 2 | 11.50 (0.71) |" in results_table(alone)  # one, where a record does not say
    assert "processes" not in results_table(alone)


def test_a_run_that_is_there_twice_counts_once() -> None:
    rows = results_table([record("xavier", 1, 10.0), record("xavier", 1, 10.0), record("xavier", 2, 12.0)])
    assert "| `xavier` | 2 | 11.00 (1.41) |" in rows


def test_a_seed_that_was_run_twice_counts_once_with_the_mean_of_its_runs() -> None:
    twice = [record("xavier", 1, 10.0), record("xavier", 1, 12.0)]
    assert "| `xavier` | 1 | 11.00 | 5.0 |" in results_table(twice)
    assert "| `xavier` | 2 | 12.00 (1.41) | 5.0 (0.0) |" in results_table([*twice, record("xavier", 2, 13.0)])


def test_a_diverged_run_says_so_and_hides_no_other(tmp_path) -> None:
    nan = float("nan")
    lost = record("xavier", 2, 0.0, history=[{"epoch": 1.0, "validation_loss": nan}], best_epoch=None)
    lost.metrics["validation_loss"] = nan
    assert lost.diverged and not record("xavier", 1, 1.0).diverged
    write_record(tmp_path / "lost", lost)
    (read,) = find_records(tmp_path)[0].values()
    assert read.diverged and json.loads((tmp_path / "lost" / "results.json").read_text())["diverged"]
    table = results_table([record("xavier", 1, 10.0), read, record("glove", 1, 5.0)])
    assert "| `xavier` | 2 | 10.00, 1 diverged |" in table and "| `glove` | 1 | 5.00 |" in table
    assert "| `xavier` | 1 | diverged | diverged | diverged |" in results_table([read])


def test_runs_of_some_steps_are_not_said_to_have_epochs() -> None:
    table = results_table([record("xavier", 1, 1.0, arguments={"num_train_epochs": 20, "max_steps": 1})])
    assert "| words | 1 step | `xavier` |" in table


def test_a_setting_is_what_runs_share_but_seed_initialiser_and_its_vectors() -> None:
    def of(
        init: str, seed: int, bleu: float, train: str = "ab", vectors: str = "cd", **arguments
    ) -> RunRecord:
        data = {"train": {"rows": 2, "sha256": train * 32}}
        if init.startswith("glove"):
            data["vectors, source"] = {"rows": 2, "sha256": vectors * 32, "provenance": None}
        kept = {"num_train_epochs": 5.0, "init_options": None, "learning_rate": 0.1}
        return record(init, seed, bleu, data=data, arguments={**kept, **arguments})

    runs = [of("glove", 1, 10.0), of("xavier", 1, 9.0), of("glove", 2, 12.0), of("glove", 2, 12.0)]
    runs += [of("glove", 1, 8.0, vectors="ef"), of("glove", 1, 7.0, init_options=["turn=most"])]
    (one,) = compare_settings(runs)
    assert (one.task, one.dataset, one.model, one.length) == ("translation", "captions", "vanilla", "5")
    assert [(e.init, len(e.runs)) for e in one.experiments] == [
        ("glove", 2), ("xavier", 1), ("glove", 1), ("glove", 1)
    ]  # fmt: skip
    assert one.experiments[0].by_seed("test_bleu") == {
        json.dumps([seed, None, None]): score for seed, score in ((1, 10.0), (2, 12.0))
    }
    assert "vectors, source efefefef" in one.experiments[2].told and list(one.scores) == ["test_bleu"]
    assert "init_options ['turn=most']" in one.experiments[3].told

    more = [*runs, of("glove", 3, 1.0, train="00"), of("xavier", 3, 2.0, learning_rate=0.2)]
    assert [setting.told for setting in compare_settings(more)] == [
        f"learning_rate {rate}, train {digest * 4}"
        for rate, digest in ((0.1, "ab"), (0.1, "00"), (0.2, "ab"))
    ]


def test_a_diverged_run_gives_no_number_and_a_seed_run_twice_its_mean() -> None:
    runs = [record("xavier", 1, 10.0), record("xavier", 1, 12.0), record("xavier", 2, 99.0, diverged=True)]
    ((experiment,),) = (setting.experiments for setting in compare_settings(runs))
    assert list(experiment.by_seed("test_bleu").values()) == [11.0] and len(experiment.runs) == 3


def test_an_argument_that_older_records_lack_is_not_called_a_digest() -> None:
    kept = {"num_train_epochs": 5.0}
    runs = [
        record("xavier", 1, 1.0, arguments=kept),
        record("xavier", 1, 2.0, arguments={**kept, "scale": 1}),
    ]
    table = results_table(runs)
    assert "scale not recorded" in table and "scale 1" in table and "digest" not in table


def test_files_that_tell_settings_apart_are_named_without_their_folders() -> None:
    runs = [record("fvt", 1, 1.0, arguments={"pairs": pairs}) for pairs in (["tatoeba"], ["/a/b/mine.jsonl"])]
    told = [setting.told for setting in compare_settings(runs)]
    assert told == ["pairs ['tatoeba']", "pairs ['mine.jsonl']"]


def test_runs_of_another_tokenizer_are_found_and_other_files_named(tmp_path) -> None:
    values = {"dataset": "stories", "init": "fvt", "seed": 1, "report": {}, "runtime": {}, "versions": {},
              "arguments": {"vocab_size": 9, "refine": "tokens2words", "model": "m"},
              "metrics": {"step_0_bits_per_byte": 2.0}}  # fmt: skip
    for name, changes in {
        "a": {},
        "b": {"metrics": {"x": "y"}},
        "c": {"seed": "one"},
        "d": {"init": None},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps({**values, **changes}))
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "results.json").write_text("[]")
    write_record(tmp_path / "f", record("xavier", 1, 2.0))
    records, others = find_records(tmp_path)
    assert list(records) == ["a/results.json", "f/results.json"]
    assert others == [f"{name}/results.json" for name in "bcde"]
    made = records["a/results.json"]
    assert (made.task, made.init, made.tokenizer) == (
        "retokenization", "fvt, then tokens2words", "learnt, 9 tokens"
    )  # fmt: skip
    (setting,) = compare_settings([made])
    assert setting.scores["step_0_bits_per_byte"][1].lower_is_better
    with pytest.raises(DataNotFoundError, match=r"; left out 1 file of that name: .*holds an array, expe"):
        find_records(tmp_path / "e")
    (tmp_path / "e" / "results.json").unlink()
    with pytest.raises(DataNotFoundError, match=r"give the folder of one or more finished runs$"):
        find_records(tmp_path / "e")


def test_checkpoints_of_one_name_are_told_apart_by_their_owners() -> None:
    runs = [
        record("mean", 1, 20.0 + i, tokenizer="t", arguments={"model": model})
        for i, model in enumerate(("alice/gpt2", "bob/gpt2", "gpt2", "carol/bert"))
    ]
    table = results_table(runs)
    assert all(f"| {name} |" in table for name in ("alice/gpt2", "bob/gpt2", "gpt2", "bert"))
    assert [s.model for s in compare_settings(runs)] == ["alice/gpt2", "bob/gpt2", "gpt2", "bert"]
