"""The frontier of meaning and position, from files to files, on a small space with analogies in it."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
import torch
from builders.committed_records import (
    RESULTS,
    committed_records,
    gaps,
    mean_and_interval,
    multi30k_scores,
    page_of,
    table_of,
    translations,
    with_sd,
)

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.report import FrontierArguments, measure_frontier
from hf_embinit.report.frontier import TABLES, render_frontier
from hf_embinit.vectors import PretrainedVectors, write_vectors

D = 40
COMMITTED = Path(__file__).parents[2] / "recipes" / "results" / "orthogonal"


def pages():
    """The page of the study and the one behind it, each sentence on one line."""
    both = (COMMITTED / name for name in ("README.md", "training.md"))
    return " ".join(map(page_of, both))


@pytest.fixture
def files(tmp_path):
    """Vectors of pairs (w3, v3), each v its w moved by one offset, and the questions that this answers."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(120, D, generator=generator)
    second = first + 2 * torch.randn(D, generator=generator) + 0.1 * torch.randn(120, D, generator=generator)
    tokens = [f"{letter}{i}" for letter in "wv" for i in range(120)]
    write_vectors(tmp_path / "v.txt", PretrainedVectors(tokens, torch.cat([first, second]), name="v"))
    lines = [f"w{i} v{i} w{i + 1} v{i + 1}" for i in range(100)]
    (tmp_path / "a.txt").write_text("\n".join([": pairs", *lines]) + "\n")
    return {"vectors": str(tmp_path / "v.txt"), "analogies": str(tmp_path / "a.txt")}


def test_the_frontier(files, tmp_path, global_rng_untouched):
    args = FrontierArguments(
        **files, output_dir=str(tmp_path / "out"), positions=[4, 8], position_scales=[1.0, 0.05], sample=50
    )
    results = measure_frontier(args, "the command")
    assert json.loads((tmp_path / "out" / "results.json").read_text())["cells"] == results["cells"]
    cell = {(c["num_positions"], c["table"], c["position_scale"]): c for c in results["cells"]}
    assert cell.keys() == {(n, t, s) for n in (4, 8) for t in TABLES for s in (1.0, 0.05)}
    for n in (4, 8):
        ours, plain = cell[n, "emptied", 0.05], cell[n, "standardized", 0.05]
        assert ours["position_accuracy"] == 1.0 > plain["position_accuracy"]
        assert ours["analogies_in_sum"] > 0.8 > cell[n, "standardized", 1.0]["analogies_in_sum"]
        assert ours["energy"] < 1e-6 < cell[n, "turned", 1.0]["energy"] < plain["energy"]
        assert plain["energy"] < cell[n, "anti", 1.0]["energy"]
        for table in ("standardized", "turned", "random", "anti"):  # a turn changes no cosine
            assert cell[n, table, 1.0]["analogies_alone"] == plain["analogies_alone"]
    page = (tmp_path / "out" / "table.md").read_text()
    assert "the command" in page and "figures/frontier.png" in page
    shown = 100 * cell[8, "emptied", 0.05]["analogies_in_sum"]
    row = next(line for line in page.split("## 8 positions")[1].splitlines() if "turned and emptied" in line)
    assert row.endswith(f"| {shown:.1f} / 100.0 |")
    directions = results["directions"]
    assert len(directions["emptied"]) == D
    assert max(directions["emptied"][: directions["span"]]) < 1e-9
    assert (tmp_path / "out" / "figures" / "frontier.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("init", "options", "shares", "quoted"),
    [
        ("glove_xavier", None, ("17.3", "16.9"), "17% lies in the 22 of 128"),
        ("glove_orthogonal", None, ("0.0", "9.2"), "Emptied tables end with 9.2%"),
        ("glove_orthogonal", ["empty=false"], ("0.2", "9.3"), "turned ones with 9.3%"),
        ("glove_orthogonal", ["turn=most", "empty=false"], ("65.4", "42.4"), "from 65.4% to 42.4%"),
    ],
)
def test_what_training_does_to_the_channel_is_as_the_records_say(init, options, shares, quoted):
    """Means over both tables and three seeds, in percent, before and after training."""
    found = in_positions("translate/captions", init, options)
    assert len(found) == 6 and {there["dimensions"] for there in found} == {22}
    assert in_percent(found) == shares
    assert quoted in pages()


def test_training_leaves_the_channel_of_sst2_as_it_was():
    emptied = in_positions("classify/sst2", "glove_orthogonal", None)
    control = in_positions("classify/sst2", "glove_orthogonal", ["turn=most", "empty=false"])
    assert len(emptied) == len(control) == 10 and {there["dimensions"] for there in emptied + control} == {23}
    assert (in_percent(emptied), in_percent(control)) == (("0.0", "0.2"), ("29.8", "29.2"))


def test_training_fills_the_channel_of_multi30k():
    page = pages()
    for options, shares, quoted in (
        (None, ("0.0", "4.6"), "from 0.0% to 4.6% of the tables"),
        (["turn=random", "empty=false"], ("7.8", "9.0"), "After a random turn it goes from 7.8% to 9.0%"),
        (
            ["turn=most", "empty=false"],
            ("49.1", "32.6"),
            "49.1% lies on the positions before training, 32.6% after",
        ),
    ):
        found = in_positions("translate/multi30k", "glove_orthogonal", options)
        assert len(found) == 6 and in_percent(found) == shares and quoted in page


def in_positions(runs, init, options):
    """What trained tables hold in the positions' span, before and after, with positions as published."""
    found = []
    for name, record in committed_records().items():
        if not name.startswith(f"reproduce/runs/{runs}-") or record["init"] != init:
            continue
        given = record["arguments"]
        plain = given["position_encoding"] == "sinusoidal" and given.get("position_scale", 1.0) == 1.0
        if plain and given.get("init_options") == options and not given.get("freeze_embeddings"):
            found += [stages["in_positions"] for stages in record["embedding_statistics"].values()]
    return found


def in_percent(found):
    means = [100 * sum(there[k] for there in found) / len(found) for k in ("energy", "energy_after_training")]
    return tuple(f"{mean:.1f}" for mean in means)


