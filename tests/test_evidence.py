"""What the page of results says of the committed records, computed from their files alone."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
import subprocess
from collections import defaultdict

import pytest
from builders import ROOT
from builders.committed_records import (
    RESULTS,
    committed_records,
    gaps,
    mean_and_interval,
    multi30k_runs,
    multi30k_scores,
    page_of,
    table_of,
    with_sd,
)

from hf_embinit.studies.comparisons import power

PAGE = page_of(RESULTS / "README.md")
RECORDS = committed_records()


def test_records_come_from_clean_trees_and_have_digests() -> None:
    commits = {name: record["versions"].get("commit", "") for name, record in RECORDS.items()}
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in commits.values())
    for name, record in RECORDS.items():
        written = json.dumps([record.get("arguments"), str(record.get("command")).split()])
        assert '"/' not in written, f"{name} has paths of one machine"
    without = [name for name, record in RECORDS.items() if not record.get("data")]
    assert not without and "All are from clean trees and have digests of their texts." in PAGE

    git = ["git", "-C", str(ROOT)]
    known = subprocess.run([*git, "log", "--format=%H"], capture_output=True, text=True, check=False)
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if known.returncode or shallow.stdout.strip() != "false":
        pytest.skip("this is no checkout with its whole history")
    lost = [name for name, commit in commits.items() if commit not in known.stdout.split()]
    assert f"Of {len(RECORDS)} records, {len(lost)} name a commit that is not in this history" in PAGE


def test_the_counts_at_a_glance_are_those_of_the_tables() -> None:
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"\(reproduce/(\w+)/table\.md\) \| (\d+ \| \d+ \| \d+) \|", text))
    counts = r"that the paper prints: (\d+) agrees, (\d+) disagrees, (\d+) cannot tell"
    printed = {
        table.parent.name: " | ".join(found.groups())
        for table in (RESULTS / "reproduce").glob("*/table.md")
        if (found := re.search(counts, table.read_text(encoding="utf-8")))
    }
    assert said == printed


def sst2_accuracies() -> dict[tuple[int, str], dict[int, float]]:
    """Highest validation accuracy in percent of the runs of SST-2 with words, by width and row, then seed."""
    by_epoch = sst2_curves()
    return {cell: {seed: max(curve) for seed, curve in runs.items()} for cell, runs in by_epoch.items()}


def sst2_curves(learning_rate: float = 1e-4) -> dict[tuple[int, str], dict[int, list[float]]]:
    """Validation accuracy in percent by epoch of the same runs; the paper's learning rate is 1e-4."""
    found: dict[tuple[int, str], dict[int, list[float]]] = defaultdict(dict)
    word2vec = "googlenews_word2vec_8000x300.txt"
    rows = {None: "xavier", "en_for_sst2": "little", "glove.6B": "much", word2vec: "much"}
    for name, record in RECORDS.items():
        given = record["arguments"]
        whole = not given.get("max_train_samples") and given.get("max_steps") == -1
        if "runs/classify/sst2-words-" not in name or not whole or given["freeze_embeddings"]:
            continue
        if given["learning_rate"] != learning_rate:
            continue
        stem = given["vectors"] and re.split(r"\.\d+d", given["vectors"].split("/")[-1])[0]
        row = rows[stem] + "".join(re.findall("_xavier|_shuffled", record["init"]))
        assert record["seed"] not in found[given["d_model"], row]
        accuracies = [100 * epoch["validation_accuracy"] for epoch in record["history"]]
        found[given["d_model"], row][record["seed"]] = accuracies
    return found


def test_whether_the_learning_rate_is_a_cause_is_said_as_the_records_have_it() -> None:
    apart = {}
    for rate, quoted in ((3e-5, "82.4 (0.3), +0.2 (-0.7 to 1.1)"), (3e-4, "82.3 (0.8), +0.1 (-3.0 to 3.2)")):
        runs = sst2_curves(rate)
        ours, theirs = ({s: max(c) for s, c in runs[100, row].items()} for row in ("little_xavier", "xavier"))
        apart[rate] = gaps(ours, theirs)
        gap, low, high = mean_and_interval(apart[rate])
        assert f"{with_sd(ours.values())}, {gap:+.1f} ({low:.1f} to {high:.1f})" == quoted
        assert quoted in PAGE
    at_paper = sst2_accuracies()
    usual = gaps(at_paper[100, "little_xavier"], at_paper[100, "xavier"])
    changes = [slow - gap for slow, gap in zip(apart[3e-5], usual, strict=False)]
    assert "changes by {:+.1f} ({:.1f} to {:.1f})".format(*mean_and_interval(changes)) in PAGE


