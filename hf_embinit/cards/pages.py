"""The generated parts of README and guides: the picture, initialisers, papers, results, the API.

A block lies between `<!-- name -->` and `<!-- end -->`; everything else is written by hand.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from ..display import markdown_table
from ..errors import InvalidArgumentError
from ..initializers import PURPOSES
from ..records import find_records, results_table
from ..retokenize import list_initializers
from ..studies import list_studies, load_study
from .api import render_api
from .picture import PICTURE, why

_BLOCK = re.compile(r"(<!-- (\w+) -->\n)((?:(?!<!-- ).)*)(<!-- end -->)", re.DOTALL)
"""From a mark to the next one, which must be `end`: other marks are left alone."""
_SHOWN_RESULTS = ("translate", "sentiment")
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


def render_page(text: str, results: Path) -> str:
    """The text of a page with its generated blocks renewed; `results` is the folder of the run records.

    Blocks of other names stay as they are. Raises `InvalidArgumentError` for a mark without its end.
    """
    make: dict[str, Callable[[], str]] = {
        "api": render_api,
        "findings": lambda: _findings(results),
        "initialisers": _initialisers,
        "papers": _papers,
        "picture": lambda: f"![{why(results).sentence()}](recipes/results/{PICTURE})",
        "results": lambda: "\n".join(
            results_table(find_records(results / name)[0].values()) for name in _SHOWN_RESULTS
        ),
    }

    def block(found: re.Match[str]) -> str:
        start, name, old, end = found.groups()
        return f"{start}\n{make[name]()}\n{end}" if name in make else f"{start}{old}{end}"

    ended = [found[2] for found in _BLOCK.finditer(text)]
    for name in make:
        if text.count(f"<!-- {name} -->\n") > ended.count(name):
            raise InvalidArgumentError(f"<!-- {name} --> has no <!-- end --> of its own after it")
    return _BLOCK.sub(block, text)


def _findings(results: Path) -> str:
    """One line a finding: what is usual, what is better, over how many seeds, and where it stands."""
    kept = [(r.init, r.metrics["test_bleu"]) for r in find_records(results / "translate")[0].values()]
    captions = [[score for init, score in kept if init == name] for name in ("xavier", "glove_xavier")]
    multi30k = _cells(results, "table1", "multi30k", ("words-xavier", "words-glove_xavier"), "BLEU")
    longer = _cells(results, "retokenize", "larger", ("fvt", "words_shares"), "bits/byte")
    new, pictured = (
        [
            [
                json.loads(path.read_text(encoding="utf-8"))["metrics"]["validation_bits_per_byte"]
                for path in sorted(
                    (results / f"expand_vocab-{model}-distinct").glob(f"*/{name}/results.json")
                )
            ]
            for name in ("default", "mean")
        ]
        for model in ("stories260K", "wikitext")
    )
    runs = (results / "reproduce" / "runs" / "retokenize").glob("trans_tokenizer-seed*/results.json")
    read = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(runs)]
    german = [run["metrics"] for run in read if not run["arguments"].get("labelled")]
    found = [[100 * run[f"{when}_accuracy"] for run in german] for when in ("before", "step_0")]
    shown = [_with_sd(float(cell["mean"]), float(cell["sd"]), 1) for cell in multi30k]
    bits = [_with_sd(float(cell["mean"]), float(cell["sd"]), 2) for cell in longer]
    there = " and ".join(f"{fmean(values):.2f}" for values in pictured)
    rows = [
        ["captions, German to English", "test BLEU", "`xavier`", _mean(captions[0], 1), "`glove_xavier`",
         _mean(captions[1], 1), f"{len(captions[0])}, {len(captions[1])}",
         "[records](recipes/README.md#results)"],
        ["Multi30k, the paper's 20 epochs", "test BLEU on its own tokens", "`xavier`", shown[0],
         "`glove_xavier`", shown[1], multi30k[0]["n"],
         "[Table 1](recipes/results/reproduce/table1/table.md)"],
        [f"50 new tokens in stories260K, 500 steps (in the picture's model {there}, not told apart)",
         "bits per byte, less is better", "`default`", _mean(new[0], 2), "`mean`", _mean(new[1], 2),
         f"{len(new[0])}",
         "[records](recipes/results/expand_vocab-stories260K-distinct/README.md)"],
        ["English sentence encoder reads German, no training", "right caption found, of 100",
         "its own tokenizer", _mean(found[0], 1), "`trans_tokenizer`", _mean(found[1], 1), f"{len(german)}",
         "[all methods](recipes/results/reproduce/retokenize/table.md)"],
        ["4,000 tokens for a model with 512, no training", "bits per byte, less is better", "`fvt`", bits[0],
         "`first_piece_shares` after `tokens2words`", bits[1], longer[0]["n"],
         "[page](recipes/results/retokenize/README.md)"],
    ]  # fmt: skip
    return markdown_table(["what", "score", "usual", "", "instead", "", "seeds", "more"], rows)


def _cells(results: Path, study: str, column: str, rows: Sequence[str], value: str) -> list[dict[str, str]]:
    """Cells of the committed table of a study."""
    with open(results / "reproduce" / study / "table.csv", encoding="utf-8") as file:
        cells = {(r["column"], r["row"], r["value"]): r for r in csv.DictReader(file)}
    return [cells[column, row, value] for row in rows]


def _mean(values: Sequence[float], digits: int) -> str:
    """Mean (sd); the one value that all have."""
    if min(values) == max(values):
        return f"{values[0]:.{digits}f}"
    return _with_sd(fmean(values), stdev(values), digits)


def _with_sd(mean: float, sd: float, digits: int) -> str:
    """An sd that the digits would hide has one more."""
    hidden = 0 < sd < 0.5 * 10**-digits
    return f"{mean:.{digits}f} ({sd:.{digits + hidden}f})"


def _initialisers() -> str:
    rows = [
        [", ".join(f"`{name}`" for name in (r.name, *r.aliases)), PURPOSES[r.purpose], r.summary, r.reference]
        for r in list_initializers()
    ]
    return markdown_table(["name", "makes", "what", "source"], rows)


def _papers() -> str:
    """`PAPERS`, and each study that `recipes/reproduce.py` runs."""
    studies = [load_study(name) for name in list_studies()]
    rows = [(s.file.source, s.title, f"python recipes/reproduce.py {s.name}") for s in studies]
    return markdown_table(
        ["paper", "what", "code"],
        [[source, what, f"`{code}`"] for source, what, code in sorted(PAPERS + rows)],
    )