INTERVALS = {
    ("SST-2, trained", "Acc"): {
        "not told (1.4, -0.1 to 2.8)": "anti-1 - emptied-1",
        "1.1 below `glove_xavier` (0.0 to 2.1)": "anti-1 - glove_xavier-1",
        "+0.3 on `glove_xavier` (-0.8 to 1.4)": "emptied-1 - glove_xavier-1",
        "not told either (+0.1, -1.3 to 1.5)": "random-1 - emptied-1",
        "+0.7, -1.6 to 3.0": "emptied-0.5 - glove_xavier-0.5",
        "0.8 ahead of the control (0.0 to 1.7)": "anti-0.2 - random-0.2",
        "by 8.4 at half (5.3 to 11.6)": "glove_xavier-0.5 - glove-0.5",
        "8.6 at a tenth (2.3 to 14.8)": "glove_xavier-0.1 - glove-0.1",
        "told above `xavier` (+0.7, 0.0 to 1.4)": "cut-0.1 - xavier-0.1",
        "8.5 at a fifth (6.5 to 10.5)": "glove_xavier-0.2 - glove-0.2",
        "0.2 on `glove_xavier` with added sines (-3.9 to 4.2)": "rotary-1 - glove_xavier-1",
        "0.4 on `xavier` (0.1 to 0.7)": "xavier_rotary-1 - xavier-1",
        "(+1.2, -2.1 to 4.4;": "turned-1 - glove_xavier-1",
        "(+0.6, -1.3 to 2.4)": "turned-1 - emptied-1",
        "7.8 above raw vectors (2.9 to 12.7)": "glove_xavier-1 - glove-1",
        "6.4 above them (1.2 to 11.6)": "anti-1 - glove-1",
        "`xavier` (+1.3, 0.2 to 2.5)": "relative-1 - xavier-1",
        "a random turn (+0.5, 0.2 to 0.8)": "relative-1 - random-1",
        "no positions (+0.8, 0.5 to 1.1)": "none-1 - relative-1",
        "added sines (+1.2, -3.5 to 5.9)": "relative-1 - glove_xavier-1",
        "rotary ones (+1.0, -1.2 to 3.3)": "relative-1 - rotary-1",
    },
    ("captions, frozen", "BLEU"): {
        "+3.7 (1.9 to 5.5)": "cut-0.5 - glove_xavier-0.5",
        "ahead of a random turn at a fifth, by 3.7 (0.9 to 6.6)": "random-0.2 - cut-0.2",
        "by 23.7 at half (18.6 to 28.9)": "glove_xavier-0.5 - glove-0.5",
        "18.0 at a fifth (12.5 to 23.6)": "glove_xavier-0.2 - glove-0.2",
        "11.7 at a tenth (1.6 to 21.8)": "glove_xavier-0.1 - glove-0.1",
    },
    ("SST-2, frozen", "Acc"): {
        "+1.8 (-10.7 to 14.2)": "emptied-1 - glove_xavier-1",
        "-0.8 (-2.2 to 0.7)": "emptied-0.2 - glove_xavier-0.2",
        "2.8 below a random turn (1.8 to 3.8)": "anti-1 - random-1",
        "+0.8 on `glove_orthogonal` (-6.2 to 7.9)": "random-1 - emptied-1",
        "4.8 above `glove_orthogonal` (0.9 to 8.7)": "none-1 - emptied-1",
        "4.0 above a random turn (0.7 to 7.3)": "none-1 - random-1",
        "6.8 above the control (4.4 to 9.2)": "none-1 - anti-1",
        "(+6.6, -2.6 to 15.8)": "none-1 - glove_xavier-1",
        "4.6 above turned tables (0.3 to 9.0)": "none-1 - turned-1",
        "3.9 above raw vectors (1.0 to 6.7)": "none-1 - glove-1",
        "(+1.0 without, -2.7 to 4.8)": "none-1 - rotary-1",
        "2.2 below turned tables (0.2 to 4.2)": "anti-1 - turned-1",
        "2.9 below raw vectors (1.5 to 4.4)": "anti-1 - glove-1",
        "(-2.7, -9.1 to 3.7)": "glove_xavier-1 - glove-1",
        "raw +12.3, 2.1 to 22.5": "glove-1 - xavier-1",
        "turned +11.5, 2.9 to 20.2": "turned-1 - xavier-1",
        "by 12.8 over added sines (4.2 to 21.3)": "xavier_rotary-1 - xavier-1",
        "vectors gain 2.4 on these (1.4 to 3.4)": "rotary-1 - xavier_rotary-1",
        "5.8 above the control (0.4 to 11.2)": "rotary-1 - anti-1",
        "5.1 above tables emptied without a turn (0.3 to 9.8)": "rotary-1 - cut-1",
        "`glove_orthogonal` (+3.8, -0.7 to 8.3)": "rotary-1 - emptied-1",
        "(+5.5, -7.0 to 18.1)": "rotary-1 - glove_xavier-1",
        "From relative ones they are not told (+0.2, -6.0 to 6.4)": "relative-1 - rotary-1",
        "+0.4 (-7.2 to 7.9) at half": "emptied-0.5 - glove_xavier-0.5",
        "+0.9 (-2.3 to 4.2) at a tenth": "emptied-0.1 - glove_xavier-0.1",
        "(at half +2.1, 0.1 to 4.1;": "anti-0.5 - random-0.5",
        "at a fifth -0.8, -9.9 to 8.4;": "anti-0.2 - random-0.2",
        "at a tenth +0.7, -3.1 to 4.4)": "anti-0.1 - random-0.1",
        "+5.6 (4.4 to 6.8)": "emptied-0.1 - xavier-0.1",
        "by +5.4 (4.0 to 6.8)": "turned-0.1 - xavier-0.1",
        "told apart (-0.2, -1.8 to 1.4)": "turned-0.1 - emptied-0.1",
        "3.6 behind the control (1.7 to 5.4)": "anti-0.1 - glove-0.1",
        "a random turn is 4.8 below it (4.2 to 5.4)": "random-0.5 - cut-0.5",
        "control 2.8 below it (0.2 to 5.3)": "anti-0.5 - cut-0.5",
        "3.6 above them (1.1 to 6.0)": "glove_xavier-0.2 - glove-0.2",
        "emptied without a turn 3.8 (1.8 to 5.9)": "cut-0.2 - glove-0.2",
    },
    ("Multi30k, frozen", "BLEU"): {
        "+0.29 BLEU (-0.07 to 0.66)": "emptied-1 - glove_xavier-1",
        "0.44 behind `glove_xavier` (0.15 to 0.74)": "anti-1 - glove_xavier-1",
        "0.74 behind `glove_orthogonal` (0.64 to 0.84)": "anti-1 - emptied-1",
        "+0.26 BLEU on `glove_xavier` (-0.91 to 1.44)": "random-1 - glove_xavier-1",
        "-0.03 on `glove_orthogonal` (-1.26 to 1.20)": "random-1 - emptied-1",
        "not in BLEU (-0.71, -1.85 to 0.44)": "anti-1 - random-1",
        "+2.07 BLEU with them on added sines (0.23 to 3.91)": "rotary-1 - glove_xavier-1",
        "+1.77 on `glove_orthogonal` (0.03 to 3.52)": "rotary-1 - emptied-1",
        "+1.80 on a random turn (0.95 to 2.66)": "rotary-1 - random-1",
        "+0.02 BLEU (-1.27 to 1.31)": "emptied-0.5 - glove_xavier-0.5",
        "4.7 BLEU above frozen random (3.5 to 5.9)": "glove_xavier-1 - xavier-1",
        "+0.93 BLEU, -1.04 to 2.90": "glove-1 - xavier-1",
        "3.76 BLEU above raw vectors (2.63 to 4.88)": "glove_xavier-1 - glove-1",
        "`glove_orthogonal` 4.05 above them (2.82 to 5.28)": "emptied-1 - glove-1",
        "on the positions, 3.31 (2.17 to 4.45)": "anti-1 - glove-1",
        "`glove_orthogonal` 5.0 (3.4 to 6.5)": "emptied-1 - xavier-1",
        "5.14 BLEU below itself with added sines (4.17 to 6.11)": "none-1 - glove_xavier-1",
        "4.69 below the control (3.44 to 5.95)": "none-1 - anti-1",
        "7.21 below rotary ones (4.84 to 9.57)": "none-1 - rotary-1",
        "from random rows with them (-0.45, -1.11 to 0.20)": "none-1 - xavier-1",
        "(-1.38, -2.77 to 0.00), and their": "none-1 - glove-1",
    },
    ("Multi30k, frozen", "Val. loss"): {
        "(-0.007, -0.021 to 0.007, and": "random-1 - glove_xavier-1",
        "and +0.003, -0.021 to 0.026)": "random-1 - emptied-1",
        "0.056 above a random turn's (0.036 to 0.076)": "anti-1 - random-1",
        "in loss 0.049 (0.042 to 0.056)": "anti-1 - glove_xavier-1",
        "0.058 (0.055 to 0.062) above them": "anti-1 - emptied-1",
        "0.095 nats lower than with added sines (0.066 to 0.124)": "rotary-1 - glove_xavier-1",
        "-0.008 nats (-0.016 to 0.001)": "emptied-0.5 - glove_xavier-0.5",
        "-0.009 nats (-0.020 to 0.002)": "emptied-1 - glove_xavier-1",
        "0.154 nats lower (0.129 to 0.180;": "glove-1 - xavier-1",
        "0.100 nats below them (0.090 to 0.110)": "glove_xavier-1 - glove-1",
        "0.190 nats above it (0.182 to 0.198)": "none-1 - glove_xavier-1",
        "are 0.064 nats below these (0.040 to 0.088)": "none-1 - xavier-1",
        "0.090 nats above theirs (0.088 to 0.092)": "none-1 - glove-1",
    },
    ("Multi30k, trained", "BLEU"): {
        "+0.35 BLEU on `glove_xavier` (-1.54 to 2.24)": "emptied-0.5 - glove_xavier-0.5",
        "is -0.90 BLEU (-1.44 to -0.37)": "emptied-0.5 - xavier-0.5",
        "`xavier` (-1.25, -3.54 to 1.04)": "glove_xavier-0.5 - xavier-0.5",
        "-1.36 BLEU (-2.72 to -0.005)": "glove_xavier-0.2 - xavier-0.2",
        "+0.60 BLEU (0.06 to 1.13)": "emptied-0.2 - glove_xavier-0.2",
        "+0.60 (0.06 to 1.13)": "emptied-0.2 - glove_xavier-0.2",
        "in neither (-0.77, -2.52 to 0.99;": "emptied-0.2 - xavier-0.2",
        "-1.16 on `glove_orthogonal` (-2.71 to 0.38)": "anti-0.2 - emptied-0.2",
        "-0.57 on `glove_xavier` (-2.35 to 1.22)": "anti-0.2 - glove_xavier-0.2",
        "-1.93 on `xavier` (-5.07 to 1.21)": "anti-0.2 - xavier-0.2",
        "-1.54 BLEU (-2.59 to -0.49)": "emptied-1 - xavier-1",
        "(-0.91, -2.69 to 0.87)": "emptied-1 - glove_xavier-1",
        "3.0 behind it (1.7 to 4.3)": "emptied-1 - glove-1",
        "+0.69 BLEU on `glove_orthogonal` (-1.47 to 2.86)": "random-1 - emptied-1",
        "-0.22 on `glove_xavier` (-0.85 to 0.41)": "random-1 - glove_xavier-1",
        "below `xavier` alone, by 1.09 (0.23 to 1.94)": "anti-1 - xavier-1",
        "`glove_xavier` (-0.46, -1.03 to 0.11)": "anti-1 - glove_xavier-1",
        "a random turn (-0.24, -0.95 to 0.47)": "anti-1 - random-1",
        "`glove_orthogonal` (+0.45, -1.00 to 1.91)": "anti-1 - emptied-1",
        "3.48 behind it (2.53 to 4.43)": "anti-1 - glove-1",
        "7.43 BLEU below itself with added sines (5.44 to 9.41)": "none-1 - glove_xavier-1",
        "3.49 BLEU below raw vectors (1.20 to 5.77)": "none-1 - glove-1",
        "6.97 below the control (4.97 to 8.96)": "none-1 - anti-1",
        "+0.22 BLEU with them (-2.62 to 3.06)": "rotary-1 - glove_xavier-1",
        "added sines (-0.41, -2.42 to 1.61)": "rotary-1 - xavier-1",
        "`glove_orthogonal` (+1.13, -0.02 to 2.28)": "rotary-1 - emptied-1",
    },
    ("Multi30k, trained", "Val. loss"): {
        "-0.004 nats (-0.027 to 0.020)": "emptied-0.5 - glove_xavier-0.5",
        "(+0.006, -0.021 to 0.033)": "glove_xavier-0.2 - xavier-0.2",
        "; +0.001, -0.019 to 0.022)": "emptied-0.2 - xavier-0.2",
        "in loss (-0.004, -0.011 to 0.003)": "emptied-0.2 - glove_xavier-0.2",
        "0.035 nats above `glove_orthogonal` (0.009 to 0.061)": "anti-0.2 - emptied-0.2",
        "0.036 above `xavier` (0.028 to 0.045)": "anti-0.2 - xavier-0.2",
        "(+0.031, -0.002 to 0.063)": "anti-0.2 - glove_xavier-0.2",
        "+0.004 on `glove_xavier`, -0.025 to 0.032": "emptied-1 - glove_xavier-1",
        "-0.007 on `glove_orthogonal` (-0.012 to -0.003)": "random-1 - emptied-1",
        "-0.005 on `xavier`, -0.021 to 0.011": "emptied-1 - xavier-1",
        "0.023 nats above `glove_xavier` (0.009 to 0.037)": "anti-1 - glove_xavier-1",
        "0.027 above a random turn (0.011 to 0.042)": "anti-1 - random-1",
        "0.019 above `glove_orthogonal` (0.004 to 0.035)": "anti-1 - emptied-1",
        "(+0.015, -0.006 to 0.035)": "anti-1 - xavier-1",
        "-0.001 nats (-0.030 to 0.028)": "rotary-1 - glove_xavier-1",
        "0.295 nats above it (0.290 to 0.300)": "none-1 - glove_xavier-1",
    },
    ("captions, trained", "Val. loss"): {
        "0.023 nats above `glove_orthogonal` (0.012 to 0.034)": "anti-1 - emptied-1",
        "(-0.021, -0.045 to 0.004)": "emptied-1 - glove_xavier-1",
    },
}
"""Column and value of the table of the study -> what the pages say, and the row that it is of."""