@pytest.mark.parametrize(
    ("epoch", "quoted"),
    [(1, "first epoch the difference is +0.8 (-1.2 to 2.8)"), (5, "fifth -0.8 (-1.6 to -0.0)")],
)
def test_stopping_earlier_turns_nothing_round_on_sst2(epoch, quoted) -> None:
    found = sst2_curves()
    ours, theirs = found[300, "little_xavier"], found[300, "xavier"]
    by_seed = gaps(*({seed: curve[epoch - 1] for seed, curve in runs.items()} for runs in (ours, theirs)))
    assert len(by_seed) == 5
    assert "{:+.1f} ({:.1f} to {:.1f})".format(*mean_and_interval(by_seed)) in quoted
    assert quoted in PAGE


@pytest.mark.parametrize(
    ("width", "row", "against", "quoted"),
    [
        (100, "much_xavier", "xavier", "-0.4 (95% t interval -0.9 to 0.2)"),
        (100, "little_xavier", "xavier", "-0.6 (-0.8 to -0.3)"),
        (100, "much_xavier", "little_xavier", "+0.2 (-0.2 to 0.6)"),
        (100, "much", "xavier", "-2.6 (-4.3 to -0.9)"),
        (100, "much_xavier", "much", "+2.4 (-0.03 to 4.84)"),
        (300, "little_xavier", "xavier", "-1.0 (95% t interval -1.3 to -0.7)"),
        (300, "much_xavier", "xavier", "-0.3 (-1.1 to 0.5)"),
        (300, "much", "xavier", "-1.6 (-2.6 to -0.7)"),
        (300, "much_xavier", "much", "+1.3 (0.3 to 2.4)"),
        (300, "much_xavier", "little_xavier", "+0.7 (-0.2 to 1.6)"),
        (300, "little", "xavier", "(-3.5, -5.0 to -2.0; the paper -0.4)"),
        (300, "little_xavier", "little", "(+2.5, 1.1 to 4.0; the paper +1.3)"),
        (300, "xavier", "little_shuffled", "4.1 behind `xavier` (2.5 to 5.8)"),
        (300, "little_xavier", "little_shuffled", "3.2 behind `glove_xavier` (1.7 to 4.6)"),
        (300, "little_shuffled", "little", "(-0.6, -2.9 to 1.7)"),
    ],
)
def test_what_vectors_do_on_sst2_is_what_the_intervals_say(width, row, against, quoted) -> None:
    found = sst2_accuracies()
    ours = found[width, row]
    by_seed = gaps(ours, found[width, against])
    assert quoted in PAGE
    said = [float(number) for number in re.findall(r"[-+]?\d+\.\d", quoted.split(";")[0])]
    assert said == pytest.approx(mean_and_interval(by_seed), abs=0.051)
    assert with_sd(ours.values()) in PAGE


def test_the_power_of_vectors_of_more_text_is_as_the_page_says() -> None:
    found = sst2_accuracies()
    times = []
    for width in (100, 300):
        by_seed = gaps(found[width, "much_xavier"], found[width, "xavier"])
        times.append(round(100 * power(0.9, statistics.stdev(by_seed), len(by_seed))))
    said = "five such seeds would tell {} times of 100 at width 100, and {} here".format(*times)
    assert said in PAGE


def test_the_cpus_of_sst2_are_as_the_page_says() -> None:
    cpus = defaultdict(dict)
    for name, record in RECORDS.items():
        given = record["arguments"]
        whole = not given.get("max_train_samples") and given.get("max_steps") == -1
        plain = whole and not given["freeze_embeddings"] and given["learning_rate"] == 1e-4
        if "runs/classify/sst2-words-" in name and plain and given["d_model"] == 300:
            little = given["vectors"] is None or "en_for_sst2" in given["vectors"]
            if little:
                cpus[record["init"]][record["seed"]] = record["runtime"]["device"].split()[0]
    usual = {cpus[init][seed] for init in ("glove", "glove_xavier") for seed in range(1, 6)}
    assert len(usual) == 1
    other = {init: [s for s in sorted(seeds) if seeds[s] not in usual] for init, seeds in cpus.items()}
    assert other == {"xavier": [3, 4, 5], "glove_shuffled": [1, 2, 3, 4, 5], "glove": [], "glove_xavier": []}
    assert "Seeds 3 to 5 of `xavier` and the shuffled control ran on another CPU than the rest" in PAGE


