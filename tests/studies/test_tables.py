"""Tables made of the records of runs: cells, intervals, and the paper's numbers beside ours."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from builders.studies import STUDY

from hf_embinit.drawing import new_figure
from hf_embinit.errors import InvalidArgumentError
from hf_embinit.studies import figures as study_figures
from hf_embinit.studies import report as study_report
from hf_embinit.studies import tables as study_tables
from hf_embinit.studies.comparisons import Difference, best, power, rank_agreement, t_interval
from hf_embinit.studies.figures import Ranking, Sweep, draw_ranking, plot_mean_curves, plot_sweeps
from hf_embinit.studies.scheduling import execute, run_here
from hf_embinit.studies.scores import field_value, gather
from hf_embinit.studies.study import load_study
from hf_embinit.studies.tables import markdown


@pytest.fixture
def finished(toy):
    name, launch = toy
    study = load_study(name)
    run_here(study.runs, launch, workers=2)
    return study, launch


def test_the_table_has_ours_beside_the_paper_s(finished) -> None:
    study, launch = finished
    page = markdown(study, gather(study, launch), "python recipes/reproduce.py toy", ["figures/toy.png"])
    assert "|  | A BLEU | A Epoch | B BLEU | B Epoch |" in page
    assert "| One: Low | 11.5 (0.7) / 11.5 (0.7) | 2.0 (0.0) / 2 | 21.5 (0.7) / 21 | 2.0 (0.0) / 2 |" in page
    assert "**31.5 (0.7)** / 31.25" in page and "n = 2 in every cell" in page
    assert "| A | high - low | BLEU | +20.00 | +20.00 to +20.00 | 2 | +19.75 | agrees |\n" in page
    assert "Power" not in page  # the seeds have one difference, which is no spread
    # ours orders both columns one way, the paper one of them the other way
    assert "Differences that the paper prints: 1 agrees, 1 disagrees, 0 cannot tell" in page
    assert "Rank agreement with the paper: **+0.00** (95% interval +0.00 to +0.00; Kendall's tau-b" in page
    assert "8 of 8 runs come from a dirty tree" in page
    assert (
        "data, toy train: `3 rows, f00`" in page
        and "- device: toy" in page
        and "seeds: 1, 2; runs: 8" in page
    )
    assert "![A toy](figures/toy.png)" in page


def test_a_study_without_a_paper_does_not_speak_of_its_numbers(toy) -> None:
    name, launch = toy
    Path(name).write_text(STUDY.split("paper:\n")[0])
    study = load_study(name, only=["a/*"])
    run_here(study.runs, launch, workers=2)
    page = markdown(study, gather(study, launch), "cmd")
    assert "Each cell: mean (sd) over seeds; n = 2" in page and "Not run: B.\n" in page
    assert "| A | high - low | BLEU | +20.00 | +20.00 to +20.00 | 2 |\n" in page
    assert "paper" not in page


def test_a_cell_says_its_seeds_where_it_differs_from_most(finished) -> None:
    study, launch = finished
    scores = gather(study, launch)
    cut = replace(scores[0], by_seed=[{1: 11.0} for _ in scores[0].by_seed])
    page = markdown(study, [cut, *scores[1:]], "")
    assert "n = 2 where a cell does not say" in page
    assert page.split("## ")[0].count(", n=1") == len(cut.by_seed) and ", n=2" not in page
    half = [replace(s, by_seed=[{1: 11.0} for _ in s.by_seed]) for s in scores[: len(scores) // 2]]
    page = markdown(study, [*half, *scores[len(scores) // 2 :]], "")
    assert "n where it says so" in page and ", n=1" in page and ", n=2" in page


def test_seeds_that_another_cell_lacks_make_none_the_best(finished) -> None:
    study, launch = finished
    scores = {(s.cell.column, s.cell.row): s for s in gather(study, launch)}
    high, low = scores["a", "high"], scores["a", "low"]

    def bold(*cells):
        return [best(study, list(scores.values()), cell, 0) for cell in cells]

    assert bold(high, low) == [True, False]
    low.by_seed[0], high.by_seed[0] = {1: 20.0, 2: 30.0}, {1: 21.0, 2: 31.0, 3: 3.0}
    assert bold(high, low) == [False, False]  # ahead in each seed of both, and behind in the mean
    high.by_seed[0][3] = 33.0
    assert bold(high, low) == [True, False]
    low.by_seed[0] = {4: 20.0}  # no seed of both: the means decide
    assert bold(high, low) == [True, False]


def test_differences_from_one_row_and_from_the_best_alone(toy) -> None:
    name, launch = toy
    more = "".join(
        f"  {row}: {{title: {row}, box: One, arguments: {{bonus: {i}}}}}\n" for i, row in enumerate("xyz")
    )
    Path(name).write_text(STUDY.replace("paper:\n", f"{more}against: x\npaper:\n"))
    study = load_study(name, only=["a/*"])
    run_here(study.runs, launch, workers=2)
    page = markdown(study, gather(study, launch), "cmd")
    assert "From `x` and from the best." in page
    said = re.findall(r"^\| A \| (\w+ - \w+) \| BLEU", page, re.MULTILINE)
    assert said == ["high - low", "x - low", "x - high", "y - high", "z - high", "y - x", "z - x"]


def test_cells_that_were_not_run_say_so(toy) -> None:
    name, launch = toy
    study = load_study(name, only=["a/low"])
    execute(study.runs[0], launch)
    page = markdown(study, gather(study, launch), "cmd")
    assert "| One: Low | 11.0 / 11.5 (0.7) | 2.0 / 2 |\n\nNot run: B; One: High (" in page
    study = load_study(name)
    execute(load_study(name, only=["b/high"]).runs[0], launch)
    page = markdown(study, gather(study, launch), "cmd")
    assert "| One: Low | 11.0 / 11.5 (0.7) | 2.0 / 2 | – / 21 | – / 2 |" in page
    assert "| One: High | – / 31.25 | – / 2 | 41.0 / 20 | 2.0 / 2 |\n\n–: not run.\n" in page
    assert "Not run" not in page


def test_a_diverged_run_is_no_number_of_its_cell(finished) -> None:
    study, launch = finished
    lost = [run for cell in study.cells for run in cell.runs if (cell.column, cell.row) == ("a", "low")]
    for run, row in zip(lost, ({"validation_loss": None}, {"acc": 0.1}), strict=True):
        path = launch.folder(run) / run.results
        record = json.loads(path.read_text())
        record["history"].append(row)
        record["diverged"] = row == {"acc": 0.1}  # as records of today say it, and those of before
        path.write_text(json.dumps(record))
    page = markdown(study, gather(study, launch), "cmd")
    assert "| One: Low | diverged / 11.5 (0.7) | diverged / 2 |" in page
    assert page.count("diverged, a loss was no finite number") == 2
    assert (
        ",a,low,BLEU,diverged,0," in "," + study_tables.csv_table(study, gather(study, launch)).split("\n")[1]
    )


def test_a_report_of_tables_has_digests_and_no_data_set(finished) -> None:
    study, launch = finished
    for run in study.runs:
        path = launch.folder(run) / run.results
        record = json.loads(path.read_text())
        del record["dataset"]
        path.write_text(json.dumps(record))
    assert "- data, train: `3 rows, f00`" in markdown(study, gather(study, launch), "cmd")


def test_csv_and_latex(finished) -> None:
    study, launch = finished
    scores = gather(study, launch)
    lines = study_tables.csv_table(study, scores).splitlines()
    assert lines[0].startswith("column,row,value,status,n,mean,sd,paper_mean")
    assert lines[1] == "a,low,BLEU,finished,2,11.5,0.7071067811865476,11.5,0.7,1 2,"
    tex = study_tables.latex_table(study, scores)
    assert tex.splitlines()[0].endswith("in gray; n = 2 in every cell that was run")
    assert r"\begin{tabular}{lrrrr}" in tex and r"\textbf{31.5 (0.7)} {\color{gray}31.25}" in tex
    study.rows["low"].title = r"d^2 ~ $x$ \alpha {1}_%"
    tex = study_tables.latex_table(study, scores)
    assert r"d\textasciicircum{}2 \textasciitilde{} \$x\$ \textbackslash{}alpha \{1\}\_\% & 11.5" in tex


def test_the_page_is_written_with_its_figure(finished, tmp_path) -> None:
    study, launch = finished
    study.file.figure = {"kind": "bars", "value": "BLEU"}
    study_report.write_study(study, launch, tmp_path / "t", "cmd")
    study.file.figure = {"kind": "curves", "metric": "acc", "label": "accuracy"}
    study.name = "curves"
    page = study_report.write_study(study, launch, tmp_path / "t", "cmd")
    assert (tmp_path / "t" / "figures" / "toy.png").stat().st_size > 5000
    assert (tmp_path / "t" / "figures" / "curves.png").stat().st_size > 5000
    assert (tmp_path / "t" / "table.md").read_text() in page
    assert {p.name for p in (tmp_path / "t").iterdir()} == {"table.md", "table.csv", "table.tex", "figures"}


ROWS = """\
rows:
  low: {title: X, box: One}
  high: {title: X, box: Two, arguments: {bonus: 20}}
  same: {title: X, box: Two, arguments: {bonus: 10}}
  own: {box: Two, arguments: {bonus: 5}}