@pytest.mark.parametrize(
    ("column", "value", "difference", "quoted"),
    [
        (*place, difference, quoted)
        for place, said in INTERVALS.items()
        for quoted, difference in said.items()
    ],
)
def test_intervals_are_those_of_the_table(column, value, difference, quoted):
    table = table_of("orthogonal")
    numbers_of = rf"^\| {column} \| {re.escape(difference)} \| {value} \| (.*?) \| (.*?) to (.*?) \|"
    (row,) = re.findall(numbers_of, table, re.MULTILINE)
    said = re.findall(r"[-+]?\d+\.\d+", quoted)
    rounding = 0.51 * 10 ** -len(said[0].partition(".")[2])
    numbers = [float(number) for number in said]
    if any(
        words in quoted for words in ("behind `", "below", "not told", "ahead of", "no positions", "lower")
    ):
        numbers = [-numbers[0], -numbers[2], -numbers[1]]
    assert numbers == pytest.approx([float(number) for number in row], abs=rounding)
    assert quoted in pages()


SST2 = {
    "emptied": ("glove_orthogonal", None, "sinusoidal"),
    "turned": ("glove_orthogonal", ["empty=false"], "sinusoidal"),
    "anti": ("glove_orthogonal", ["turn=most", "empty=false"], "sinusoidal"),
    "plain": ("glove_xavier", None, "sinusoidal"),
    "rotary": ("glove_xavier", None, "rotary"),
}