@pytest.mark.parametrize(
    ("vectors", "by_type", "by_token"), [("en_for_sst2.300d", 70, 94), ("glove.6B.100d", 96, 93)]
)
def test_vectors_cover_what_the_page_says(vectors, by_type, by_token) -> None:
    runs = [r for r in RECORDS.values() if vectors in str(r["arguments"].get("vectors")) and r["coverage"]]
    whole = [r for r in runs if r["data"]["train"]["rows"] == 67349]
    (shares,) = {tuple(r["coverage"]["model.encoder.embed_tokens.weight"][k] for k in ("by_type", "by_token"))
                 for r in whole}  # fmt: skip
    assert [round(100 * share) for share in shares] == [by_type, by_token]
    said = {70: "9,387 of its 13,435 words, 94% of", 96: "96% of the words and 93% of the text"}
    assert said[by_type] in PAGE


@pytest.mark.parametrize(
    ("difference", "quoted"),
    [
        ("words-glove - words-xavier", "-4.6 (95% t interval -6.0 to -3.1; the paper -3.2)"),
        ("words-glove_xavier - words-glove", "+3.9 (2.4 to 5.5; the paper +4.6)"),
    ],
)
def test_raw_vectors_on_multi30k_are_as_far_behind_as_the_page_says(difference, quoted) -> None:
    table = table_of("table1")
    row = rf"^\| Multi30k \| {difference} \| BLEU \| (.*?) \| (.*?) to (.*?) \| 3 \| [^|]* \| agrees \|"
    (numbers,) = re.findall(row, table, re.MULTILINE)
    said = [float(number) for number in re.findall(r"[-+]?\d+\.\d", quoted.split(";")[0].replace("95%", ""))]
    assert said == pytest.approx([float(number) for number in numbers], abs=0.051) and quoted in PAGE


@pytest.mark.parametrize(
    ("init", "field", "quoted"),
    [
        ("xavier", "test_bleu_tokenized", "behind `xavier` by 5.16 BLEU (4.60 to 5.73)"),
        ("glove_xavier", "test_bleu_tokenized", "behind `glove_xavier` by 4.54 (3.56 to 5.52)"),
        ("glove", "test_bleu_tokenized", "above it by 0.60 (-1.39 to 2.58)"),
        ("glove", "validation_loss", "0.105 nats (0.076 to 0.133)"),
    ],
)
def test_shuffled_vectors_on_multi30k_are_as_far_behind_as_the_page_says(init, field, quoted) -> None:
    ours, shuffled = multi30k_scores(init, field), multi30k_scores("glove_shuffled", field)
    assert sorted(ours) == sorted(shuffled) == [1, 2, 3]
    behind = gaps(shuffled, ours) if field == "validation_loss" else gaps(ours, shuffled)
    said = [float(number) for number in re.findall(r"[-+]?\d+\.\d+", quoted)]
    digits = len(re.findall(r"\d+\.(\d+)", quoted)[0])
    assert said == pytest.approx(mean_and_interval(behind), abs=0.51 * 10**-digits)
    assert quoted in PAGE


@pytest.mark.parametrize(
    ("task", "difference", "told", "quoted"),
    [
        (
            "MRPC",
            "clean - pretrained",
            "agrees",
            "*agrees*, -0.045 (-0.087 to -0.003)",
        ),
        (
            "MRPC",
            "reversed - pretrained",
            "cannot tell",
            "*cannot be told*, -0.040 (-0.093 to 0.013)",
        ),
        ("CoLA", "clean - reversed", "disagrees", "+0.109 (0.093 to 0.125), *disagrees*"),
        ("SST-2", "clean - reversed", "cannot tell", "-0.017 (-0.048 to 0.014; the thesis -0.32)"),
        ("RTE", "reversed - pretrained", "agrees", "reversed behind *agrees*, -0.029 (-0.053 to -0.005)"),
        ("RTE", "clean - pretrained", "cannot tell", "clean *cannot be told*, -0.018 (-0.059 to 0.023)"),
    ],
)
def test_layers_reversed_say_what_the_page_says(task, difference, told, quoted) -> None:
    check_quoted("zhang1", task, difference, told, quoted)


