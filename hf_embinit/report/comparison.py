"""`compare`: two embedding tables over the tokens that both have, read without building a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..arguments import Count, FilePath, checked
from ..display import printable
from ..errors import DataNotFoundError, InvalidArgumentError
from ..manifest import read_manifest
from ..measures import EmbeddingStatistics, check_table, embedding_statistics, knn_match_similarity
from ..moments import unit_rows
from ..vectors import PretrainedVectors, load_vectors
from .spaces import shared_rows

Source = PretrainedVectors | FilePath

_STATISTICS = {
    "num_embeddings": "tokens",
    "embedding_dim": "width",
    "mean": "mean",
    "std": "sd",
    "min": "minimum",
    "max": "maximum",
    "row_norm_mean": "mean row norm",
    "effective_rank": "effective rank",
}
_QUERIES = 4096


@dataclass(frozen=True)
class ComparedTable:
    """One of the two tables."""

    name: str
    revision: str | None
    """Commit of the Hub repository, when it is one."""
    digest: str | None
    statistics: EmbeddingStatistics
    """Statistics of all rows that have a token."""
    manifest: list[dict[str, Any]]
    """The events of the checkpoint's `config.embinit`, oldest first."""


@dataclass(frozen=True)
class Comparison:
    """The similarity of two tables over the tokens that both have."""

    a: ComparedTable
    b: ComparedTable
    shared: int
    """Number of tokens that both have with a non-zero row."""
    k: int
    knn_match: float | None
    """Mean Jaccard index, 0 to 1, of the k nearest neighbors among the shared tokens; None when it is
    undefined (`knn_problem` says why)."""
    knn_tokens: int
    """Tokens in that mean: all, or an even sample of a large vocabulary."""
    knn_problem: str | None
    equal_rows: int | None
    """Shared rows that are equal in both, bit for bit; None for different widths."""
    mean_cosine: float | None
    """Mean cosine of a token's two rows; None for different widths."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [("", self.a.name, self.b.name)]
        for key, label in _STATISTICS.items():
            first, second = (_number(getattr(t.statistics, key)) for t in (self.a, self.b))
            rows.append((label, first, second))
        events = [[_event(event) for event in t.manifest] or ["none"] for t in (self.a, self.b)]
        for index in range(max(map(len, events))):
            left, right = (lines[index] if index < len(lines) else "" for lines in events)
            rows.append(("manifest" if index == 0 else "", left, right))
        rows = [(left, printable(a), printable(b)) for left, a, b in rows]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        match = self.knn_problem if self.knn_match is None else f"{self.knn_match:.4f}"
        of = "" if self.knn_tokens == self.shared else f", over {self.knn_tokens:,} of them"
        lines += ["", f"shared tokens: {self.shared:,}", f"KNN match (k = {self.k}{of}): {match}"]
        if self.mean_cosine is not None:
            lines.append(f"rows that are equal: {self.equal_rows:,}; mean cosine: {self.mean_cosine:.4f}")
        return "\n".join(lines)


@checked
def compare(
    a: Source,
    b: Source,
    *,
    k: Count = 10,
    table: str | None = None,
    revisions: tuple[str | None, str | None] = (None, None),
    allow_pickle: bool = False,
) -> Comparison:
    """Compares the input tables of two checkpoints, or two files of vectors: folders, Hub ids, or vectors.

    Tokens are matched by spelling, across tokenizers by their bytes and word starts. `table` chooses another
    table of both by its name or a pattern; `revisions` are branches, tags or commits of Hub ids: `compare(id,
    id, revisions=("init", "main"))` shows what training changed. Tables are read from safetensors alone, a
    pickle only with `allow_pickle`. The KNN match is the mean over at most 4096 tokens, spread evenly.

    Raises `DataNotFoundError` for a missing file or repository, and `InvalidArgumentError` when fewer than
    two tokens are shared.
    """
    read = [
        load_vectors(source, table=table, revision=revision, allow_pickle=allow_pickle)
        for source, revision in zip((a, b), revisions, strict=True)
    ]
    for name, vectors in zip("ab", read, strict=True):
        check_table(vectors.matrix, f"{name}={vectors.name!r}")
    rows = _shared_rows_not_zero(*read)
    if len(rows[0]) < 2:
        raise InvalidArgumentError(
            f"{read[0].name} and {read[1].name} share {len(rows[0])} tokens: expected at least 2. "
            "Are they tables of the same language?"
        )
    left, right = (vectors.matrix[index] for vectors, index in zip(read, rows, strict=True))
    count = len(left)
    k = min(k, count - 1)
    asked = torch.linspace(0, count - 1, min(count, _QUERIES)).round().long().unique()
    match, problem = None, None
    try:
        match = knn_match_similarity(left, right, k=k, tokens=asked)
    except InvalidArgumentError as error:
        problem = str(error)
    same_width = left.shape == right.shape
    cosine = (unit_rows(left) * unit_rows(right)).sum(1) if same_width else None
    described = [
        ComparedTable(
            name=vectors.name + (f" ({revision})" if revision else ""),
            revision=vectors.revision,
            digest=vectors.digest,
            statistics=embedding_statistics(vectors.matrix),
            manifest=_manifest(source, vectors, revision),
        )
        for source, vectors, revision in zip((a, b), read, revisions, strict=True)
    ]
    return Comparison(
        a=described[0],
        b=described[1],
        shared=count,
        k=k,
        knn_match=match,
        knn_tokens=len(asked),
        knn_problem=problem,
        equal_rows=int((left == right).all(dim=1).sum()) if same_width else None,
        mean_cosine=float(cosine.mean(dtype=torch.float64)) if cosine is not None else None,
    )


def _shared_rows_not_zero(a: PretrainedVectors, b: PretrainedVectors) -> tuple[Tensor, Tensor]:
    """Row of each shared token in either table, in the order of `a`."""
    first, second = shared_rows(a, b)
    full = (a.matrix[first] != 0).any(dim=1) & (b.matrix[second] != 0).any(dim=1)
    return first[full], second[full]


def _manifest(source: Source, vectors: PretrainedVectors, revision: str | None) -> list[dict[str, Any]]:
    if isinstance(source, PretrainedVectors) or Path(source).expanduser().is_file():
        return []
    try:
        folder = Path(source).expanduser()
        return read_manifest(folder) if folder.is_dir() else read_manifest(vectors.name, revision=revision)
    except DataNotFoundError:
        return []


def _event(event: Mapping[str, Any]) -> str:
    """An event of a manifest in a few words."""
    words = [str(event.get("event", "event"))]
    words += [f"{k} {event[k]}" for k in ("init", "seed") if event.get(k) is not None]
    read = [table["source"].get("name") for table in event.get("tables") or () if table.get("source")]
    sources = dict.fromkeys(Path(str(name)).name for name in read)
    return " ".join(words) + (f" from {', '.join(sources)}" if sources else "")


def _number(value: float | None) -> str:
    if value is None:
        return "not taken"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