def on_sst2(*, frozen):
    """Accuracy in percent of the reduced runs: arm and factor (None without sines), then (bf16, seed)."""
    found = {}
    for name, record in committed_records().items():
        if not name.startswith("reproduce/runs/classify/sst2-words-"):
            continue
        given = record["arguments"]
        if given["max_train_samples"] == 20000 and given["freeze_embeddings"] == frozen:
            arm = (record["init"], given.get("init_options"), given["position_encoding"])
            factor = given.get("position_scale", 1.0) if arm[2] == "sinusoidal" else None
            best = 100 * max(row["validation_accuracy"] for row in record["history"])
            found.setdefault((str(arm), factor), {})[given["bf16"], record["seed"]] = best
    return found


def trained_on_sst2():
    """The trained runs at factor 1, or without sines: arm, then (bf16, seed)."""
    return {arm: runs for (arm, factor), runs in on_sst2(frozen=False).items() if factor in (1.0, None)}


@pytest.mark.parametrize(
    ("arm", "against", "half", "quoted"),
    [
        ("plain", "anti", True, "1.3 below (0.1 to 2.5)"),
        ("emptied", "anti", True, "2.1 below `glove_orthogonal` (0.4 to 3.9)"),
        ("plain", "anti", None, "1.2 below `glove_xavier` (0.6 to 1.8)"),
        ("emptied", "anti", None, "1.7 below `glove_orthogonal` (0.8 to 2.7)"),
        ("emptied", "plain", True, "in bfloat16 +0.9 (-0.1 to 1.8)"),
        ("emptied", "plain", None, "in all ten +0.6 (-0.0 to 1.2)"),
        ("turned", "plain", True, "-0.5, -3.9 to 2.9"),
        ("rotary", "plain", True, "in bfloat16 +0.3 (-0.3 to 0.9)"),
    ],
)
def test_runs_of_sst2_in_both_precisions_say_what_the_page_says(arm, against, half, quoted):
    found = trained_on_sst2()
    ours, theirs = found[str(SST2[arm])], found[str(SST2[against])]
    runs = [run for run in ours.keys() & theirs.keys() if half in (None, run[0])]
    assert len(runs) == (10 if half is None else 3 if arm in ("turned", "rotary") else 5)
    by_run = [ours[run] - theirs[run] for run in runs]
    said = [float(number) for number in re.findall(r"[-+]?\d+\.\d", quoted)]
    assert said == pytest.approx(mean_and_interval(by_run), abs=0.051)
    assert quoted in pages()


