"""README and guides say what the code and the committed records say; `test_guides` runs their code."""

from __future__ import annotations

import csv
import importlib
import json
import re
import shlex
import statistics
from collections import defaultdict
from collections.abc import Callable

import pytest
from builders import ROOT
from builders.committed_records import mean_and_interval, multi30k_runs, page_of

from hf_embinit import list_initializers
from hf_embinit.__main__ import COMMANDS, _parser
from hf_embinit.cards import PAPERS, render_page

GUIDES = "hf_embinit/guides"
PAGES = ("README.md", "recipes/README.md", f"{GUIDES}/initialisers.md", f"{GUIDES}/api.md")
"""Those with generated parts."""
TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
README = TEXT["README.md"]


def block(page: str, name: str) -> list[list[str]]:
    """The cells of each row of a table of a page, without its head."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", TEXT[page], re.DOTALL)
    assert found, f"{page} has no block {name}"
    rows = [line.strip("| ").split(" | ") for line in found[1].splitlines() if line.startswith("|")]
    return [cells for cells in rows if not set("".join(cells)) <= set("-: ")][1:]


@pytest.mark.parametrize("page", PAGES)
def test_generated_parts_are_up_to_date(page: str) -> None:
    again = f"run `hf-embinit cards recipes/results model_cards --pages {' '.join(PAGES)}`"
    assert render_page(TEXT[page], ROOT / "recipes" / "results") == TEXT[page], again


def test_every_page_with_generated_parts_is_one_of_these() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("recipes/*.md"), *ROOT.glob("hf_embinit/**/*.md")]
    found = {p.relative_to(ROOT).as_posix() for p in pages if "<!-- end -->" in p.read_text(encoding="utf-8")}
    assert found == set(PAGES)


def test_a_row_that_is_gone_comes_back() -> None:
    text = TEXT[f"{GUIDES}/initialisers.md"]
    without_a_row = re.sub(r"\n\| `glove_orthogonal` .*", "", text)
    assert without_a_row != text == render_page(without_a_row, ROOT / "recipes" / "results")


def test_the_readme_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 150


def test_every_link_of_a_page_leads_somewhere() -> None:
    pages = {ROOT / page for page in PAGES} | {*ROOT.glob("hf_embinit/**/*.md"), *ROOT.glob(".github/*.md")}
    for page in sorted(pages):
        text = page.read_text(encoding="utf-8")
        for target, _, anchor in re.findall(r"\]\(((?!http)[^)#\s]*)(#([\w-]+))?\)", text):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name}: {target}"
            if anchor:
                heads = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
                names = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
                assert anchor in names, f"{page.name}: {target}#{anchor}"


def test_a_mark_without_an_end_hides_no_block() -> None:
    text = "<!-- tests -->\nby hand\n\n<!-- initialisers -->\nSTALE\n<!-- end -->\n"
    made = render_page(text, ROOT / "recipes" / "results")
    assert made.startswith("<!-- tests -->\nby hand\n\n<!-- initialisers -->\n") and "STALE" not in made
    assert "| `xavier` |" in made


def test_every_initialiser_stands_in_its_table_once() -> None:
    names = [
        name.strip("`")
        for cells in block(f"{GUIDES}/initialisers.md", "initialisers")
        for name in cells[0].split(", ")
    ]
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
        rows = [
            cells for cells in block("recipes/README.md", "results") if {dataset, epochs, init} <= set(cells)
        ]
        assert any(cell.split(" (")[0] == mean for cells in rows for cell in cells), (dataset, init, mean)
        assert any(str(len(values)) in cells for cells in rows)


def test_the_findings_are_those_of_the_records() -> None:
    """Computed here from the files of the records alone, not by what renders them."""
    shown = {cells[0].split(",")[0]: (cells[3], cells[5]) for cells in block("README.md", "findings")}
    results = ROOT / "recipes" / "results"

    def records(folder: str) -> list[dict]:
        paths = sorted((results / folder).rglob("results.json"))
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def of(found: list[dict], key: str, init: str, digits: int) -> str:
        values = [r["metrics"][key] for r in found if r["init"] == init]
        sd = statistics.stdev(values)
        return f"{statistics.fmean(values):.{digits}f} ({sd:.{digits + (sd < 0.5 * 10**-digits)}f})"

    trained = ("xavier", "glove_xavier")
    captions = records("translate")
    assert shown["captions"] == tuple(of(captions, "test_bleu", init, 1) for init in trained)
    new, key = records("expand_vocab-stories260K-distinct"), "validation_bits_per_byte"
    assert shown["50 new tokens in stories260K"] == tuple(of(new, key, i, 2) for i in ("default", "mean"))
    runs = [record for init in trained for record in multi30k_runs(init).values()]
    assert shown["Multi30k"] == tuple(of(runs, "test_bleu_tokenized", init, 1) for init in trained)


def paired(values: Callable[[dict], float]) -> tuple[float, float, float]:
    """`glove_xavier` - `xavier`: mean and 95% t interval over the seeds that both have."""
    xavier, glove_xavier = multi30k_runs("xavier"), multi30k_runs("glove_xavier")
    assert set(xavier) == set(glove_xavier) == {1, 2, 3}
    return mean_and_interval([values(glove_xavier[s]) - values(xavier[s]) for s in (1, 2, 3)])


def test_what_is_told_on_multi30k_is_what_the_intervals_say() -> None:
    page = page_of("recipes/results/README.md")

    def said(interval: tuple[float, float, float]) -> str:
        mean, low, high = interval
        return f"{mean:+.1f} ({low:.1f} to {high:.1f}"

    first = [paired(lambda r, n=n: r["history"][n]["validation_bleu_tokenized"]) for n in range(5)]
    test = paired(lambda r: r["metrics"]["test_bleu_tokenized"])
    third, fifth = said(first[2]).removeprefix("+"), said(first[4]).replace(" (", ", ")
    assert f"in validation BLEU after the third alone, by {third}; after the fifth {fifth})" in page
    assert f"`glove_xavier` - `xavier` is {said(test).replace('(', '(95% t interval ')})" in page
    assert f"not told apart ({said(test).replace(' (', ', 95% t interval ')})" in README
    assert [low > 0 for _, low, _ in first] == [False, False, True, False, False]
    assert test[1] < 0 < test[2] < 1.4
    for record in multi30k_runs("xavier").values():
        assert abs(record["metrics"]["test_bleu_tokenized"] - 37.3) < 2


def test_accuracies_with_another_tokenizer_are_those_of_the_records() -> None:
    (text,) = re.findall(
        r"^It learns 4,000 German.*?instead\s+of\s+\d+", TEXT["recipes/README.md"], re.DOTALL | re.MULTILINE
    )
    text = " ".join(text.split())
    said = re.search(r"in (\d+) of 100 cases, with its English tokenizer in (\d+) ", text)
    more = re.search(r"in (\d+) instead of (\d+)", text)
    assert said and more
    for name, found in (("german-embedded", said), ("german", more)):
        file = ROOT / "recipes" / "results" / "retokenize" / name / "results.json"
        metrics = json.loads(file.read_text(encoding="utf-8"))["metrics"]
        assert [float(x) for x in found.groups()] == [
            round(100 * metrics["step_0_accuracy"]), round(100 * metrics["before_accuracy"])
        ]  # fmt: skip


def test_what_parallel_text_is_worth_is_what_the_records_say() -> None:
    """Of a German tokenizer for an English encoder: methods that read no parallel text, and the old one."""
    folder = ROOT / "recipes" / "results" / "reproduce"
    with open(folder / "retokenize" / "table.csv", encoding="utf-8", newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if (row["column"], row["value"]) == ("german", "accuracy")
        ]
    found = {row["row"]: float(row["mean"]) for row in rows}
    parallel = {name for name in found if name == "ramen" or name.startswith("trans_")}
    best = max(mean for name, mean in found.items() if name not in parallel)
    files = folder.glob("runs/retokenize/ofa-*/results.json")
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    metrics = [r["metrics"] for r in records if r["arguments"]["model"] == "minilm"]
    (before,) = {m["before_accuracy"] for m in metrics if "before_accuracy" in m}
    assert len(parallel) == 3 and best < before < min(found[name] for name in parallel)
    guide = page_of(f"{GUIDES}/another-tokenizer.md")
    assert f"than the old tokenizer (at most {best:.0%} against {before:.0%}" in guide


@pytest.mark.parametrize("code", [code for _, _, code in PAPERS])
def test_every_function_and_command_of_the_papers_table_exists(code: str) -> None:
    if code.startswith("hf-embinit "):
        assert _parser().parse_args(shlex.split(code)[1:]).command in COMMANDS
    else:
        module, _, name = code.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_every_study_stands_in_the_papers_table() -> None:
    files = (ROOT / "hf_embinit" / "studies").glob("*.yaml")
    commands = {cells[-1] for cells in block(f"{GUIDES}/initialisers.md", "papers")}
    assert {f"`python recipes/reproduce.py {path.stem}`" for path in files} <= commands


def test_the_gate_runs_the_readme_s_test_command() -> None:
    assert re.search(r"<!-- tests -->\n```bash\n.*-m pytest\n```", README)