def check_quoted(table: str, task: str, difference: str, told: str, quoted: str) -> None:
    """The page quotes the mean of a difference, its interval, perhaps the paper's; and the verdict."""
    text = table_of(table)
    row = rf"^\| {task} \| {difference} \| score \| (.*?) \| (.*?) to (.*?) \| 3 \|(?: (.*?) \| (.*?) \|)?"
    ((*numbers, verdict),) = re.findall(row, text, re.MULTILINE)
    said = [float(number) for number in re.findall(r"[-+]?\d+\.\d+", quoted)]
    assert len(said) >= 3 and said == [float(number) for number in numbers if number][: len(said)]
    assert verdict == told and quoted in PAGE


@pytest.mark.parametrize(
    ("table", "task", "difference", "told", "quoted"),
    [
        ("zhang4", "SST-2", "en-shuff - en-base", "agrees", "-0.098 (-0.133 to -0.063; -0.09)"),
        ("zhang4", "STS-B", "en-shuff - en-base", "agrees", "-0.083 (-0.107 to -0.059; -0.08)"),
        ("zhang4", "CoLA", "en-shuff - en-base", "agrees", "-0.180 (-0.224 to -0.136; -0.41)"),
        ("zhang4", "STS-B", "en-clean - en-shuff", "agrees", "-0.575 (-0.631 to -0.519; -0.58)"),
        ("zhang6", "STS-B", "oracle - shuffled", "agrees", "-0.669 (-0.698 to -0.639; -0.55)"),
        ("zhang6", "CoLA", "clean - oracle", "disagrees", "+0.109 (0.093 to 0.125; the thesis -0.16)"),
        ("zhang6", "STS-B", "clean - oracle", "disagrees", "+0.103 (0.068 to 0.138; -0.08)"),
        ("zhang6", "SST-2", "clean - oracle", "cannot tell", "+0.017 (-0.013 to 0.047; -0.33)"),
        ("zhang8", "CoLA", "last6 - base", "agrees", "-0.271 (-0.311 to -0.232; the thesis -0.19)"),
        ("zhang8", "MRPC", "last6 - base", "agrees", "-0.041 (-0.066 to -0.016; -0.04)"),
        ("zhang8", "CoLA", "every2 - base", "agrees", "-0.128 (-0.212 to -0.045; -0.19)"),
        ("zhang8", "CoLA", "clean - last6", "disagrees", "+0.109 (0.093 to 0.125; -0.41)"),
        ("magnitude", "STS-B", "embeddings - clean", "", "-0.041 (-0.062 to -0.020)"),
        ("magnitude", "CoLA", "variance - clean", "", "-0.109 (-0.125 to -0.093) behind clean ones"),
        ("magnitude", "CoLA", "magnitude - clean", "", "-0.109 (-0.125 to -0.093) behind clean ones"),
        ("magnitude", "SST-2", "variance - clean", "", "-0.041 (-0.061 to -0.021)"),
        ("magnitude", "CoLA", "embeddings - clean", "", "on CoLA, -0.031 (-0.032 to -0.030)"),
        ("magnitude", "MRPC", "embeddings - clean", "", "+0.002 (-0.009 to 0.012)"),
        ("magnitude", "MRPC", "variance - clean", "", "+0.001 (-0.001 to 0.002)"),
        ("magnitude", "STS-B", "variance - clean", "", "-0.056 (-0.117 to 0.005)"),
        ("magnitude", "MRPC", "magnitude - clean", "", "+0.001 (-0.001 to 0.003)"),
        ("magnitude", "STS-B", "magnitude - clean", "", "-0.062 (-0.147 to 0.023)"),
        ("magnitude", "WNLI", "variance - clean", "", "-0.005 for both (-0.025 to 0.016)"),
        ("magnitude", "WNLI", "magnitude - clean", "", "-0.005 for both (-0.025 to 0.016)"),
    ],
)
def test_embeddings_and_layers_changed_say_what_the_page_says(table, task, difference, told, quoted) -> None:
    check_quoted(table, task, difference, told, quoted)