@pytest.mark.parametrize(
    ("frozen", "arm", "factor", "against", "since", "quoted"),
    [
        (True, "emptied", 0.1, "emptied", 1.0, "gains 5.6 from factor 1 to 0.1 (1.0 to 10.2)"),
        (True, "turned", 0.1, "turned", 1.0, "turning only 5.2 (2.6 to 7.8)"),
        (True, "xavier", 0.2, "xavier", 1.0, "`xavier` 11.5 to 0.2 (8.7 to 14.4)"),
        (True, "emptied", 0.1, "plain", None, "(`glove_orthogonal` +0.8, -1.8 to 3.4)"),
        (True, "random", 1.0, "random", 0.5, "lose 2.1 at half the length (0.8 to 3.4)"),
        (True, "raw", 0.1, "raw", 1.0, "(at a tenth -1.3, -9.4 to 6.9)"),
        (False, "cut", 1.0, "cut", 0.5, "lose, 1.0 at half the length (0.5 to 1.4)"),
        (False, "cut", 1.0, "cut", 0.2, "and 1.2 at a fifth (0.2 to 2.2)"),
    ],
)
def test_what_the_length_of_positions_changes_on_sst2(frozen, arm, factor, against, since, quoted):
    found = on_sst2(frozen=frozen)
    arms = SST2 | {
        "xavier": ("xavier", None, "sinusoidal"),
        "raw": ("glove", None, "sinusoidal"),
        "random": ("glove_orthogonal", ["turn=random", "empty=false"], "sinusoidal"),
        "cut": ("glove_orthogonal", ["turn=none"], "sinusoidal"),
    }
    theirs = (*arms[against][:2], "sinusoidal" if since else "none")
    ours, theirs = found[str(arms[arm]), factor], found[str(theirs), since]
    runs = [run for run in sorted(ours.keys() & theirs.keys()) if frozen or not run[0]]
    gained = [ours[run] - theirs[run] for run in runs]
    said = [
        float(n) for n in re.findall(r"[-+]?\d+\.\d", quoted.replace(" to 0.1", "").replace(" to 0.2", ""))
    ]
    assert said == pytest.approx(mean_and_interval(gained), abs=0.051)
    assert quoted in pages()


def test_a_seed_does_not_make_a_run_twice():
    both = [
        runs[False, seed] - score
        for runs in trained_on_sst2().values()
        for (half, seed), score in runs.items()
        if half and (False, seed) in runs
    ]
    told = f"by {statistics.stdev(both):.1f} points (sd of {len(both)} pairs; {statistics.fmean(both):.1f} on"
    assert told in pages()
    of_results = page_of(RESULTS / "README.md")
    assert f"at two commits, differ by {statistics.stdev(both):.1f} points (sd)" in of_results


@pytest.mark.parametrize(
    ("init", "quoted"), [("glove_orthogonal", "11.0 (9.5 to 12.5)"), ("glove_xavier", "9.5 (3.6 to 15.3)")]
)
def test_positions_a_tenth_as_long_are_too_short_by_what_the_page_says(init, quoted):
    low, mean, high = lost_by_shortening(init, None, trained=False, to=0.1, since=0.5)
    assert f"{mean:.1f} ({low:.1f} to {high:.1f})" == quoted
    assert quoted in pages()


@pytest.mark.parametrize(
    ("difference", "quoted"),
    [
        ("emptied-1 - glove_xavier-1", "+0.0 (-0.7 to 0.8)"),
        ("anti-1 - glove_xavier-1", "1.3 below `glove_xavier` (-0.1 to 2.6)"),
        ("anti-1 - emptied-1", "1.3 below `glove_orthogonal` (-0.8 to 3.4)"),
        ("anti-0.5 - emptied-0.5", "3.2 behind `glove_orthogonal` (1.4 to 5.0)"),
        ("anti-0.5 - random-0.5", "2.7 behind a random turn (1.6 to 3.7)"),
        ("emptied-0.5 - glove_xavier-0.5", "at half (+2.2, -1.1 to 5.6)"),
        ("anti-0.2 - glove_xavier-0.2", "3.1 behind `glove_xavier` (0.5 to 5.7)"),
        ("random-0.2 - emptied-0.2", "2.1 ahead of a random turn (0.2 to 3.9)"),
        ("emptied-0.2 - xavier-0.2", "2.1 ahead of `xavier` (1.7 to 2.6)"),
        ("glove_xavier-0.2 - xavier-0.2", "cannot be told (+0.1, -3.4 to 3.6)"),
        ("emptied-0.2 - glove_xavier-0.2", "at a fifth (+2.0, -1.3 to 5.3)"),
        ("emptied-0.1 - glove_xavier-0.1", "+1.5 on `glove_xavier` (0.8 to 2.1)"),
        ("random-0.1 - emptied-0.1", "+2.2 on a random turn (0.5 to 3.8)"),
        ("turned-0.5 - glove_xavier-0.5", "+3.0 on `glove_xavier` (0.8 to 5.2)"),
        ("turned-0.5 - glove_xavier-0.5", "at half and at a fifth (+3.0, 0.8 to 5.2;"),
        ("turned-0.2 - glove_xavier-0.2", "; +1.7, 0.1 to 3.3)"),
        ("turned-0.2 - glove_xavier-0.2", "and +1.7 (0.1 to 3.3)"),
        ("anti-0.1 - turned-0.1", "turned tables alone (3.3, 1.3 to 5.3)"),
        ("glove_xavier-0.5 - glove-0.5", "39.3 above them at half (31.2 to 47.4)"),
        ("glove_xavier-0.2 - glove-0.2", "30.8 at a fifth (25.0 to 36.5)"),
        ("glove_xavier-0.1 - glove-0.1", "18.9 at a tenth (12.0 to 25.7)"),
    ],
)
def test_directions_count_in_trained_captions_with_short_positions(difference, quoted):
    table = table_of("orthogonal")
    row = rf"^\| captions, trained \| {re.escape(difference)} \| BLEU \| (.*?) \| (.*?) to (.*?) \| 3 \|"
    ((mean, low, high),) = re.findall(row, table, re.MULTILINE)
    numbers = [float(mean), float(low), float(high)]
    if "behind" in quoted or "below" in quoted or difference.startswith(("random", "anti")):
        numbers = [-numbers[0], -numbers[2], -numbers[1]]
    assert [float(n) for n in re.findall(r"[-+]?\d+\.\d", quoted)] == pytest.approx(numbers, abs=0.051)
    assert quoted in pages()


