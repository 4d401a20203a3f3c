"""Meaning against position: Kim et al. 2024, Table 4, with tables that keep out of the positions' way.

`V` tokens, `D` columns, `P` positions. From a file of vectors and one of analogies to `results.json`, a page
of tables and a figure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arguments import AtLeastTwo, Count, Positive, Seed, Text, check_flags
from ..disk import writing
from ..display import markdown_table
from ..drawing import shrink_picture
from ..errors import InvalidArgumentError
from ..files import file_sha256, replaced_files
from ..initializers import turned_away
from ..measures import (
    AnalogyTask,
    position_channel,
    position_encoding,
    position_span,
    read_analogies,
)
from ..moments import standardize, xavier_bound, xavier_std
from ..records import RESULTS_NAME, check_report_folder, collect_versions, device_name, write_json, write_text
from ..vectors import load_vectors, rows_digest
from .figures import plot_frontier
from .spaces import find_source

ENERGY = 0.9999
SHOWN = 64
"""Positions that the figure is about."""
TABLES = {
    "xavier": "random rows (`xavier`)",
    "plain": "the vectors as they are (`pretrained`)",
    "standardized": "standardized (`pretrained_xavier`)",
    "turned": "turned only (`pretrained_orthogonal`, `empty=false`)",
    "emptied": "turned and emptied (`pretrained_orthogonal`)",
    "cut": "emptied without a turn (`turn=none`)",
    "random": "control: a random turn (`turn=random empty=false`)",
    "anti": "control: the most energetic directions on the positions (`turn=most empty=false`)",
}
"""The tables compared, by what the records call them."""
_TURNS: dict[str, Any] = {
    "turned": {"turn": "least", "empty": False},
    "emptied": {"turn": "least", "empty": True},
    "cut": {"turn": "none", "empty": True},
    "random": {"turn": "random", "empty": False},
    "anti": {"turn": "most", "empty": False},
}


@dataclass
class FrontierArguments:
    """Which vectors, in which sums."""

    vectors: str = field(metadata={"help": "A file of vectors, the folder of a checkpoint, or a Hub id."})
    analogies: str = field(metadata={"help": "File of word analogies in the format of questions-words.txt."})
    output_dir: Text = field(
        default="runs/position_frontier",
        metadata={"help": "Folder for results.json, table.md and figures/; replaces older ones there."},
    )
    positions: list[AtLeastTwo] = field(
        default_factory=lambda: [16, 64, 256, 1024, 5000],
        metadata={"help": "Numbers of positions; the rows are turned away from so many."},
    )
    position_scales: list[Positive] = field(
        default_factory=lambda: [1.0, 0.5, 0.2, 0.1, 0.05],
        metadata={"help": "Factors of the positions."},
    )
    sample: Count = field(default=500, metadata={"help": "Random tokens whose neighbors are compared."})
    seed: Seed = field(default=0, metadata={"help": "Seed of random rows, turns, positions and tokens."})


def measure_frontier(args: FrontierArguments, command: str) -> dict[str, Any]:
    """Writes the frontier into `args.output_dir` and gives its `results.json`; `command` is what made it.

    Raises `InvalidArgumentError` for settings out of range and when no analogy applies, and what reading
    vectors and analogies raises.
    """
    start = time.perf_counter()
    check_flags(args)
    check_report_folder(args.output_dir, "cells", ("table.md", "figures"))
    if not args.positions or not args.position_scales:
        raise InvalidArgumentError(
            f"--positions {args.positions} --position_scales {args.position_scales}: give one of each or more"
        )
    vectors = load_vectors(find_source(args.vectors))
    task = AnalogyTask.for_tokens(read_analogies(find_source(args.analogies)), vectors.tokens)
    if not len(task.rows):
        raise InvalidArgumentError(
            f"--analogies {args.analogies}: no question has all its words in the vectors"
        )
    cells = []
    alone: dict[str, float] = {}
    width = vectors.dim
    for num_positions in args.positions:
        encodings = position_encoding(num_positions, width)
        for name, table in _tables(vectors.matrix, encodings, args.seed):
            known = alone.get(name)
            for position_scale in args.position_scales:
                cell = position_channel(
                    table,
                    encodings,
                    scale=math.sqrt(width),
                    position_scale=position_scale,
                    energy=ENERGY,
                    generator=torch.Generator().manual_seed(args.seed),
                    sample=args.sample,
                    analogies=task,
                    analogies_alone=known,
                )
                known = cell.analogies_alone
                cells.append({"table": name, **cell.to_dict()})
            if name not in _TURNS and known is not None:  # the same whatever the positions
                alone[name] = known
    results = {
        "vectors": {**vectors.source, "name": args.vectors},
        "data": {
            "vectors": {"rows": len(vectors), "sha256": rows_digest(vectors.tokens, vectors.matrix)[7:]},
            "analogies": {"rows": task.total, "sha256": file_sha256(Path(find_source(args.analogies)))},
        },
        "tokens": len(vectors),
        "width": width,
        "applicable": len(task.rows),
        "questions": task.total,
        "cells": cells,
        "directions": _directions(vectors.matrix, args.seed),
        "arguments": asdict(args),
        "command": command,
        "runtime": {"seconds": time.perf_counter() - start, "device": device_name("cpu")},
        "versions": collect_versions(),
    }
    with writing(f"--output_dir {args.output_dir}"), replaced_files(args.output_dir) as folder:
        figure = shrink_picture(plot_frontier(results, folder / "figures" / "frontier.png"))
        write_text(folder / "table.md", render_frontier(results, figure.relative_to(folder).as_posix()))
        write_json(folder / RESULTS_NAME, results)
    return results


def _tables(matrix: Tensor, encodings: Tensor, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Name and table `[V, D]`, before the input is scaled; turned ones turned away from `encodings`."""
    generator = torch.Generator().manual_seed(seed)
    bound = xavier_bound(*matrix.shape)
    yield "xavier", torch.empty_like(matrix).uniform_(-bound, bound, generator=generator)
    yield "plain", matrix
    rows = standardize(matrix.double(), 0.0, xavier_std(*matrix.shape))
    yield "standardized", rows.float()
    for name, options in _TURNS.items():
        yield name, turned_away(rows, encodings, energy=ENERGY, generator=generator, **options).rows.float()