def test_weights_of_the_trained_size_never_leave_the_majority_class_of_cola() -> None:
    name, found = "validation_matthews_correlation", {}
    for file in (RESULTS / "reproduce/runs/classify").glob("cola-minilm-*/results.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        found[file.parent.name.split("-")[2], record["seed"]] = [row[name] for row in record["history"]]
    for surgery in ("matched_variance", "matched_magnitude", "oracle"):
        assert [found[surgery, seed] for seed in (1, 2, 3)] == [[0.0] * 3] * 3
    assert all(max(found["clean", seed]) > 0.1 for seed in (1, 2, 3))
    assert "stay in the majority class in every epoch of every seed" in PAGE


@pytest.mark.parametrize(("table", "pairs"), [("zhang4", {"en-shuff - en-base": {"MRPC", "RTE", "WNLI"},
    "en-clean - en-shuff": {"CoLA", "MRPC", "RTE", "SST-2"}}), ("zhang8", {"last6 - base": {"RTE", "SST-2",
    "WNLI"}, "every2 - base": {"MRPC", "RTE", "SST-2", "STS-B", "WNLI"}})])  # fmt: skip
def test_what_cannot_be_told_of_embeddings_and_layers(table, pairs) -> None:
    text = table_of(table)
    for pair, tasks in pairs.items():
        assert set(re.findall(rf"^\| (\S+) \| {pair} \| .* cannot tell \|", text, re.MULTILINE)) == tasks


@pytest.mark.parametrize(
    ("difference", "verdict", "quoted"),
    [
        ("bert-bert - bert-xavier", "agrees", "*agrees*: +1.4 (95% t interval 0.9 to 1.9; the paper +1.8)"),
        ("bert-bert_shuffled - bert-bert_xavier", "cannot tell", "with five it is -0.8 (-2.6 to 0.9)"),
        ("bert-bert_xavier - bert-bert", "cannot tell", "(-0.9 here, -2.3 to 0.5)"),
    ],
)
def test_what_is_told_of_word_pieces_on_sst2(difference, verdict, quoted) -> None:
    table = table_of("table1")
    row = rf"^\| SST2 \| {difference} \| Acc \| (.*?) \| (.*?) to (.*?) \| 5 \| [^|]* \| {verdict} \|"
    (numbers,) = re.findall(row, table, re.MULTILINE)
    said = [float(number) for number in re.findall(r"[-+]?\d+\.\d", quoted.split(";")[0])]
    assert said == pytest.approx([float(number) for number in numbers], abs=0.051) and quoted in PAGE
    means = re.findall(r"^\| BERT: \S+ \| \**(\S+) \((\S+?)\)", table, re.MULTILINE)
    assert len(means) == 4 and all(re.search(rf"{mean} \({sd};\s", PAGE) for mean, sd in means)


def test_xaviers_rows_at_the_moments_of_bert_cannot_be_told_from_its_neighbors() -> None:
    accuracies: dict[str, dict[int, float]] = defaultdict(dict)
    for name, record in RECORDS.items():
        given = record["arguments"]
        if "runs/classify/sst2-bert-base-uncased-" in name and given["max_steps"] != 1:
            accuracies[record["init"]][record["seed"]] = max(
                100 * epoch["validation_accuracy"] for epoch in record["history"]
            )
    ours = accuracies["xavier_bert"]
    assert len(ours) == 5
    assert f"`xavier_bert` {with_sd(ours.values())}" in PAGE
    powers = []
    for init, of_paper in (("xavier", 0.5), ("bert", -1.3), ("bert_xavier", 0.4)):
        by_seed = gaps(ours, accuracies[init])
        mean, low, high = mean_and_interval(by_seed)
        assert low < 0 < high
        quoted = f"{mean:+.1f}, {low:.1f} to {high:.1f}; the paper {of_paper:+}"
        assert f"`{init}` ({quoted})" in PAGE
        powers.append(round(100 * power(of_paper, statistics.stdev(by_seed), len(by_seed))))
    assert "differences {}, {} and {} times of 100".format(*powers) in PAGE


def test_the_power_that_the_page_names_is_that_of_the_tables() -> None:
    table = table_of("table1")
    found = re.findall(r"^\| (\S+) \| (\S+ - \S+) \| .* \| (\d+)% \| [^|]+ \|$", table, re.MULTILINE)
    powers = {(column, pair): int(percent) for column, pair, percent in found}
    assert f"would tell {powers['Multi30k', 'words-glove_xavier - words-xavier']} times of 100" in PAGE
    untold = re.findall(r"^\| SST2 \| bert-.* \| cannot tell \| (\d+)% \|", table, re.MULTILINE)
    *weak, strongest = sorted(int(percent) for percent in untold)
    assert len(weak) == 4 and f"in the paper, {weak[0]} to {weak[-1]} times." in PAGE
    assert (
        strongest == powers["SST2", "bert-bert_xavier - bert-bert"]
        and f"tell {strongest} times of 100" in PAGE
    )
    table = table_of("zhang1")
    found = re.findall(r"^\| (\S+) \| (\S+ - \S+) \| .* \| (\d+)% \| [^|]+ \|$", table, re.MULTILINE)
    weak = {(task, pair) for task, pair, percent in found if int(percent) < 80}
    assert {task for task, pair in weak if pair == "clean - reversed"} == {"MRPC", "RTE"}
    assert {task for task, pair in weak if pair != "clean - reversed"} == {"WNLI"}


def test_positions_help_frozen_xavier_late_as_the_page_says() -> None:
    positions, none = (
        multi30k_runs("xavier", frozen=True),
        multi30k_runs("xavier", frozen=True, positions="none"),
    )
    gains, early, ahead_from = [], [], set()
    for seed in positions:
        both = [positions[seed], none[seed]]
        curves = [
            [step["validation_bleu_tokenized"] for step in record["history"] if "validation_bleu" in step]
            for record in both
        ]
        ahead = [ours > theirs for ours, theirs in zip(*curves, strict=True)]
        ahead_from.add(max(epoch for epoch, does in enumerate(ahead, 1) if not does) + 1)
        assert len(ahead) == 20 and {record["best_epoch"] for record in both} == {20}
        with_positions, without = (record["metrics"]["test_bleu_tokenized"] for record in both)
        gains.append(with_positions - without)
        early.append([curve[4] for curve in curves])
    told = "{:+.1f} (95% t interval {:.1f} to {:.1f}; the paper +6.3)".format(*mean_and_interval(gains))
    with_positions, without = (f"{statistics.fmean(scores):.1f}" for scores in zip(*early, strict=True))
    assert told in PAGE and f"is {with_positions} with positions and {without} without" in PAGE
    assert f"ahead for good from epoch {' or '.join(map(str, sorted(ahead_from)))} on" in PAGE


def test_cells_of_table_3_with_one_seed_are_near_the_papers_as_the_page_says() -> None:
    folder = RESULTS / "reproduce" / "table3"
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["value"] == "BLEU"]
    ours = {row["row"]: float(row["mean"]) for row in rows if row["n"] == "1"}
    theirs = {row["row"]: float(row["paper_mean"]) for row in rows if row["paper_mean"]}
    assert {row["row"] for row in rows if row["row"] not in theirs} == {
        "glove_orthogonal-no-yes",
        "glove_orthogonal-yes-yes",
    }
    assert len(ours) == 3 and not any(row["status"] == "not run" for row in rows)
    furthest = max(abs(bleu - theirs[row]) for row, bleu in ours.items())
    assert f"three cells of one seed are within {furthest:.1f} BLEU of the paper's" in PAGE
    for row, quoted in (
        ("glove-no-no", "`glove` without positions {:.1f} frozen (the paper {})"),
        ("glove-yes-no", "and {:.1f} trained ({}); `xavier`"),
        ("xavier-yes-no", "`xavier` trained without {:.1f} ({})"),
    ):
        assert quoted.format(ours[row], theirs[row]) in PAGE
    ours = {row["row"]: float(row["mean"]) for row in rows}
    without = [row for row in theirs if row.endswith("-no") and row != "xavier-no-no"]
    apart, papers = (max(map(of.get, without)) - min(map(of.get, without)) for of in (ours, theirs))
    assert len(without) == 5 and f"lie within {apart:.1f} BLEU (the paper {papers:.1f})" in PAGE
    text = (folder / "table.md").read_text(encoding="utf-8")
    counts = re.search(r"(\d+) agrees, (\d+) disagrees, (\d+) cannot tell", text)
    assert counts is not None
    agree, disagree, untold = map(int, counts.groups())
    assert (agree, disagree) == (18, 1) and "Of the nineteen differences" in PAGE and "eighteen are" in PAGE
    for cell, quoted in (
        ("yes-no", "`glove_xavier`, which is at {:.1f} (0.5; the paper {}) trained"),
        ("no-no", "and at {:.1f} (0.8; {}) frozen without them"),
    ):
        assert quoted.format(ours[f"glove_xavier-{cell}"], theirs[f"glove_xavier-{cell}"]) in PAGE
    for one, other, quoted in (
        ("yes-yes", "yes-no", "{} BLEU behind the same with them ({} to {}; the paper 7.5)"),
        ("no-yes", "yes-no", "{} behind frozen rows with them ({} to {}; 5.2)"),
        ("no-yes", "no-no", "{} behind the same with them ({} to {}; 5.2)"),
        ("yes-yes", "no-no", "{} behind trained rows with them ({} to {}; 7.5)"),
    ):
        row = rf"glove_xavier-{one} - glove_xavier-{other} \| BLEU \| \+(\S+) \| \+(\S+) to \+(\S+) \| 3 \|"
        numbers = re.search(row, text)
        assert numbers is not None
        told = quoted.format(*(f"{float(number):.1f}" for number in numbers.groups()))
        assert told in PAGE
    row = r"glove_xavier-yes-no - glove_xavier-no-no \| {} \| (\S+) \| \+?(\S+) to \+?(\S+) \| 3 \|"
    for value, quoted in (
        (r"Val\. loss", "raises its loss, {} ({} to {}; the paper +0.120;"),
        ("BLEU", "where the paper has no difference, {}, {} to {})"),
    ):
        numbers = re.search(row.format(value), text)
        assert numbers is not None and quoted.format(*numbers.groups()) in PAGE
    assert f"{untold} of the {agree + disagree + untold} differences *cannot be told*" in PAGE
    bleu = "test_bleu_tokenized"
    plain, raw = (multi30k_scores(init, bleu, frozen=True) for init in ("glove_xavier", "glove"))
    papers = theirs["glove_xavier-no-yes"] - theirs["glove-no-yes"]
    above = "{:.1f} above `glove` ({:.1f} to {:.1f}; the paper {:.1f})"
    assert above.format(*mean_and_interval(gaps(plain, raw)), papers) in PAGE
    assert f"which is at {with_sd(raw.values())[:-1]}; {theirs['glove-no-yes']})" in PAGE
    papers = theirs["glove_xavier-no-yes"] - theirs["xavier-no-yes"]
    assert f"4.7 BLEU above `xavier` (3.5 to 5.9; the paper {papers:.1f})" in PAGE  # interval: test_frontier
    row = r"glove_xavier-yes-yes - glove_xavier-no-yes \| {} \| (\S+) \| (\S+) to (\S+) \| 3 \|"
    (loss,) = re.findall(row.format("Val. loss"), text)
    assert "too, {} ({} to {}), where the paper's rises by 0.020: that *disagrees*".format(*loss) in PAGE
    (bleu,) = re.findall(row.format("BLEU"), text)
    assert "{:+.1f} ({:.1f} to {:.1f}; the paper +2.3)".format(*map(float, bleu)) in PAGE
    frozen, trained = (
        f"{float(row['mean']):.1f} ({float(row['sd']):.1f})"
        for row in rows
        if row["row"].startswith("glove_orthogonal")
    )
    assert f"{frozen} frozen and {trained} trained, told from `glove_xavier` in neither" in PAGE
    of_glove = (
        re.findall(row.replace("glove_xavier", "glove").format(v), text)[0] for v in ("BLEU", "Val. loss")
    )
    bleu, loss = (tuple(map(float, found)) for found in of_glove)
    said = "{:+.1f} ({:.1f} to {:.1f}; the paper +0.2) and {:.3f} ({:.3f} to {:.3f}; -0.020)"
    assert said.format(*bleu, *loss) in PAGE