@pytest.mark.parametrize(
    ("init", "options", "to", "quoted"),
    [
        ("glove_orthogonal", None, 0.2, "8.5 with `glove_orthogonal` (4.0 to 12.9)"),
        ("glove_xavier", None, 0.2, "10.5 with `glove_xavier` (7.8 to 13.2)"),
        ("xavier", None, 0.2, "8.2 with `xavier` (2.6 to 13.8)"),
        ("glove_orthogonal", ["turn=most", "empty=false"], 0.2, "12.3 with the control (10.8 to 13.8)"),
        ("glove_xavier", None, 0.5, "costs `glove_xavier` 3.5 (1.7 to 5.3)"),
        ("glove_orthogonal", ["turn=most", "empty=false"], 0.5, "the control 3.3 (1.3 to 5.3)"),
        ("glove_orthogonal", None, 0.1, "(`glove_orthogonal` 16.2, 12.1 to 20.3)"),
        ("glove_orthogonal", None, 0.5, "(`glove_orthogonal` 1.3, -0.5 to 3.2)"),
        ("glove", None, 0.5, "costs them 11.5 (4.0 to 19.0)"),
        ("glove", None, 0.1, "a tenth 5.2 (2.7 to 7.8)"),
    ],
)
def test_shorter_positions_harm_trained_captions(init, options, to, quoted):
    low, mean, high = lost_by_shortening(init, options, trained=True, to=to)
    said = [float(number) for number in re.findall(r"-?\d+\.\d", quoted)]
    assert said == pytest.approx([mean, low, high], abs=0.051)
    assert quoted in pages()


@pytest.mark.parametrize(
    ("init", "quoted"),
    [
        ("glove_xavier", "changes `glove_xavier` by -0.20 BLEU (-0.77 to 0.37)"),
        ("glove_orthogonal", "`glove_orthogonal` by -0.47 (-1.62 to 0.67)"),
    ],
)
def test_half_the_length_changes_nothing_that_is_told_on_multi30k(init, quoted):
    low, mean, high = lost_by_shortening(init, None, trained=False, to=0.5, data="multi30k")
    said = [float(number) for number in re.findall(r"-?\d+\.\d+", quoted)]
    assert said == pytest.approx([-mean, -high, -low], abs=0.0051)
    assert quoted in pages()


def test_rotary_positions_are_learnt_from_faster_on_multi30k():
    of = {}
    for kind in ("rotary", "sinusoidal"):
        runs = translations("multi30k", "glove_xavier", positions=kind)
        of[kind] = [f"{runs[seed]['best_epoch']:.0f}" for seed in (1, 2, 3)]
    page = pages()
    assert "lowest after {}, {} and {} epochs".format(*of["rotary"]) in page
    assert "with added sines it takes {}, {} and {}.".format(*of["sinusoidal"]) in page


def test_half_the_length_raises_the_loss_of_random_rows_on_multi30k():
    told = {}
    for metric in ("test_bleu_tokenized", "validation_loss"):
        low, mean, high = lost_by_shortening(
            "xavier", None, trained=True, to=0.5, data="multi30k", metric=metric, seeds=3
        )
        told[metric] = (-mean, -high, -low)
    loss, bleu = told["validation_loss"], told["test_bleu_tokenized"]
    assert loss[1] > 0 and bleu[1] < 0 < bleu[2]
    assert (
        "`xavier` loses {:.3f} nats ({:.3f} to {:.3f}), and in BLEU it is not told "
        "({:.2f}, {:.2f} to {:.2f})".format(*loss, *bleu)
    ) in pages()


@pytest.mark.parametrize(
    ("init", "bleu_told", "quoted"),
    [
        ("glove_xavier", True, "change `glove_xavier` by {:+.2f} BLEU ({:.2f} to {:.2f}) and "),
        ("glove_orthogonal", False, "`glove_orthogonal` changes by {:+.2f} BLEU ({:.2f} to {:.2f}) and "),
    ],
)
def test_half_the_length_harms_trained_multi30k(init, bleu_told, quoted):
    said = []
    for metric in ("test_bleu_tokenized", "validation_loss"):
        low, mean, high = lost_by_shortening(
            init, None, trained=True, to=0.5, data="multi30k", metric=metric, seeds=3
        )
        said.append((-mean, -high, -low))
    (bleu, loss) = said
    quoted += "{:+.3f} nats ({:.3f} to {:.3f})"
    assert loss[1] > 0 and (bleu[2] < 0) == bleu_told
    assert quoted.format(*bleu, *loss) in pages()
    if bleu_told:  # on the page of all results, too
        page = page_of(RESULTS / "README.md")
        assert (
            f"half the length by {-bleu[0]:.2f} with `glove_xavier` ({-bleu[2]:.2f} to {-bleu[1]:.2f})"
            in page
        )


@pytest.mark.parametrize("trained", [False, True])
def test_what_a_fifth_of_the_length_does_to_random_rows_on_multi30k(trained):
    told = {}
    for metric in ("test_bleu_tokenized", "validation_loss"):
        low, mean, high = lost_by_shortening(
            "xavier", None, trained=trained, to=0.2, data="multi30k", metric=metric,
            gpu=(0.2, 1.0) if trained else (0.2,),
        )  # fmt: skip
        told[metric] = (mean, low, high) if trained else (-mean, -high, -low)
    bleu, loss = told["test_bleu_tokenized"], told["validation_loss"]
    if trained:
        loss = (-loss[0], -loss[2], -loss[1])
        said = "it loses {:.2f} BLEU ({:.2f} to {:.2f}) and {:.3f} nats ({:.3f} to {:.3f}), with"
    else:
        said = "+{:.2f} over paired seeds ({:.2f} to {:.2f}), and in loss {:.3f} nats ({:.3f} to {:.3f});"
    assert said.format(*bleu, *loss) in pages()


