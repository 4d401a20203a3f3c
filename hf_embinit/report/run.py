"""The whole report on embedding tables: reads, counts, measures, draws, writes.

Slow imports wait until it runs, so that `--help` is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import AtLeastTwo, Count, Seed, Text, check_flags
from ..errors import InvalidArgumentError

if TYPE_CHECKING:
    from .analysis import Space

REPORT_NAME, PAGE_NAME, FIGURES = "report.md", "report.html", "figures"
_STALE = (PAGE_NAME, *(f"{FIGURES}/{name}.png" for name in ("distribution_*", "norms", "match")))
"""What an older report may have, and a newer one in its place need not."""


@dataclass
class AnalysisArguments:
    """What to analyse, and how closely."""

    sources: list[str] = field(
        metadata={"help": "Tables to look at: files of vectors, GGUF files, folders of checkpoints, Hub ids."}
    )
    names: list[str] | None = field(
        default=None,
        metadata={"help": "What the report calls them, one name a source. Default: the files' names."},
    )
    output_dir: Text = field(
        default="runs/analyze_embeddings",
        metadata={"help": "Folder for report.md, results.json, figures/; replaces an older report there."},
    )
    html: bool = field(
        default=False,
        metadata={"help": "Write report.html, too: one page with the figures in it, that needs no network."},
    )
    corpus: str | None = field(
        default=None,
        metadata={"help": "Text to count tokens in, `<name, folder, file or Hub id>:<column>`: multi30k:en, "
                  "captions:en. Gives frequencies, and values for the tokens of that text alone."},
    )  # fmt: skip
    language: Text = field(default="en", metadata={"help": "Language of --corpus by spaCy's code: en, de."})
    min_count: Count = field(
        default=2, metadata={"help": "Tokens seen fewer times than this in --corpus are not its vocabulary."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder with a sub-folder for each data set of --corpus."}
    )
    analogies: str | None = field(
        default=None, metadata={"help": "File of word analogies in the format of questions-words.txt."}
    )
    words: list[str] | None = field(
        default=None, metadata={"help": "Words whose neighbors to show. Default: some that most tables have."}
    )
    k: Count = field(default=10, metadata={"help": "Nearest neighbors that are compared, in tokens."})
    sample: Count = field(
        default=500, metadata={"help": "Random tokens that match and absorption are averaged over."}
    )
    lengths: list[AtLeastTwo] = field(
        default_factory=lambda: [8, 16, 32, 64, 128, 256, 512],
        metadata={"help": "Sentence lengths of the absorption curve, in positions."},
    )
    table: str | None = field(
        default=None, metadata={"help": "Name or pattern of the tensor, for checkpoints with several tables."}
    )
    allow_pickle: bool = field(
        default=False, metadata={"help": "Read checkpoints that have no safetensors from their .bin files."}
    )
    seed: Seed = field(default=0, metadata={"help": "Seed of the random tokens and positions."})


def analyze_embeddings(args: AnalysisArguments, command: str) -> dict[str, Any]:
    """Writes the report into `args.output_dir`, whole or not at all, and returns its `results.json`.

    `command` is shown in it. Raises what `check_report_folder`, `load_spaces`, `check_settings` and
    `load_texts` raise, before anything is measured.
    """
    return analyze_spaces(args, command)[0]


def analyze_spaces(args: AnalysisArguments, command: str) -> tuple[dict[str, Any], list[Space]]:
    """`analyze_embeddings`, with the spaces that it read."""
    import time

    import torch

    from ..measures import read_analogies
    from ..records import check_report_folder, collect_versions, device_name
    from ..tasks import load_texts, texts_digest
    from ..vectors import rows_digest
    from . import analysis
    from .spaces import count_tokens, find_source, load_spaces

    check_flags(args)
    check_report_folder(args.output_dir, "spaces", (REPORT_NAME, PAGE_NAME, FIGURES))
    start = time.perf_counter()
    spaces = load_spaces(args.sources, args.names, table=args.table, allow_pickle=args.allow_pickle)
    analysis.check_settings(spaces, k=args.k, lengths=args.lengths)
    questions = None if args.analogies is None else read_analogies(find_source(args.analogies))
    corpus = None
    data = {
        space.name: {
            "rows": len(space.tokens),
            "sha256": rows_digest(space.tokens, space.matrix)[7:],
        }
        for space in spaces
    }
    if args.corpus is not None:
        if "corpus" in data:
            raise InvalidArgumentError(
                "--names: the record keeps 'corpus' for the digest of --corpus; give the table another name"
            )
        texts = load_texts(args.corpus, data_dir=args.data_dir)
        count_tokens(spaces, texts, args.language)
        corpus = {"name": args.corpus, "texts": len(texts), "min_count": args.min_count}
        data["corpus"] = {"rows": len(texts), "sha256": texts_digest(texts)}

    measured = {space.name: _measure(space, args, questions) for space in spaces}
    words = analysis.choose_words(spaces) if args.words is None else args.words
    neighbors = analysis.neighbors(spaces, words)
    pairs = analysis.match_matrix(spaces, args.k, args.sample, torch.Generator().manual_seed(args.seed))

    results = {
        "spaces": measured,
        "knn_match": pairs,
        "neighbors": neighbors,
        "corpus": corpus,
        "data": data,
        "arguments": asdict(args),
        "command": command,
        "runtime": {"seconds": time.perf_counter() - start, "device": device_name("cpu")},
        "versions": collect_versions(),
    }
    _write(args, results, spaces)
    return results, spaces


def _write(args: AnalysisArguments, results: dict[str, Any], spaces: Sequence[Space]) -> None:
    """Draws the figures, adds their paths to `results`, and writes all files."""
    from ..disk import writing
    from ..files import replaced_files
    from ..records import RESULTS_NAME, write_json, write_text
    from .html import render_page
    from .text import render_report

    with writing(f"--output_dir {args.output_dir}"), replaced_files(args.output_dir, _STALE) as folder:
        results["figures"] = _draw(spaces, results["spaces"], results["knn_match"], folder)
        write_text(folder / REPORT_NAME, render_report(results))
        if args.html:
            write_text(folder / PAGE_NAME, render_page(results, folder))
        write_json(folder / RESULTS_NAME, results)


def summary(results: dict[str, Any]) -> str:
    """The advice for each space, and where the report is: the output of the command."""
    from .text import headline

    folder = Path(results["arguments"]["output_dir"])
    lines = [headline(name, space, results["corpus"]) for name, space in results["spaces"].items()]
    lines += ["", f"report: {folder / REPORT_NAME}"]
    if results["arguments"]["html"]:
        lines.append(f"page:   {folder / PAGE_NAME}")
    return "\n".join(lines)


def _measure(space: Space, args: AnalysisArguments, questions: Any) -> dict[str, Any]:
    """All measurements of one space alone."""
    from . import analysis

    rows = space.rows_in_corpus(args.min_count, args.k)
    table_4 = None
    if questions is not None:
        parts = {"all": None} if rows is None else {"all": None, "in_corpus": rows}
        table_4 = {
            part: analysis.table_4(space, questions, some, seed=args.seed) for part, some in parts.items()
        }
    return {
        "source": space.source,
        "family": space.family,
        "rows_read": space.rows_read,
        "left_out": space.left_out,
        "num_embeddings": len(space.tokens),
        "embedding_dim": space.matrix.shape[1],
        "own_positions_std": space.own_positions_std,
        "statistics": analysis.statistics(space),
        "statistics_in_corpus": None if rows is None else analysis.statistics(space, rows),
        "frequency": analysis.frequency(space),
        "absorption": analysis.absorption_curves(
            space, args.lengths, rows, k=args.k, sample=args.sample, seed=args.seed
        ),
        "table_4": table_4,
    }


def _draw(
    spaces: Sequence[Space], measured: dict[str, dict[str, Any]], pairs: list[dict[str, Any]], folder: Path
) -> dict[str, Any]:
    """Draws the figures into `folder/figures` and returns their paths relative to `folder`."""
    from ..drawing import shrink_picture
    from ..training import plot_embedding_distribution
    from .figures import plot_absorption, plot_match_matrix, plot_norms, short_name

    place = folder / FIGURES

    def link(picture: Path) -> str:
        return shrink_picture(picture).relative_to(folder).as_posix()

    distributions = {}
    for number, space in enumerate(spaces, 1):
        title = f"{short_name(space.name)} [{len(space.tokens):,}, {space.matrix.shape[1]}]"
        path = place / f"distribution_{number}.png"
        distributions[space.name] = link(plot_embedding_distribution(space.matrix, path, title=title))
    norms = {s.name: s.norms() for s in spaces if measured[s.name]["frequency"]["by"] is not None}
    curves = {space.name: measured[space.name]["absorption"] for space in spaces}
    names = [space.name for space in spaces]
    return {
        "distribution": distributions,
        "norms": link(plot_norms(norms, place / "norms.png")) if norms else None,
        "absorption": link(plot_absorption(curves, place / "absorption.png")),
        "match": link(plot_match_matrix(names, pairs, place / "match.png")) if pairs else None,
    }