def test_snli_cad_was_not_learnt_as_the_page_says() -> None:
    runs: dict[str, list[dict]] = defaultdict(list)
    for name, record in RECORDS.items():
        if "runs/classify/snli_cad-words-" in name:
            runs[record["init"]].append(record)
    said = []
    titles = {init: f"`{init}`" for init in ("xavier", "glove_xavier", "glove")}
    for init, title in {**titles, "glove_shuffled": "shuffled control"}.items():
        highest = [100 * max(epoch["validation_accuracy"] for epoch in run["history"]) for run in runs[init]]
        assert f"{title} {with_sd(highest)}" in PAGE
        said.append(f"{100 * statistics.fmean(run['metrics']['test_accuracy'] for run in runs[init]):.1f}")
    assert "accuracies of {}, {}, {} and {} where chance is 33.3".format(*said) in PAGE
    losses = [run["history"][-1]["train_loss"] for found in runs.values() for run in found]
    assert (
        f"Training loss ends at {min(losses):.2f} to {max(losses):.2f}, and guessing costs {math.log(3):.2f}"
        in PAGE
    )


def test_another_tokenizer_for_the_wikitext_model_is_as_the_pages_say() -> None:
    """`vipi`, `token_adapt` and `clp`, which do not start behind `fvt` there by an interval free of 0."""
    found: dict[str, dict[int, dict]] = defaultdict(dict)
    for name, record in RECORDS.items():
        if "runs/retokenize/" in name and "wikitext" in str(record["arguments"]["model"]):
            found[name.split("/")[-2].rsplit("-seed")[0]][record["seed"]] = record["metrics"]
    assert all(sorted(runs) == [1, 2, 3] for runs in found.values())

    def difference(init: str, field: str) -> tuple[float, float, float]:
        return mean_and_interval([r[field] - found["fvt"][seed][field] for seed, r in found[init].items()])

    others = {init for init in found if not init.startswith("fvt")}
    start = {init: difference(init, "step_0_bits_per_byte") for init in others}
    ends = {init: difference(init, "trained_bits_per_byte") for init in others}
    assert len(others) == 12 and all(high > 0 for _, _, high in ends.values())
    assert {init for init in others if start[init][1] <= 0} == {"vipi", "token_adapt", "clp"}
    page = page_of(RESULTS / "retokenize" / "README.md")
    mean, low, high = start["vipi"]
    ahead = f"by {-mean:.3f} ({-high:.3f} to {-low:.3f})"
    assert ahead in page and ahead in PAGE
    level = "({:+.3f}, {:.3f} to {:.3f})".format(*start["token_adapt"])
    assert level in page and f"WikiText {level[1:]}" in PAGE
    behind = "{:.3f} behind ({:.3f} to {:.3f})".format(*ends["token_adapt"])
    assert behind in page
    assert "there ({:+.3f}, {:.3f} to {:.3f})".format(*ends["vipi"]) in PAGE
    spoilt = sorted(run["step_0_bits_per_byte"] for run in found["clp"].values())
    assert start["clp"][1] < 0 and "{:,.0f}, {:,.0f} and {:,.0f}".format(*spoilt) in page
    assert "{:,.0f}, {:,.0f} and {:,.0f} on WikiText".format(*spoilt) in PAGE


