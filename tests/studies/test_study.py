"""Study files: what they expand into, options of a launch, and one sentence for what is wrong in one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from builders import ROOT
from builders.studies import STUDY

import hf_embinit.retokenize  # noqa: F401  # its methods are known then
from hf_embinit.errors import InvalidArgumentError, UnknownNameError
from hf_embinit.initializers import read_init
from hf_embinit.studies.files import _FIGURES, read_study_file
from hf_embinit.studies.requirements import check_flags
from hf_embinit.studies.scheduling import Launch
from hf_embinit.studies.study import STUDIES, list_studies, load_study

PAPERS = [*(f"table{i}" for i in range(1, 9)), "figure1", *(f"zhang{i}" for i in range(1, 9))]

# --- the studies of the package


def test_every_table_of_the_papers_has_a_study() -> None:
    others = {"butterfly", "hewitt", "magnitude", "orthogonal", "retokenize", "vector_text"}
    assert {*PAPERS, *others} <= set(list_studies())


@pytest.mark.parametrize("name", list_studies())
def test_studies_expand_into_runs_of_recipes_that_exist(name: str, tmp_path: Path) -> None:
    recipes = ROOT / "recipes"
    for smoke in (None, tmp_path):
        study = load_study(name, smoke=smoke)
        assert study.runs and len({run.name for run in study.runs}) == len(study.runs)
        for run in study.runs:
            assert (recipes / run.recipe).is_file()
            assert "{" not in json.dumps(list(run.arguments.values()))
            for need in run.needs:
                assert need in {other.name for other in study.runs}
            if run.arguments.get("init") is not None:
                read_init(run.arguments["init"])
        for cell in study.cells:
            for value in cell.values:
                assert value.relative_to is None or value.relative_to in study.columns
    if smoke is not None:
        assert len(study.runs) <= 30  # seconds each


@pytest.mark.parametrize("name", list_studies())
def test_flags_of_studies_are_flags_of_their_recipes(name: str, tmp_path: Path) -> None:
    for smoke in (None, tmp_path):
        check_flags(load_study(name, smoke=smoke), Launch(ROOT / "recipes", tmp_path))


def test_the_study_of_the_contributors_page_is_one_and_the_keys_of_figures_are_those(tmp_path: Path) -> None:
    page = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    own = tmp_path / "own.yaml"
    own.write_text(code, encoding="utf-8")
    for smoke, runs in ((None, 4), (tmp_path, 1)):
        study = load_study(str(own), smoke=smoke)
        assert len(study.runs) == runs
        check_flags(study, Launch(ROOT / "recipes", tmp_path))
    lines = re.findall(r"^- `(\w+)`.* needs `(\w+)`(.*)$", page, re.MULTILINE)
    assert {kind: (needed, set(re.findall(r"`(\w+)`", more))) for kind, needed, more in lines} == _FIGURES


def test_a_flag_that_a_recipe_does_not_have_is_refused_with_the_nearest(tmp_path: Path) -> None:
    launch = Launch(ROOT / "recipes", tmp_path)
    check_flags(load_study("table1", overrides=["num_train_epochs=1"]), launch)
    with pytest.raises(
        InvalidArgumentError, match=r"no flag --num_train_epoch; did you mean num_train_epochs"
    ):
        check_flags(load_study("table1", overrides=["num_train_epoch=1"]), launch)
    with pytest.raises(
        InvalidArgumentError, match=r"classify\.py has no flag --num_beams.* 'pattern:num_beams="
    ):
        check_flags(load_study("table1", overrides=["num_beams=2"]), launch)
    check_flags(load_study("table1", overrides=["multi30k/*:num_beams=2"]), launch)


def test_a_recipe_that_is_none_is_refused_with_the_nearest(toy) -> None:
    name, launch = toy
    Path(name).write_text(STUDY.replace("recipe: toy.py", "recipe: tyo.py"))
    with pytest.raises(
        InvalidArgumentError, match=r"run tyo/t-.*: Unknown recipe 'tyo.py'\. Did you mean: toy"
    ):
        check_flags(load_study(name), launch)


def test_tables_share_the_runs_they_have_in_common() -> None:
    rows = ["multi30k/words-xavier", "multi30k/words-glove", "multi30k/words-glove_xavier"]
    table1 = {run.name for run in load_study("table1", only=rows).runs}
    trained = [f"{row.replace('words-', '')}-yes-yes" for row in rows]
    table3 = {run.name for run in load_study("table3", only=trained).runs}
    figure = {run.name for run in load_study("figure1", only=["multi30k-words"], seeds=4).runs}
    assert table1 == table3 == figure and len(table1) == 12
    ours = ["multi30k/glove_orthogonal-no-yes", "multi30k/glove_orthogonal-yes-yes"]
    table3 = {run.name for run in load_study("table3", only=ours, seeds=3).runs}
    orthogonal = load_study("orthogonal", only=["multi30k-*/emptied-1"]).runs
    assert table3 == {run.name for run in orthogonal} and len(table3) == 6


def test_the_grid_of_an_initialiser_is_every_combination() -> None:
    (cell,) = load_study("table1", only=["mnli/words-glove"]).cells
    assert cell.points[0][0] == {
        "learning_rate": 5e-5,
        "per_device_train_batch_size": 64,
    }
    assert len(cell.points) == 6 and all(len(runs) == 2 for _, runs in cell.points)
    (cell,) = load_study("table1", only=["mnli/words-glove"], overrides=["learning_rate=1"]).cells
    assert len(cell.points) == 2 and all(run.arguments["learning_rate"] == 1 for run in cell.runs)


def test_a_change_of_some_cells_leaves_the_grids_of_others() -> None:
    whole = load_study("table1", only=["mnli/words-xavier"]).cells
    study = load_study("table1", overrides=["sst2/*:learning_rate=0.001"])
    cells = {(cell.column, cell.row): cell for cell in study.cells}
    assert [cells["mnli", "words-xavier"]] == whole and len(whole[0].points) == 6
    assert {run.arguments["learning_rate"] for run in cells["sst2", "words-xavier"].runs} == {0.001}


def test_paper_numbers_stand_where_the_paper_has_them() -> None:
    paper = {name: read_study_file(STUDIES / f"{name}.yaml").paper for name in list_studies()}
    assert paper["table1"]["bert-bert", "mnli"][1] == (66.8, 0.6, "66.8 (0.6)")
    assert paper["table1"]["words-glove_xavier", "multi30k"][0] == (38.7, 0.3, "38.7 (0.3)")
    assert paper["table3"]["glove-yes-no", "multi30k"][2][:2] == (31.9, 0.34)
    assert paper["zhang4"]["stsb", "jp-clean"][0][0] == 0.17
    assert paper["zhang5"]["wnli", "zh-english"][0][0] == 0.62
    assert ("cola", "en-english") not in paper["zhang5"]
    assert paper["zhang8"]["sst2", "last6"][0][0] == 0.91
    counts = {name: sum(len(values) for values in cells.values()) for name, cells in paper.items()}
    assert counts["table1"] == 11 * (2 + 4 + 2 + 2) and counts["table2"] == 9 * 16
    assert counts["zhang4"] == 150 and counts["zhang1"] == 30


# --- options


def test_only_seeds_and_overrides(toy) -> None:
    name, _ = toy
    study = load_study(name, only=["b/low"], seeds=3, overrides=["lr=0.1", "b/*:score=5", "flag=true"])
    (cell,) = study.cells
    assert [run.seed for run in cell.runs] == [1, 2, 3]
    assert cell.runs[0].arguments == {"task": "t", "score": 5, "lr": 0.1, "flag": True}
    given = ["eval_strategy=no", "x=yes", "y=off", "z='no'"]
    (run,) = load_study(name, only=["b/low"], seeds=1, overrides=given).runs
    kept = {"eval_strategy": "no", "x": "yes", "y": False, "z": "no"}
    assert kept.items() <= run.arguments.items()
    assert study.changes == ["--set lr=0.1", "--set b/*:score=5", "--set flag=true"]
    assert [run.seed for run in load_study(name).runs] == [1] * 4 + [2] * 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"only": ["c/*"]}, "no cell of toy matches. Columns: a, b; rows: low, high"),
        ({"only": ["a/*", "nromal"]}, "--only nromal: no cell of toy matches. Columns: a, b; rows: low"),
        ({"overrides": ["novalue"]}, "--set 'novalue': give argument=value"),
        ({"overrides": ["zzz:lr=1"]}, "no cell of toy matches 'zzz'"),
        ({"overrides": ["seed=5"]}, "--set 'seed=5': every run gets its own seed; use --seeds"),
        ({"overrides": ["a/*:output_dir=x"]}, "every run gets its own output_dir; use --output_dir"),
        ({"overrides": ["vectors=@x"]}, "--set 'vectors=@x': '@x' is no YAML; a text that looks like it"),
        ({"overrides": ["dataset={a"]}, """as in --set 'dataset="{a"'"""),
        ({"overrides": ['x="{"']}, "cell a/low: x cannot be '{' (Single '{' encountered"),
        ({"overrides": ["x={1: a, b: c}"]}, "x cannot be {1: 'a', 'b': 'c'} ("),
        ({"overrides": ["x=2026-01-01"]}, "x cannot be datetime.date(2026, 1, 1) ("),
        ({"seeds": 0}, "--seeds 0"),
    ],
)
def test_options_that_cannot_work(toy, options, sentence) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(sentence)):
        load_study(toy[0], **options)


def test_an_unknown_study_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown study 'tabel1'\. Did you mean: table1"):
        load_study("tabel1")


@pytest.mark.parametrize(
    ("old", "new", "line", "sentence"),
    [
        ("seeds: 2", "seed: 2", 5, "Unknown field of a study 'seed'. Did you mean: seeds"),
        ("seeds: 2", "seeds: two", 5, "'seeds' cannot be 'two'"),
        ("{title: A, arg", "{titel: A, arg", 10, "Unknown field of columns a 'titel'"),
        ("better: higher", "better: best", 7, "'better' is higher or lower"),
        ("best_epoch}", "history/last/acc}", 8, "'field' is history/<max|min|epoch_of_max|epoch_of_min>"),
        ("best_epoch}", "history/max}", 8, "/<metric>, not 'history/max'"),
        ("Epoch,", "Epoch, digits: -1,", 8, "'digits' is 0 or more, not -1"),
        ("seeds: 2", "seeds: 2\nresults: /etc/passwd", 6, "'results' is a file in the run's folder, such as"),
        ("seeds: 2", "seeds: 2\nresults: ../x.json", 6, "results.json, not '../x.json'"),
        ("low: {a: [11.5", "lower: {a: [11.5", 16, "Unknown row 'lower'. Did you mean: low"),
        ("{a: [11.5", "{c: [11.5", 16, "Unknown field of the paper's row, by column 'c'"),
        ("11.5 (0.7)", "eleven", 16, "are no numbers"),
        ("title: A toy", "title: A toy\ncompare: boxes", 2, "'compare' is rows or columns"),
        ("title: A toy", "title: A toy\nagainst: middle", 2, "'against' is low or high, not 'middle'"),
        ("seeds: 2", "seeds: 2\nseeds: 3", 6, "'seeds' stands here twice"),
        ("seeds: 2", "seeds: 0", 5, "'seeds' is 1 or more, not 0"),
        ("seeds: 2", "seeds: -1", 5, "'seeds' is 1 or more, not -1"),
        ("{title: A, arg", "{title: A, values: [], arg", 10, "'values' needs one value or more, not []"),
        ("box: One}", "box: One, grid: {lr: 1}}", 13, "'grid' has a list of candidates for 'lr', not 1"),
        ("box: One}", "box: One, grid: {lr: []}}", 13, "'grid' has a list of candidates for 'lr', not []"),
        ("box: One}", "box: One, grid: {init: xavier}}", 13, "candidates for 'init', not 'xavier'"),
        (
            "seeds: 2",
            "seeds: 2\nfigure: {kind: sweep}",
            6,
            "Unknown kind of figure 'sweep'. Did you mean: sweeps",
        ),
        ("seeds: 2", "seeds: 2\nfigure: {kind: sweeps}", 6, "a figure of sweeps needs 'titles'"),
        ("seeds: 2", "seeds: 2\nfigure: {kind: sweeps, titles: Low}", 6, "'titles' cannot be 'Low'"),
        (
            "seeds: 2",
            "seeds: 2\nfigure: {kind: sweeps, titles: [low]}",
            6,
            "Unknown 'titles' of a figure 'low'",
        ),
        (
            "seeds: 2",
            "seeds: 2\nfigure: {kind: sweeps, titles: [[Low]]}",
            6,
            "'titles' of a figure \"['Low']",
        ),
        ("seeds: 2", "seeds: 2\nfigure: {kind: curves, metric: [acc]}", 6, "'metric' cannot be ['acc']"),
        ("seeds: 2", "seeds: 2\nfigure: {kind: bars, value: BLUE}", 6, "'BLUE'. Did you mean: BLEU?"),
        ("seeds: 2", "seeds: 2\nfigure: {kind: rankings, values: [Acc]}", 6, "Available: BLEU, Epoch"),
        ("seeds: 2", "seeds: 2\nfigure: {kind: curves, metrik: acc}", 6, "of a figure of curves 'metrik'"),
        ("seeds: 2", "seeds: 2\nfigure: {kind: curves, metric: a, against: mid}", 6, "'against' of a figure"),
        (
            "seeds: 2",
            "seeds: 2\nfigure: {kind: curves, metric: a, better: low}",
            6,
            "higher or lower, not 'low'",
        ),
        ("seeds: 2", "seeds: 2\nwithout: [5]", 6, "'without' has patterns of column/row, of a column or"),
        ("seeds: 2", "seeds: 2\nwithout: [a/mid]", 6, "'without' has 'a/mid', which no cell matches. Col"),
        ("seeds: 2", "seeds: 2\nwithout: ['*']", 6, "'without' leaves no cell"),
        (
            "seeds: 2",
            "seeds: 2\nwithout: [a]\nsmoke: {only: [a]}",
            7,
            "'only' has 'a', which no cell matches",
        ),
        ("paper:", "cells:\n  a/mid: {seeds: 1}\npaper:", 16, "'cells' has 'a/mid', which no column/row"),
        ("paper:", "cells: {low: {seeds: 1}}\npaper:", 15, "'cells' has 'low', which no column/row matches."),
        ("{task: t}", "{task: t, 1: x}", 4, "'arguments' has names of flags, not '1'"),
        ("{task: t}", "{task: t, true: x, 3 4: y}", 4, "'arguments' has names of flags, not '3 4'"),
        ("{task: t}", "{task: t, [a]: x}", 4, "a key must be a name"),
        ("{task: t}", "{task: t, seed: 5}", 4, "'arguments' cannot have 'seed', every run gets its own"),
    ],
)
def test_a_wrong_study_file_is_an_error_with_its_line(toy, old, new, line, sentence) -> None:
    name, _ = toy
    assert old in STUDY
    Path(name).write_text(STUDY.replace(old, new))
    with pytest.raises(InvalidArgumentError) as error:
        load_study(name)
    assert "toy.yaml" in str(error.value) and sentence in str(error.value)
    assert f"line {line}" in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[11.5 (0.7), 2]", "[11.5]", "has 1 numbers for low, a, the cell has 2 values"),
        ("higher}", "higher, relative_to: c}", "cell a/low: 'relative_to': Unknown column 'c'. Avail"),
        (
            "{title: B, arg",
            "{title: B, values: [{title: x, field: x}, {title: y, field: y}, "
            "{title: z, field: z, relative_to: a}], arg",
            "cell b/low: 'relative_to': 'z' is value 3 of its cell, and a/low has 2",
        ),
        ("{score: 10}", '{score: "{many}"}', "uses {many}"),
        ("recipe: toy.py\n", "", "has no 'recipe'"),
        ("{score: 10}", '{score: "{"}', "cell a/low: score cannot be '{' (Single '{'"),
        ("{score: 10}", '{score: ["{}"]}', "cell a/low: score cannot be ['{}'] ("),
        (
            "{bonus: 20}",
            "{model: run:a/low}",
            "model cannot be 'run:a/low'; expected run:<column>/<row>/<file>",
        ),
        ("{bonus: 20}", "{model: run:c/low/x}", "model cannot be 'run:c/low/x'"),
        (
            "{bonus: 20}",
            "{model: run:a/lower/x}",
            "with a cell that reads no files of this one. Columns: a, b;",
        ),
        ("{bonus: 20}", "{model: run:a/high/x}", "cell a/high: model cannot be 'run:a/high/x'"),
        ("{task: t}", "{model: run:b/low/x}", "cell b/low: model cannot be 'run:b/low/x'"),
        ("{score: 10}", "{model: [run:b/low/x]}", "model cannot be ['run:b/low/x']"),
        (STUDY, "just text", "holds no mapping"),
        (STUDY, "a: [", "cannot be read: while parsing"),
    ],
)
def test_a_study_that_does_not_fit_together(toy, old, new, sentence) -> None:
    Path(toy[0]).write_text(STUDY.replace(old, new))
    with pytest.raises(InvalidArgumentError, match=re.escape(sentence)):
        load_study(toy[0])


def test_files_of_a_cell_with_a_grid_are_refused_as_its_runs_are_several(toy) -> None:
    with_grid = STUDY.replace("bonus: 20", "bonus: 20, model: run:b/low/x")
    Path(toy[0]).write_text(with_grid + "cells:\n  b/low: {grid: {lr: [1, 2]}}\n")
    with pytest.raises(InvalidArgumentError, match="as b/low has a 'grid', so that its runs are several"):
        load_study(toy[0])


@pytest.mark.parametrize(
    ("old", "new", "as_without"),
    [
        ("arguments: {score: 10}", "arguments: ~", "arguments: {}"),
        ("box: One, arg", "box: ~, arg", "arg"),
        ("seeds: 2\n", "seeds:\nsmoke: {seeds: , arguments: }\n", ""),
    ],
)
def test_a_blank_key_is_as_none(toy, tmp_path, old, new, as_without) -> None:
    Path(toy[0]).write_text(STUDY.replace(old, new))
    blank = [load_study(toy[0], smoke=folder) for folder in (None, tmp_path)]
    Path(toy[0]).write_text(STUDY.replace(old, as_without))
    without = [load_study(toy[0], smoke=folder) for folder in (None, tmp_path)]
    assert [study.table for study in blank] == [study.table for study in without]
    assert [study.rows for study in blank] == [study.rows for study in without]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("digits:", "line 8: 'digits' of a value is blank"),
        ("scale: .nan", "line 8: 'scale' is a factor, not nan"),
        ("scale: 0", "line 8: 'scale' is a factor, not 0"),
    ],
)
def test_a_value_that_could_not_be_printed_is_refused(toy, given, sentence) -> None:
    Path(toy[0]).write_text(STUDY.replace("field: best_epoch}", f"field: best_epoch, {given} }}"))
    with pytest.raises(InvalidArgumentError, match=re.escape(sentence)):
        load_study(toy[0])


def test_a_figure_of_the_best_needs_to_know_which_way_is_better(toy) -> None:
    for figure in ("kind: sweeps, titles: [Low]", "kind: rankings, values: [BLEU]"):
        Path(toy[0]).write_text(STUDY.replace(", better: higher", "") + f"figure: {{{figure}}}\n")
        with pytest.raises(InvalidArgumentError, match="shows which is best, and 'BLEU' has no 'better'"):
            load_study(toy[0])


def test_a_study_has_no_name_of_a_folder_of_all_studies(tmp_path: Path) -> None:
    (tmp_path / "runs.yaml").write_text(STUDY)
    with pytest.raises(InvalidArgumentError, match="runs/ is a folder of all studies"):
        load_study(str(tmp_path / "runs.yaml"))
    packaged = STUDIES / "table1.yaml"
    (tmp_path / "table1.yaml").write_text(packaged.read_text())
    assert load_study(str(tmp_path / "table1.yaml")).title == load_study("table1").title
    (tmp_path / "table1.yaml").write_text(STUDY)
    with pytest.raises(InvalidArgumentError, match="has another study table1, and each would write table1/"):
        load_study(str(tmp_path / "table1.yaml"))


def test_cells_of_one_column_that_are_compared_have_the_same_values(toy) -> None:
    other = "values: [{title: loss, field: metrics/loss, better: lower}, {title: Epoch, field: best_epoch}]"
    Path(toy[0]).write_text(STUDY.replace("title: High,", f"title: High, {other},"))
    with pytest.raises(InvalidArgumentError, match=r"cell a/high has the value 'loss' where a/low .* 'BLEU'"):
        load_study(toy[0])


def test_names_of_columns_and_rows_are_as_they_are_written(toy) -> None:
    text = (
        STUDY.replace("  a: {", "  0x10: {").replace("{a: [11", "{0x10: [11").replace("{a: [31", "{0x10: [31")
    )
    Path(toy[0]).write_text(text.replace("  low: {", "  no: {"))
    study = load_study(toy[0])
    assert list(study.columns) == ["0x10", "b"] and list(study.rows) == ["no", "high"]
    assert study.cells[0].paper[0] == (11.5, 0.7, "11.5 (0.7)")


def test_run_folders_have_names_that_every_disk_takes() -> None:
    runs = [run for cell in load_study("retokenize").cells for _, some in cell.points for run in some]
    names = {run.name for run in runs}
    assert "retokenize/omp-k=8-seed1-284ff89c" in names and len(names) == len(runs)
    assert any(name.startswith("retokenize/stories260K-fvt-token_distillation-seed1-") for name in names)
    assert not any(set(name) & set(':*?"<>|\\') for name in names)


def test_cells_of_one_column_have_as_many_values(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    one = "low: {title: Low, values: [{title: A, field: metrics/a}],"
    own.write_text(STUDY.partition("paper:")[0].replace("low: {title: Low,", one))
    with pytest.raises(InvalidArgumentError, match="cell a/high has 2 'values', and a/low of the same"):
        load_study(str(own))