"""


@pytest.mark.parametrize(
    ("figure", "drawn_rows"),
    [
        ("kind: curves, metric: acc", ["One: X", "high", "same", "own"]),
        ("kind: curves, metric: acc, against: low", ["high", "same", "own"]),
        ("kind: rankings, values: [BLEU]", ["high", "same", "own", "One: X"]),
    ],
)
def test_rows_of_one_title_are_told_apart_in_figures(toy, monkeypatch, tmp_path, figure, drawn_rows) -> None:
    drawn = []
    monkeypatch.setattr(study_figures, "save_figure", lambda figure, *rest: drawn.append(figure))
    monkeypatch.setattr(study_figures, "shrink_picture", lambda path: path)
    name, launch = toy
    text = STUDY[: STUDY.index("rows:")].replace("title: B,", "title: A,")
    Path(name).write_text(f"{text}{ROWS}figure: {{{figure}}}\n")
    study = load_study(name, seeds=1)
    run_here(study.runs, launch, workers=2)
    study_report.write_study(study, launch, tmp_path / "t", "cmd")
    assert [re.split("[: ]", ax.get_title())[0] for ax in drawn[0].axes] == ["a", "b"]  # of one title, too
    for ax in drawn[0].axes:
        lines = [line.get_label().partition(" (n")[0] for line in ax.lines if "(n=" in line.get_label()]
        assert (lines or [tick.get_text() for tick in ax.get_yticklabels()]) == drawn_rows


def test_bars_of_several_columns_are_groups_of_their_own(finished, monkeypatch, tmp_path) -> None:
    drawn: list[dict[str, dict[str, tuple[float, float, float]]]] = []
    monkeypatch.setattr(study_report, "plot_bars", lambda groups, path, **words: drawn.append(groups))
    study, launch = finished
    study.file.figure = {"kind": "bars", "value": "BLEU"}
    study_report.write_study(study, launch, tmp_path / "t", "cmd")
    means = {group: {bar: value[0] for bar, value in of.items()} for group, of in drawn[0].items()}
    assert means == {"One\nA": {"Low": 11.5, "High": 31.5}, "One\nB": {"Low": 21.5, "High": 41.5}}
    study.rows["high"].title = "Low"  # told apart by what is written in the file
    study_report.write_study(study, launch, tmp_path / "t", "cmd")
    assert drawn[1]["One\nA"].keys() == {"low", "high"}


@pytest.mark.parametrize("figure", ["metric: validation_acuracy", "metric: acc, x: epohc"])
def test_curves_of_what_no_run_has_are_no_figure_and_a_word(finished, tmp_path, figure) -> None:
    study, launch = finished
    study.file.figure = {"kind": "curves", **dict(pair.split(": ") for pair in figure.split(", "))}
    page = study_report.write_study(study, launch, tmp_path / "t", "cmd")
    assert "; no figure: no run that counts has" in page and "![" not in page
    assert all(repr(pair.split(": ")[1]) in page for pair in figure.split(", "))


def test_curves_against_a_row_are_paired_by_seed(monkeypatch, tmp_path) -> None:
    drawn = []
    monkeypatch.setattr(study_figures, "save_figure", lambda figure, *rest: drawn.append(figure))

    def history(*values: float) -> list[dict[str, float]]:
        return [{"step": i, "loss": value} for i, value in enumerate(values)]

    rows = {
        "base": {1: history(4.0, 3.0), 2: history(5.0, 4.0)},
        "low": {2: history(4.0, 2.0), 1: history(4.0, 2.0), 3: history(0.0, 0.0)},
        "high": {2: history(6.0, 5.0)},
    }
    given = {"metric": "loss", "label": "loss", "x": "step"}
    plot_mean_curves({"A": rows}, tmp_path / "x.png", **given, against="base", lower_is_better=True)
    (ax,) = drawn[0].axes
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.lines[1:]}
    assert lines == {"low (n=2)": [-0.5, -1.5], "high (n=1)": [1.0, 1.0]}
    assert ax.get_title() == "A: low ends lowest, not told from high"  # which has one seed
    plot_mean_curves({"A": rows}, tmp_path / "x.png", **given)
    assert drawn[1].axes[0].get_title() == "A: high ends highest, one seed"
    told = {"a": {1: history(1.0), 2: history(1.1)}, "b": {1: history(5.0), 2: history(5.1)}}
    plot_mean_curves({"A": told}, tmp_path / "x.png", **given)
    assert drawn[2].axes[0].get_title() == "A: b ends highest"


def test_a_run_that_diverged_is_no_curve_and_shortens_none(finished, monkeypatch, tmp_path) -> None:
    drawn = []
    monkeypatch.setattr(
        study_figures, "save_figure", lambda figure, path, title: drawn.append(figure) or path
    )
    study, launch = finished
    study.file.figure = {"kind": "curves", "metric": "acc"}
    lost = launch.folder(study.cells[0].runs[1])  # low, seed 2
    record = json.loads((lost / "results.json").read_text())
    record["history"] = [{"epoch": 1.0, "acc": 0.9}, {"epoch": 2.0, "validation_loss": None, "acc": None}]
    (lost / "results.json").write_text(json.dumps(record))
    study_report.write_study(study, launch, tmp_path / "t", "cmd")
    ax = drawn[0].axes[0]
    lines = {line.get_label(): list(line.get_xdata()) for line in ax.lines}
    assert lines == {"Low (n=1)": [1.0, 2.0], "High (n=2)": [1.0, 2.0]}
    assert ax.get_title() == "A: High ends highest, not told from Low"
    assert drawn[0].get_supxlabel().endswith("Runs that diverged and are left out: 1.")


def test_rows_are_compared_at_the_last_step_of_all_of_them(monkeypatch, tmp_path) -> None:
    drawn = []
    monkeypatch.setattr(study_figures, "save_figure", lambda figure, *rest: drawn.append(figure))
    rows = {
        "short": {seed: [{"step": 1, "acc": 0.5 + seed / 100}] for seed in (1, 2)},
        "long": {seed: [{"step": i, "acc": 0.1 * i + seed / 100} for i in (1, 9)] for seed in (1, 2)},
    }
    plot_mean_curves({"A": rows}, tmp_path / "x.png", metric="acc", label="acc", x="step")
    title = " ".join(drawn[0].axes[0].get_title().split())
    assert title == "A: short is highest at step 1, the last that all have"
    apart = {**rows, "late": {1: [{"step": 99, "acc": 1.0}]}}
    plot_mean_curves({"A": apart}, tmp_path / "x.png", metric="acc", label="acc", x="step")
    assert drawn[1].axes[0].get_title() == "A"


def test_a_ranking_names_its_best_method_and_those_that_cannot_be_told_from_it(finished, tmp_path) -> None:
    rows = {
        "far": [{1: 0.1, 2: 0.12}, {}],
        "once": [{1: 0.99}, {1: 0.9}],
        "near": [{1: 0.9, 2: 0.93}, {1: 0.7}],
        "best": [{1: 0.86, 2: 0.98}, {}],
    }
    ranking = Ranking("German", ["accuracy", "trained"], "higher", rows, 2)
    assert ranking.ranked() == ["once", "best", "near", "far"]
    assert ranking.finding() == "German: once is best (0.99), one seed"
    several = Ranking("German", ["accuracy"], "higher", {k: v for k, v in rows.items() if k != "once"}, 2)
    assert several.finding() == "German: best is best (0.92), not told from near"
    lower = Ranking("German", ["loss"], "lower", rows, 2)
    assert lower.finding() == "German: far is best (0.11), not told from once"
    assert lower.ranked()[-1] == "once"
    fewer = {"a": [{1: 10.0, 2: 10.0, 3: 20.0}], "b": [{1: 11.0, 2: 11.01}]}  # b leads where both were run
    assert Ranking("G", ["x"], "higher", fewer, 1).finding() == "G: a is best (13.3), not told from b"
    fewer = {"a": [{1: 10.0, 2: 10.0, 3: 1.0}], "b": [{1: 9.0, 2: 9.01}]}
    assert Ranking("G", ["x"], "lower", fewer, 1).finding() == "G: a is best (7.0), not told from b"

    _, ((ax,),) = new_figure(6, 4)
    draw_ranking(ax, ranking)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["once", "best", "near", "far"]
    points = [line for line in ax.lines if line.get_marker() == "o" and len(line.get_xdata())]
    hollow = [line.get_markerfacecolor() == "white" for line in points]
    assert hollow == [True, False, False, False]
    assert ax.get_xlabel() == "accuracy and trained: higher is better"
    failed = Ranking("stories", ["bits"], "lower", {**lower.rows, "spoilt": [{1: 96.0}, {}]})
    _, ((ax,),) = new_figure(6, 4)
    draw_ranking(ax, failed)
    (text,) = ax.texts
    assert text.get_text() == "off the scale: 96.000" and ax.get_xlim()[1] < 10

    study, launch = finished
    study.file.figure = {"kind": "rankings", "values": ["BLEU"]}
    page = study_report.write_study(study, launch, tmp_path / "t", "cmd")
    assert "![A toy](figures/toy.png)" in page
    assert (tmp_path / "t" / "figures" / "toy.png").stat().st_size > 5000


def test_rows_are_drawn_over_the_boxes_they_are_in(monkeypatch, tmp_path) -> None:
    drawn = []
    monkeypatch.setattr(
        study_figures, "save_figure", lambda figure, path, title: drawn.append(figure) or path
    )
    monkeypatch.setattr(study_figures, "shrink_picture", lambda path: path)
    rows = {
        "plain": {"factor 1": {1: 10.0, 2: 12.0}, "factor 0.5": {1: 20.0, 2: 22.0}},
        "turned": {"factor 0.5": {1: 21.0, 2: 23.1}},
        "none": {"factor 1": {1: 5.0, 2: 5.0}},
    }
    frozen = Sweep("frozen", "BLEU", "higher", rows)
    assert frozen.finding() == "frozen: turned at factor 0.5 is best (22.1)"
    assert frozen.finding({"turned"}) == "frozen: turned is best (22.1)"
    trained = Sweep("trained", "loss", "lower", {"turned": {"factor 1": {1: 1.0}, "factor 0.5": {1: 2.0}}})
    assert trained.finding() == "trained: turned at factor 1 is best (1.0), one seed"
    plot_sweeps([trained, frozen], ["factor 1", "factor 0.5"], tmp_path / "x.png", title="A study")
    left, right = drawn[0].axes
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["factor 1", "factor 0.5"]
    heights = {tuple(line.get_ydata()) for line in right.lines}  # whiskers have their own
    assert {(11.0, 21.0), (22.05,), (5.0, 5.0)} <= heights
    hollow = [[*line.get_ydata()] for ax in (left, right) for line in ax.lines if line.get_mfc() == "white"]
    assert hollow == [[1.0, 2.0], [], []], "the means of one seed"
    named = [text.get_text() for ax in (left, right) for text in ax.get_legend().get_texts()]
    assert named == ["turned", "plain", "none"]


def test_a_study_with_sweeps_draws_the_rows_it_names(finished, tmp_path) -> None:
    study, launch = finished
    study.file.figure = {"kind": "sweeps", "titles": ["Low"]}
    page = study_report.write_study(study, launch, tmp_path / "t", "cmd")
    assert "![A toy](figures/toy.png)" in page
    assert (tmp_path / "t" / "figures" / "toy.png").stat().st_size > 5000


def test_the_best_grid_point_is_shown_and_all_are_kept(toy) -> None:
    name, launch = toy
    Path(name).write_text(STUDY + "cells:\n  a/low: {grid: {score: [3, 50, 4], lr: [1]}}\n")
    study = load_study(name, only=["a/low"])
    run_here(study.runs, launch, workers=2)
    scores = gather(study, launch)[0]
    assert scores.point == {"score": 50, "lr": 1} and scores.by_seed[0] == {1: 51.0, 2: 52.0}
    page = markdown(study, [scores], "cmd")
    assert "| a/low | score 3, lr 1 | 4.50 (0.71) | 2 |  |" in page
    assert "| a/low | score 50, lr 1 | 51.50 (0.71) | 2 | shown |" in page
    worst = launch.folder(scores.cell.points[1][1][0])
    shutil.rmtree(worst)  # half of the best point is missing: it does not compete
    scores = gather(study, launch)[0]
    assert scores.point == {"score": 4, "lr": 1}


def test_values_relative_to_a_column(toy) -> None:
    name, launch = toy
    Path(name).write_text(STUDY.replace("better: higher}", "better: higher, relative_to: a}"))
    study = load_study(name, only=["low"])
    run_here(study.runs, launch, workers=2)
    a, _, b, _ = gather(study, launch)
    assert a.by_seed[0] == {1: 11 / 11.5, 2: 12 / 11.5} and b.by_seed[0] == {1: 21 / 11.5, 2: 22 / 11.5}
    in_percent = STUDY.replace("better: higher}", "better: higher, relative_to: a, scale: 100}")
    Path(name).write_text(in_percent)
    assert gather(load_study(name, only=["low"]), launch)[2].by_seed[0] == {
        1: pytest.approx(2100 / 11.5),
        2: pytest.approx(2200 / 11.5),
    }
    for run in study.cells[0].runs:
        path = launch.folder(run) / "results.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "metrics": {"bleu": 0.0}}))
    page = markdown(study, gather(study, launch), "cmd")
    assert "| not measured / 11.5 (0.7) | 2.0 (0.0) / 2 | not measured / 21 |" in page


def test_a_field_that_no_run_has_is_told_with_the_nearest(toy) -> None:
    name, launch = toy
    wrong = STUDY.replace("field: metrics/bleu", "field: metrics/blue")
    Path(name).write_text(wrong.replace("field: best_epoch", "field: x"))
    study = load_study(name, only=["low"])
    run_here(study.runs, launch, workers=2)
    page = markdown(study, gather(study, launch), "cmd")
    assert "No run of a/low, b/low has the field `metrics/blue`: did you mean `metrics/bleu`?" in page
    assert "No run of a/low, b/low has the field `x`." in page
    Path(name).write_text(STUDY.replace("field: metrics/bleu", "field: history/min/ac"))
    page = markdown(study := load_study(name, only=["low"]), gather(study, launch), "cmd")
    assert "the field `history/min/ac`: did you mean `history/min/acc`?" in page


def test_cells_of_several_values_are_compared_in_those_that_they_share(toy) -> None:
    name, launch = toy
    one = "title: B, values: [{title: Epochs, field: best_epoch, better: lower}],"
    text = STUDY.split("paper:")[0].replace("title: B,", one)
    Path(name).write_text(text + "compare: columns\n")
    study = load_study(name, seeds=1)
    run_here(study.runs, launch, workers=2)
    page = markdown(study, gather(study, launch), "cmd")
    assert "**" not in page.split("## Provenance")[0] and "Paired differences" not in page


def test_cells_that_are_the_same_runs_are_told(toy) -> None:
    name, launch = toy
    Path(name).write_text(STUDY.replace("bonus: 20", "bonus: 0").replace("arguments: {bonus: 0}", ""))
    study = load_study(name, seeds=1)
    run_here(study.runs, launch, workers=2)
    page = markdown(study, gather(study, launch), "cmd")
    assert "a/low and a/high are the same runs." in page and page.count("are the same runs") == 2


def test_fields_of_a_record() -> None:
    record = {
        "best_epoch": 3,
        "metrics": {"a_b": 1.5, "text": "x", "yes": True},
        "embedding_statistics": {"model.encoder.x": {"std": 2}, "model.decoder.x": {"std": 3}},
        "history": [{"epoch": 1.0, "acc": 0.5}, {"epoch": 2.0, "acc": 0.7}, {"epoch": 3.0, "acc": None}],
        "runtime": {"train_seconds": 360.0},
    }
    expected = {
        "best_epoch": 3.0,
        "metrics/a_b": 1.5,
        "metrics/a*": 1.5,
        "metrics/text": None,
        "metrics/none": None,
        "best_epoch/x": None,
        "embedding_statistics/*/std": 2.0,
        "embedding_statistics/*decoder*/std": 3.0,
        "history/max/acc": 0.7,
        "history/epoch_of_max/acc": 2.0,
        "history/min/acc": 0.5,
        "history/max/loss": None,
        "history/last/acc": None,
        "minutes_per_epoch": 2.0,
    }
    assert {path: field_value(record, path) for path in expected} == expected
    assert field_value({}, "history/max/acc") is None and field_value({}, "minutes_per_epoch") is None


def test_t_interval() -> None:
    assert t_interval([2.0]) is None
    low, high = t_interval([3.3, 3.4, 4.1])  # 2.5 to 4.7, where the least and the most are 3.3 and 4.1
    reference = scipy.stats.ttest_1samp([3.3, 3.4, 4.1], 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((reference.low, reference.high))
    assert low < 2.6 and high > 4.6
    # it holds the mean of a normal 95 times of 100, which the range of three numbers does 75 times
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((2000, 3))
    held = np.mean([a <= 0 <= b for a, b in map(t_interval, samples.tolist())])
    assert held == pytest.approx(0.95, abs=0.015)
    assert np.mean((samples.min(1) <= 0) & (samples.max(1) >= 0)) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    ("deltas", "paper", "verdict"),
    [
        ((3.3, 3.4, 4.1), 1.4, "agrees"),
        ((3.3, 3.4, 4.1), -1.4, "disagrees"),
        ((0.1, 3.4, 4.1), 1.4, "cannot tell"),  # all above 0, but three numbers say little
        ((3.3,), 1.4, "cannot tell"),
        ((3.3, 3.4, 4.1), None, ""),
        ((3.3, 3.4, 4.1), 0.0, ""),
    ],
)
def test_a_difference_is_told_by_its_interval(deltas, paper, verdict) -> None:
    assert Difference("Multi30k", "b - a", "BLEU", deltas, 2, paper).verdict == verdict


def test_power_is_how_often_an_interval_tells_the_sign() -> None:
    rng = np.random.default_rng(0)
    for n, effect in ((3, 1.4), (5, 1.4), (3, 0.0001)):
        samples = rng.normal(effect, 1.0, (4000, n))
        told = np.mean([t_interval(numbers)[0] > 0 for numbers in samples.tolist()])
        assert power(effect, 1.0, n) == pytest.approx(told, abs=0.025)
    assert power(1.4, 1.0, 3) == power(-1.4, 1.0, 3) < power(1.4, 1.0, 5) < power(1.4, 0.5, 5)
    assert (power(1.4, 0.0, 2), power(0.0, 0.0, 2)) == (1.0, 0.0)
    assert power(1.4, 1e-12, 5) == power(1.4, 1e-12, 2) == 1.0
    with pytest.raises(InvalidArgumentError, match="takes two or more"):
        power(1.4, 1.0, 1)


def test_a_difference_says_what_would_decide_it() -> None:
    told = Difference("Multi30k", "b - a", "BLEU", (-0.3, -1.0, -0.6), 2, 1.4)
    assert told.power == power(1.4, statistics.stdev(told.deltas), 3)
    assert told.seeds_needed is not None and told.seeds_needed > 1
    needed, sd = told.seeds_needed, statistics.stdev(told.deltas)
    assert power(1.4, sd, needed) >= 0.8 and (needed == 2 or power(1.4, sd, needed - 1) < 0.8)
    for deltas, paper in (((3.3,), 1.4), ((3.3, 3.4), None), ((3.3, 3.4), 0.0), ((0.0, 0.0, 0.0), 1.4)):
        unknown = Difference("Multi30k", "b - a", "BLEU", deltas, 2, paper)
        assert unknown.power is None and unknown.seeds_needed is None
    assert Difference("SST2", "b - a", "Acc", (3.0, -3.0, 0.0), 2, 0.1).seeds_needed is None  # over a hundred


def test_rank_agreement_is_kendall_s_tau_in_one_experiment(toy) -> None:
    name, launch = toy
    ours = {"low": 10, "high": 30, "mid": 20, "same": 20}
    theirs = {"low": 1, "high": 2, "mid": 3, "same": 4}
    rows = "".join(f"  {k}: {{title: {k}, box: One, arguments: {{score: {v}}}}}\n" for k, v in ours.items())
    paper = "".join(f"  {k}: {{a: [{v}, 2]}}\n" for k, v in theirs.items())
    Path(name).write_text(STUDY[: STUDY.index("rows:")] + "rows:\n" + rows + "paper:\n" + paper)
    study = load_study(name, seeds=1, only=["a"])
    run_here(study.runs, launch, workers=2)
    found = rank_agreement(study, gather(study, launch))
    reference = scipy.stats.kendalltau(list(ours.values()), list(theirs.values())).statistic
    assert found is not None and found[0] == pytest.approx(reference) and found[1:] == (6, None)


def test_the_page_of_shares_says_what_the_table_says() -> None:
    results = Path(__file__).parents[2] / "recipes" / "results"
    page = (results / "retokenize" / "README.md").read_text(encoding="utf-8")
    table = (results / "reproduce" / "retokenize" / "table.md").read_text(encoding="utf-8")

    def cells(line: str) -> list[str]:
        return [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]

    lines = [line for line in table.splitlines() if line.startswith("| ")]
    header = next(cells(line) for line in lines if "German accuracy" in line)
    there = {row[0]: dict(zip(header[1:], row[1:], strict=False)) for row in map(cells, lines)}
    columns = ["stories, untied bits/byte", "stories, untied trained", "stories, untied, all trained trained",
               "WikiText bits/byte", "WikiText trained"]  # fmt: skip
    rows = [cells(line) for line in page.splitlines() if line.startswith("| fvt")]
    assert len(rows) == 8
    for name, *shown in rows:
        assert shown == [there[name][c].strip("*").removesuffix(", n=3") for c in columns], name
    printed = {
        tuple(sorted(abs(float(x)) for x in pair))
        for pair in re.findall(r"([+-]\d+\.\d{3}) to ([+-]\d+\.\d{3})", table)
    }
    quoted = re.findall(r"\((\d\.\d{3}) to\s(\d\.\d{3})\)", page)
    assert len(quoted) >= 8 and {tuple(map(float, pair)) for pair in quoted} <= printed