def test_five_seeds_on_a_gpu_are_as_the_page_says() -> None:
    on_gpu = multi30k_runs("xavier", gpu=True)
    bleu, on_cpu = (multi30k_scores("xavier", "test_bleu_tokenized", gpu=gpu) for gpu in (True, False))
    best = [record["best_epoch"] for record in on_gpu.values()]
    assert sorted(bleu) == [1, 2, 3, 4, 5] and sorted(on_cpu) == [1, 2, 3]
    assert {record["runtime"]["device"] for record in on_gpu.values()} == {"NVIDIA H200"}
    apart = mean_and_interval(gaps(bleu, on_cpu))
    assert f"have {with_sd(bleu.values())}, best in epochs {min(best):.0f} to {max(best):.0f}: nearer" in PAGE
    assert "in bfloat16 ({:.1f}, {:.1f} to {:.1f})".format(*apart) in PAGE
    guide = page_of("hf_embinit/guides/table1-on-a-gpu.md")
    taken = [
        record["runtime"]["train_seconds"]
        for name, record in RECORDS.items()
        if "translate/multi30k" in name and record["runtime"]["device"] == "NVIDIA H200"
    ]
    assert len(taken) == 13 and f"{min(taken):.0f} to {max(taken):.0f} seconds of training each" in guide
    assert f"Their BLEU is {with_sd(bleu.values())}" in guide
