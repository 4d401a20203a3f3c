"""Look at embedding tables: will they hurt as the start of a transformer, why, and what to do instead?

    python recipes/analyze_embeddings.py --sources glove.6B.300d.txt
    python recipes/analyze_embeddings.py --sources google-bert/bert-base-cased path/to/model de.vec.gz \\
        --names bert mine fasttext --corpus multi30k:de --language de
    python recipes/analyze_embeddings.py --sources word2vec.bin --analogies questions-words.txt

Checkpoints (folders or Hub ids) and files of vectors in, one page out: `report.md` with its figures, and
`results.json`. The table of a checkpoint is read from its file by name; no model is built. Files and folders
that are not here are looked for in the folder of HF_EMBINIT_DATA.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from hf_embinit.runs.arguments import parse_arguments, run_main


@dataclass
class Arguments:
    """What to look at, and how closely."""

    sources: list[str] = field(
        metadata={"help": "Tables to look at: files of vectors, folders of checkpoints, Hub ids."}
    )
    names: list[str] | None = field(
        default=None,
        metadata={"help": "What the report calls them, one name a source. Default: the files' names."},
    )
    output_dir: str = field(
        default="runs/analyze_embeddings",
        metadata={"help": "Folder for report.md, results.json, figures/; replaces an older report there."},
    )
    corpus: str | None = field(
        default=None,
        metadata={"help": "Text to count tokens in, `<name, folder, file or Hub id>:<column>`: multi30k:en, "
                  "captions:en. Gives frequencies, and values for the tokens of that text alone."},
    )  # fmt: skip
    language: str = field(default="en", metadata={"help": "Language of --corpus by spaCy's code: en, de."})
    min_count: int = field(
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
    k: int = field(default=10, metadata={"help": "Nearest neighbors that are compared, in tokens."})
    sample: int = field(
        default=500, metadata={"help": "Random tokens that match and absorption are averaged over."}
    )
    lengths: list[int] = field(
        default_factory=lambda: [8, 16, 32, 64, 128, 256, 512],
        metadata={"help": "Sentence lengths of the absorption curve, in positions."},
    )
    table: str | None = field(
        default=None, metadata={"help": "Name or pattern of the tensor, for checkpoints with several tables."}
    )
    allow_pickle: bool = field(
        default=False, metadata={"help": "Read checkpoints that have no safetensors from their .bin files."}
    )
    seed: int = field(default=0, metadata={"help": "Seed of the random tokens and positions."})


def main() -> None:
    """Read, count, measure, draw, write."""
    (args,) = parse_arguments((Arguments,), lambda known: {}, description=__doc__ or "")
    # after --help, which answers without them
    import shlex
    import sys
    import time
    from pathlib import Path

    import torch

    from hf_embinit.measures.analogies import read_analogies
    from hf_embinit.runs import analysis
    from hf_embinit.runs.analysis_figures import (
        compress_picture,
        plot_absorption,
        plot_match_matrix,
        plot_norms,
    )
    from hf_embinit.runs.analysis_report import headline, render_report
    from hf_embinit.runs.figures import plot_embedding_distribution
    from hf_embinit.runs.record import collect_versions, device_name, write_json, write_text
    from hf_embinit.tasks.texts import load_texts

    start = time.perf_counter()
    folder = Path(args.output_dir)

    # --- tables, frequencies, questions -------------------------------------------------------------------
    spaces = analysis.load_spaces(args.sources, args.names, table=args.table, allow_pickle=args.allow_pickle)
    analysis.check_settings(spaces, k=args.k, sample=args.sample, lengths=args.lengths)
    questions = None if args.analogies is None else read_analogies(analysis.find_source(args.analogies))
    corpus = None
    if args.corpus is not None:
        texts = load_texts(args.corpus, data_dir=args.data_dir)
        analysis.count_tokens(spaces, texts, args.language)
        corpus = {"name": args.corpus, "texts": len(texts), "min_count": args.min_count}

    # --- each space by itself -----------------------------------------------------------------------------
    found: dict[str, dict[str, Any]] = {}
    for space in spaces:
        rows = analysis.rows_in_corpus(space, args.min_count, args.k)
        found[space.name] = {
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
            "table_4": None,
        }
        if questions is not None:
            parts = {"all": None} if rows is None else {"all": None, "in_corpus": rows}
            found[space.name]["table_4"] = {
                part: analysis.table_4(space, questions, some, seed=args.seed) for part, some in parts.items()
            }

    # --- the spaces side by side --------------------------------------------------------------------------
    words = analysis.choose_words(spaces) if args.words is None else args.words
    neighbors = analysis.neighbors(spaces, words)
    pairs = analysis.match_matrix(spaces, args.k, args.sample, torch.Generator().manual_seed(args.seed))

    # --- figures ------------------------------------------------------------------------------------------
    names = [space.name for space in spaces]
    figures: dict[str, Any] = {"distribution": {}, "norms": None, "absorption": None, "match": None}
    for number, space in enumerate(spaces, 1):
        n, d = space.matrix.shape
        path = folder / "figures" / f"distribution_{number}.png"
        plot_embedding_distribution(space.matrix, path, title=f"{space.name} [{n:,}, {d}]")
        figures["distribution"][space.name] = compress_picture(path)
    norms = {s.name: analysis.norms(s) for s in spaces if found[s.name]["frequency"]["by"] is not None}
    if norms:
        figures["norms"] = compress_picture(plot_norms(norms, folder / "figures" / "norms.png"))
    curves = {name: found[name]["absorption"] for name in names}
    figures["absorption"] = compress_picture(plot_absorption(curves, folder / "figures" / "absorption.png"))
    if pairs:
        figures["match"] = compress_picture(plot_match_matrix(names, pairs, folder / "figures" / "match.png"))

    # --- report -------------------------------------------------------------------------------------------
    results = {
        "spaces": found,
        "knn_match": pairs,
        "neighbors": neighbors,
        "corpus": corpus,
        "figures": figures,
        "arguments": asdict(args),
        "command": shlex.join(["python", "recipes/analyze_embeddings.py", *sys.argv[1:]]),
        "runtime": {"seconds": time.perf_counter() - start, "device": device_name("cpu")},
        "versions": collect_versions(),
    }
    write_text(folder / "report.md", render_report(results))
    write_json(folder / "results.json", results)
    print("\n".join(headline(name, space, corpus) for name, space in found.items()))
    print(f"\nreport: {folder / 'report.md'}")


if __name__ == "__main__":
    run_main(main)