@pytest.mark.parametrize(("init", "told_since_half"), [("glove_xavier", False), ("glove_orthogonal", True)])
def test_what_a_fifth_of_the_length_does_to_trained_vectors_on_multi30k(init, told_since_half):
    def lost(metric, since):
        return lost_by_shortening(
            init, None, trained=True, to=0.2, since=since, data="multi30k", metric=metric
        )

    bleu, loss = "test_bleu_tokenized", "validation_loss"
    (low, mean, high), (least, nats, most) = (lost(metric, 1.0) for metric in (bleu, loss))
    (since_low, since, since_high), (half_low, half, half_high) = (
        lost(metric, 0.5) for metric in (bleu, loss)
    )
    assert low > 0 and most < 0 and half_high < 0 and (since_low > 0) == told_since_half and since_high > 0
    since_half = f"{-half:.3f} nats ({-half_high:.3f} to {-half_low:.3f})"
    in_bleu = f"({since_low:.2f} to {since_high:.2f})"
    for said in (
        f"{mean:.2f} BLEU ({low:.2f} to {high:.2f}) and {-nats:.3f} nats ({-most:.3f} to {-least:.3f}), with "
        f"{with_sd(multi30k_scores(init, bleu, scale=0.2).values())} left",
        f"to a fifth {since:.2f} BLEU {in_bleu} and {since_half}"
        if told_since_half
        else f"to a fifth {since_half} and a loss in BLEU that is not told ({since:.2f}, {in_bleu[1:]}",
    ):
        assert said in pages(), said


def test_nobody_gains_by_a_fifth_of_the_length_on_multi30k():
    bleu = "test_bleu_tokenized"
    published, shorter = (
        multi30k_scores(init, bleu, scale=scale)
        for init, scale in (("glove_xavier", 1.0), ("glove_orthogonal", 0.2))
    )
    mean, low, high = mean_and_interval(gaps(published, shorter))
    assert low > 0 and f"is {mean:.2f} above what it has at a fifth ({low:.2f} to {high:.2f})" in pages()


def test_random_rows_at_a_fifth_and_a_tenth_on_multi30k_are_as_the_page_says():
    bleu, loss = "test_bleu_tokenized", "validation_loss"
    fifth, tenth = (multi30k_scores("xavier", bleu, frozen=True, scale=s, gpu=True) for s in (0.2, 0.1))
    published = multi30k_scores("glove_xavier", bleu, frozen=True)
    behind, low, high = mean_and_interval(gaps(published, fifth))
    trained = multi30k_scores("xavier", bleu, scale=0.2, gpu=True).values()
    cpu, gpu = (multi30k_scores("xavier", loss, gpu=gpu) for gpu in (False, True))
    apart = statistics.fmean(gpu[seed] - cpu[seed] for seed in cpu)
    assert all(tenth[seed] < fifth[seed] for seed in tenth) and sorted(tenth) == [1, 2]
    for said in (
        f"`xavier` has {with_sd(fifth.values())} BLEU",
        f"two seeds, {tenth[1]:.1f} and {tenth[2]:.1f}, which is below a fifth in both",
        f"still {behind:.1f} behind `glove_xavier` as published ({low:.1f} to {high:.1f})",
        f"with {with_sd(trained)} left",
        f"(at factor 1, trained, {apart:+.2f})",
    ):
        assert said in pages()


def test_what_vectors_are_ahead_by_at_a_fifth_on_multi30k():
    def ahead(metric, one, other):
        """Mean, low and high of `one` - `other`, each an initialiser and a factor."""
        return mean_and_interval(gaps(scores(metric, *one), scores(metric, *other)))

    def scores(metric, init, scale):
        on_gpu = (init, scale) == ("xavier", 0.2)
        found = multi30k_scores(init, metric, frozen=True, scale=scale, gpu=on_gpu)
        assert sorted(found) == [1, 2, 3]
        return found

    bleu, loss = "test_bleu_tokenized", "validation_loss"
    (plain, turned, drawn), (plain_1, turned_1, drawn_1) = (
        [(init, scale) for init in ("glove_xavier", "glove_orthogonal", "xavier")] for scale in (0.2, 1.0)
    )
    left = [ahead(bleu, one, drawn) for one in (plain, turned)]
    assert all(low < 0 < high for _, low, high in left)
    whole = [ahead(bleu, one, drawn_1)[0] for one in (plain_1, turned_1)]
    assert ahead(bleu, drawn, drawn_1)[0] > max(whole) / 2  # the most of it
    lower = [ahead(loss, drawn, one) for one in (plain, turned)]
    lower_1 = [ahead(loss, drawn_1, one)[0] for one in (plain_1, turned_1)]
    shares = [now[0] / published for now, published in zip(lower, lower_1, strict=True)]
    assert shares == pytest.approx([1 / 3] * 2, abs=0.05)
    interval = "{:.3f} nats ({:.3f} to {:.3f}) and {:.3f} ({:.3f} to {:.3f}), of {:.3f} and {:.3f}"
    lost = [ahead(bleu, *pair) for pair in ((plain_1, plain), (turned_1, turned))]
    for said in (
        "`glove_xavier` has {} and `glove_orthogonal` {} there".format(
            *(with_sd(scores(bleu, *one).values()) for one in (plain, turned))
        ),
        "{:.2f} BLEU ({:.2f} to {:.2f}) and {:.2f} ({:.2f} to {:.2f}) on `xavier`".format(*left[0], *left[1]),
        "at factor 1 they are {:.1f} and {:.1f} ahead; in loss".format(*whole),
        interval.format(*lower[0], *lower[1], *lower_1),
        "lose {:.2f} BLEU ({:.2f} to {:.2f}) and {:.2f} ({:.2f} to {:.2f}) from".format(*lost[0], *lost[1]),
        "({:+.2f}, {:.2f} to {:.2f}), and in loss".format(*ahead(bleu, turned, plain)),
        "`glove_orthogonal` is {:.3f} below ({:.3f} to {:.3f})".format(*ahead(loss, plain, turned)),
        "with {:.2f} and {:.2f} BLEU and {:.3f} and {:.3f} nats more".format(
            *(
                multi30k_scores(init, metric, frozen=True, scale=0.2, bf16=False)[1]
                - scores(metric, init, 0.2)[1]
                for metric in (bleu, loss)
                for init, _ in (plain, turned)
            )
        ),
    ):
        assert said in pages(), said


def lost_by_shortening(
    init, options, *, trained, to, since=1.0, data="captions", metric="test_bleu_tokenized", seeds=3, gpu=()
):
    """The t interval and the mean of what is lost in BLEU, over seeds: low, mean, high. `gpu` are the
    factors whose runs were on a GPU."""
    longer, shorter = (
        translations(data, init, options, frozen=not trained, scale=scale, gpu=scale in gpu)
        for scale in (since, to)
    )
    lost = [longer[seed]["metrics"][metric] - run["metrics"][metric] for seed, run in shorter.items()]
    assert len(lost) == seeds
    mean, low, high = mean_and_interval(lost)
    return low, mean, high


