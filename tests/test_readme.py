"""The README says what the code does: its tables are generated (`test_guides` runs its code).

`python tests/test_readme.py` rewrites the generated blocks.
"""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest
import yaml

from hf_embinit.__main__ import COMMANDS, _parser

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PURPOSES = {
    "table": "a whole table",
    "rows": "rows for new tokens",
    "tokenizer": "a table for a new tokenizer",
}


def initialisers() -> str:
    from hf_embinit import list_initializers

    lines = ["| name | makes | what | source |", "| --- | --- | --- | --- |"]
    for r in list_initializers():
        lines.append(f"| `{r.name}` | {PURPOSES[r.purpose]} | {r.summary} | {r.source} |")
    return "\n".join(lines) + "\n"


PAPERS = [
    ("Glorot & Bengio 2010, Eq. 16", "Xavier-uniform tables", "hf_embinit.moments.xavier_bound"),
    (
        "Kim et al. 2024, Eq. 1 and 4",
        "A table moved to the moments of another",
        "hf_embinit.moments.standardize",
    ),
    ("Kim et al. 2024, Eq. 2", "Position encodings", "hf_embinit.measures.statistics.position_encoding"),
    (
        "Kim et al. 2024, Eq. 3",
        "Words and positions in their sum",
        "hf_embinit.measures.absorption.absorption",
    ),
    ("Kim et al. 2024, section 3.4", "Shuffled entries", "hf_embinit.moments.shuffle"),
    (
        "Kim et al. 2024, Table 4",
        "The transformations",
        "hf_embinit.measures.absorption.table_4_transformations",
    ),
    (
        "Kim et al. 2024, Tables 2, 4, 6 and 8",
        "The same of your own vectors",
        "hf-embinit analyze vectors.txt --html",
    ),
    ("Zhang 2021, sections 3 to 6", "The interventions", "hf-embinit surgery --list"),
    ("Zhang 2021, sections 3 to 6", "One or several of them", "hf_embinit.surgery.apply"),
    ("Zhang 2021, Table 2", "Vocabularies compared", "hf_embinit.measures.overlap.vocabulary_overlap"),
    (
        "Zhang 2021, Table 2",
        "English-like contexts",
        "hf_embinit.measures.overlap.english_like_contexts",
    ),
    ("The Butterfly Effect", "KNN match similarity", "hf_embinit.measures.knn.knn_match_similarity"),
    ("Hewitt 2021", "New tokens in one call", "hf_embinit.vocabulary.expand_vocabulary"),
    ("Hewitt 2021", "The bound on the KL divergence", "hf_embinit.measures.divergence.expansion_bound"),
    ("Pennington et al. 2014", "GloVe vectors of your own text", "hf_embinit.vectors.train_glove"),
]
"""Part of a paper, what it is, and the function or command that does it."""
STUDIES = ROOT / "hf_embinit" / "runs" / "studies"


def papers() -> str:
    """`PAPERS`, and each study that `recipes/reproduce.py` runs."""
    studies = [
        (path.stem, yaml.safe_load(path.read_text(encoding="utf-8"))) for path in STUDIES.glob("*.yaml")
    ]
    rows = [(s["source"], s["title"], f"python recipes/reproduce.py {name}") for name, s in studies]
    lines = ["| paper | what | code |", "| --- | --- | --- |"]
    lines += [f"| {source} | {what} | `{code}` |" for source, what, code in sorted(PAPERS + rows)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("code", [code for _, _, code in PAPERS])
def test_every_function_and_command_of_the_papers_table_exists(code: str) -> None:
    if code.startswith("hf-embinit "):
        assert _parser().parse_args(shlex.split(code)[1:]).command in COMMANDS
    else:
        module, _, name = code.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_every_study_of_the_papers_table_can_be_planned() -> None:
    from hf_embinit.runs.matrix import list_studies

    assert sorted(path.stem for path in STUDIES.glob("*.yaml")) == sorted(list_studies())
    assert (ROOT / "recipes" / "reproduce.py").is_file()


def results() -> str:
    from hf_embinit.runs.aggregate import read_records, results_table

    folders = [ROOT / "recipes" / "results" / name for name in ("translate", "sentiment")]
    return "\n".join(results_table(read_records(folder)) for folder in folders)


BLOCKS = {"initialisers": initialisers, "papers": papers, "results": results}


def block(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def test_generated_blocks_are_up_to_date() -> None:
    text = README.read_text(encoding="utf-8")
    for name, make in BLOCKS.items():
        found = block(name).search(text)
        assert found, f"README.md has no block {name}"
        assert found[2].strip() == make().strip(), f"run `python {Path(__file__).name}` to rewrite {name}"


def test_the_gate_runs_the_readme_s_test_command() -> None:
    text = README.read_text(encoding="utf-8")
    assert re.search(r"<!-- tests -->\n```bash\n.*-m pytest\n```", text)


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    for name, make in BLOCKS.items():
        text = block(name).sub(lambda m, make=make: m[1] + "\n" + make() + "\n" + m[3], text)
    README.write_text(text, encoding="utf-8")