def _directions(matrix: Tensor, seed: int) -> dict[str, Any]:
    """Mean squared length along each of D directions, of positions and of two tables times sqrt(D).

    First those of the span of `SHOWN` positions, the positions' longest first, then the others, the longest
    of the table first.
    """
    encodings = position_encoding(SHOWN, matrix.shape[1]).double()
    inside = position_span(encodings, ENERGY)
    found: dict[str, Any] = {"span": len(inside)}
    for name, table in _tables(matrix, encodings, seed):
        if name not in ("standardized", "emptied"):
            continue
        words = table.double() * math.sqrt(matrix.shape[1])
        rest = words - words @ inside.T @ inside
        outside = torch.linalg.svd(rest, full_matrices=False)[2][: matrix.shape[1] - len(inside)]
        basis = torch.cat([inside, outside])
        found[name] = (words @ basis.T).square().mean(0).tolist()
        found[f"positions_{name}"] = (encodings @ basis.T).square().mean(0).tolist()
    return found


def render_frontier(results: dict[str, Any], figure: str) -> str:
    """The page: one table for each number of positions, `analogies / positions` in percent."""
    args, by_place = results["arguments"], {}
    for cell in results["cells"]:
        by_place[cell["num_positions"], cell["table"], cell["position_scale"]] = cell
    parts = [
        "# Meaning and position in one sum",
        f"![Where words and positions are, and what is read from their sum]({figure})",
        f"{results['tokens']:,} vectors of width {results['width']} ({results['vectors']['name']}), "
        f"{results['applicable']:,} of {results['questions']:,} analogies apply. A model reads sqrt(D) * row "
        "+ factor * position; each row stands at a random position. Each cell: analogies answered from that "
        "sum by 3CosAdd / positions named by a linear probe, fitted on the other half of the rows, in "
        "percent. *Alone* is without positions. *Energy* is the share of the table's squared length in the "
        f"dimensions that hold {ENERGY:.2%} of the positions'.",
    ]
    for count in args["positions"]:
        first = by_place[count, "standardized", args["position_scales"][0]]
        rows = []
        for name, title in TABLES.items():
            cells = [by_place[count, name, scale] for scale in args["position_scales"]]
            told = [_cell(cell) for cell in cells]
            rows.append(
                [title, f"{cells[0]['energy']:.1%}", f"{100 * cells[0]['analogies_alone']:.1f}", *told]
            )
        head = ["table", "energy", "alone", *(f"factor {scale:g}" for scale in args["position_scales"])]
        parts += [f"## {count:,} positions: {first['dimensions']} of {results['width']} dimensions"]
        parts += [markdown_table(head, rows)]
    versions = results["versions"]
    made = f"hf_embinit {versions['hf_embinit']}, commit {versions.get('commit', 'unknown')}, torch "
    made += (
        f"{versions['torch']}, {results['runtime']['seconds']:.0f} seconds on {results['runtime']['device']}"
    )
    parts += ["## How this was made", f"```\n{results['command']}\n```", f"Seed {args['seed']}; {made}."]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _cell(cell: dict[str, Any]) -> str:
    accuracy = cell["position_accuracy"]
    position = "-" if accuracy is None else f"{100 * accuracy:.1f}"
    return f"{100 * cell['analogies_in_sum']:.1f} / {position}"