def test_settings_that_cannot_work(files, tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"--position_scales has 0\.0: expected a finite number"):
        measure_frontier(FrontierArguments(**files, position_scales=[0.0]), "")
    (tmp_path / "a.txt").write_text(": x\nnone of these there\n")
    with pytest.raises(InvalidArgumentError, match="no question has all its words in the vectors"):
        measure_frontier(FrontierArguments(**files), "")


def test_the_page_of_the_study_quotes_its_record():
    results = json.loads((COMMITTED / "results.json").read_text(encoding="utf-8"))
    table = (COMMITTED / "table.md").read_text(encoding="utf-8")
    assert table == render_frontier(results, "figures/frontier.png")
    assert "-dirty" not in results["versions"]["commit"]
    page = (COMMITTED / "README.md").read_text(encoding="utf-8")
    quoted = re.findall(r"\d+\.\d / \d+\.\d", page)
    assert len(quoted) > 20 and set(quoted) <= set(re.findall(r"\d+\.\d / \d+\.\d", table))
    of_64 = [line for line in page.splitlines() if line.startswith("| ") and " / " in line]
    assert len(of_64) == len(TABLES)
    assert set(of_64) <= set(table.split("## 64 positions")[1].split("## ")[0].splitlines())
    cells = {(c["num_positions"], c["table"], c["position_scale"]): c for c in results["cells"]}
    assert f"{cells[64, 'standardized', 1.0]['length']:.1f}" == "2.6"  # times as long as words
    ours = cells[64, "emptied", 0.1]
    assert ours["analogies_in_sum"] > 0.75 and ours["position_accuracy"] == 1.0 and ours["dimensions"] == 23


AT_A_GLANCE = {
    "`glove_orthogonal` - `glove_xavier`": "emptied-1 - glove_xavier-1",
    "the same, positions half as long": "emptied-0.5 - glove_xavier-0.5",
    "most energetic directions - `glove_xavier`": "anti-1 - glove_xavier-1",
    "most energetic directions - `glove_orthogonal`": "anti-1 - emptied-1",
    "a random turn - `glove_xavier`": "random-1 - glove_xavier-1",
    "`glove_xavier` - `glove`, the raw vectors": "glove_xavier-1 - glove-1",
    "rotary positions - added sines, `glove_xavier`": "rotary-1 - glove_xavier-1",
}


def test_the_page_of_the_study_shows_the_differences_of_the_table():
    page = (COMMITTED / "README.md").read_text(encoding="utf-8")
    rows = page[page.index("| BLEU, or accuracy") :].split("\n\n")[0].splitlines()
    columns = rows[0].strip("| ").split(" | ")[1:]
    shown = {name: cells for name, *cells in (row.strip("| ").split(" | ") for row in rows[2:])}
    assert len(columns) == 6
    assert shown == {
        name: [cell_of(column, difference) for column in columns] for name, difference in AT_A_GLANCE.items()
    }


def test_what_the_page_of_the_study_says_of_all_columns():
    table = table_of("orthogonal")
    row = r"^\| ([^|]+, (?:trained|frozen)) \| (\w+)-(\S+) - (\w+)-\3 \| (.*?) \| \S+ \| (\S+) to (\S+) \|"
    told = {}  # -1, 0 or 1: told below, not told, told above, in what is better
    for column, ours, factor, theirs, value, low, high in re.findall(row, table, re.MULTILINE):
        sign = -1 if value == "Val. loss" else 1
        above = sign * ((float(low) > 0) - (float(high) < 0))
        told[column, factor, value, ours, theirs] = above
        told[column, factor, value, theirs, ours] = -above
    said = pages()
    assert "A random turn, which should change nothing, is told from `glove_xavier` nowhere" in said
    turns = [above for key, above in told.items() if key[3:] == ("random", "glove_xavier")]
    assert len(turns) > 20 and not any(turns)
    assert "There it is nowhere told to cost anything" in said
    frozen = [k for k in told if k[3:] == ("emptied", "glove_xavier") and k[0].endswith("frozen")]
    assert len(frozen) > 10 and all(told[key] >= 0 for key in frozen)
    assert "every column is told to be worse than with some others" in said
    worse = {key[0] for key, above in told.items() if key[1] == "1" and key[3] == "anti" and above < 0
             and key[4] in ("emptied", "turned", "random", "glove_xavier")}  # fmt: skip
    assert len(worse) == 6


def cell_of(column, difference):
    """The mean and the interval of a row of the table, bold where 0 is outside."""
    table = table_of("orthogonal")
    row = rf"^\| {column} \| {re.escape(difference)} \| (?:BLEU|Acc) \| (\S+) \| (.*?) \| (\d) \|"
    found = re.search(row, table, re.MULTILINE)
    if found is None:
        return "not run"
    mean, interval, seeds = found.groups()
    if interval == "one seed":
        return f"{mean}, one seed"
    low, high = (end.lstrip("+") for end in interval.split(" to "))
    cell = f"{mean} ({low} to {high}){', two seeds' if seeds == '2' else ''}"
    return f"**{cell}**" if float(low) * float(high) > 0 else cell


def test_the_page_behind_it_shows_the_cells_of_the_table():
    """Each table's head says which columns and factors its cells are of."""
    page = (COMMITTED / "training.md").read_text(encoding="utf-8")
    table_md = table_of("orthogonal")
    rows = table_md.replace("*", "").splitlines()
    checked = 0
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        head, _, *lines = (line.strip("| \n").split(" | ") for line in table.splitlines())
        for _, *cells in lines:
            if "factor 1" in head:  # a column for each factor
                for factor, cell in zip(head[1:], cells, strict=True):
                    assert any(row.startswith(f"| {factor}: ") and f" {cell}" in row for row in rows), cell
            else:
                at = re.search(r"factor \S+", head[0])
                of_factor = [row for row in rows if row.startswith(f"| {at[0] if at else 'factor 1'}: ")]
                assert any(all(cell in row for cell in cells) for row in of_factor), cells
            checked += len(cells)
    assert checked > 100
