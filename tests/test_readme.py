"""The README says what the code and the committed records say; `test_guides` runs its code."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import statistics
from collections import defaultdict

import pytest
from builders import ROOT

from hf_embinit import list_initializers
from hf_embinit.__main__ import COMMANDS, _parser
from hf_embinit.cards import PAPERS, render_readme

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(name: str) -> list[list[str]]:
    """The cells of each row of a table of the README, without its head."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", README, re.DOTALL)
    assert found, f"README.md has no block {name}"
    rows = [line.strip("| ").split(" | ") for line in found[1].splitlines() if line.startswith("|")]
    return [cells for cells in rows if not set("".join(cells)) <= set("-: ")][1:]


def test_generated_blocks_are_up_to_date() -> None:
    again = "run `hf-embinit cards recipes/results model_cards --readme README.md`"
    assert render_readme(README, ROOT / "recipes" / "results") == README, again
    without_a_row = re.sub(r"\n\| `glove_orthogonal` .*", "", README)
    assert without_a_row != README == render_readme(without_a_row, ROOT / "recipes" / "results")


def test_a_mark_without_an_end_hides_no_block() -> None:
    text = "<!-- tests -->\nby hand\n\n<!-- initialisers -->\nSTALE\n<!-- end -->\n"
    made = render_readme(text, ROOT / "recipes" / "results")
    assert made.startswith("<!-- tests -->\nby hand\n\n<!-- initialisers -->\n") and "STALE" not in made
    assert "| `xavier` |" in made


def test_every_initialiser_stands_in_the_readme_once() -> None:
    names = [name.strip("`") for cells in block("initialisers") for name in cells[0].split(", ")]
    assert sorted(names) == sorted(name for r in list_initializers() for name in (r.name, *r.aliases))


def test_the_results_are_those_of_the_records() -> None:
    """Means of the test BLEU over seeds, computed here from the files alone."""
    scores = defaultdict(list)
    for path in (ROOT / "recipes" / "results" / "translate").rglob("results.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        epochs = record["arguments"].get("num_train_epochs")
        key = (record["dataset"], f"{epochs:g}", f"`{record['init']}`")
        scores[key].append(record["metrics"]["test_bleu"])
    for (dataset, epochs, init), values in scores.items():
        mean = f"{statistics.fmean(values):.2f}"
        rows = [cells for cells in block("results") if {dataset, epochs, init} <= set(cells)]
        assert any(cell.split(" (")[0] == mean for cells in rows for cell in cells), (dataset, init, mean)
        assert any(str(len(values)) in cells for cells in rows)


def test_accuracies_with_another_tokenizer_are_those_of_the_records() -> None:
    (text,) = re.findall(r"^It learns 4,000 German.*?instead of \d+\n", README, re.DOTALL | re.MULTILINE)
    said = re.search(r"in (\d+) of\n?\s*100 cases, with its English tokenizer in (\d+) ", text)
    more = re.search(r"in (\d+) instead of (\d+)\n", text)
    assert said and more
    for name, found in (("german-embedded", said), ("german", more)):
        file = ROOT / "recipes" / "results" / "retokenize" / name / "results.json"
        metrics = json.loads(file.read_text(encoding="utf-8"))["metrics"]
        assert [float(x) for x in found.groups()] == [
            round(100 * metrics["step_0_accuracy"]), round(100 * metrics["before_accuracy"])
        ]  # fmt: skip


@pytest.mark.parametrize("code", [code for _, _, code in PAPERS])
def test_every_function_and_command_of_the_papers_table_exists(code: str) -> None:
    if code.startswith("hf-embinit "):
        assert _parser().parse_args(shlex.split(code)[1:]).command in COMMANDS
    else:
        module, _, name = code.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_every_study_stands_in_the_papers_table() -> None:
    files = (ROOT / "hf_embinit" / "studies").glob("*.yaml")
    commands = {cells[-1] for cells in block("papers")}
    assert {f"`python recipes/reproduce.py {path.stem}`" for path in files} <= commands


def test_the_gate_runs_the_readme_s_test_command() -> None:
    assert re.search(r"<!-- tests -->\n```bash\n.*-m pytest\n```", README)
