"""Embedding tables to compare, read from files, and the frequencies of their tokens in a text."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from ..hub import load_pretrained_tokenizer
from ..measures import check_table
from ..tasks import DATA_VARIABLE
from ..tokens import TokenFamily, align
from ..vectors import load_vectors

_RESERVED = re.compile(r"[\[<]unused_?\d+[\]>]")
_POSITION_TABLES = ("*position_embeddings.weight", "*wpe.weight", "*embed_positions.weight")
_POSITION_TABLE_OF_GGUF = "position_embd.weight"


@dataclass
class Space:
    """One embedding table with a token a row, without special, reserved, empty and zero rows."""

    name: str
    source: str
    """The file, folder or Hub id that was given."""
    path: str
    """Where it was found, after `HF_EMBINIT_DATA` was searched."""
    family: TokenFamily
    tokens: list[str]
    matrix: Tensor
    """`[N, D]` float32."""
    rows_read: int
    left_out: dict[str, int] = field(default_factory=dict)
    """Reason -> number of rows left out."""
    own_positions_std: float | None = None
    """Standard deviation of the checkpoint's own learned positions; None when it has no table of them."""
    counts: Tensor | None = None
    """`[N]`: how often each token occurs in the corpus; None without one."""

    def rows_in_corpus(self, min_count: int, k: int) -> Tensor | None:
        """Rows of tokens seen `min_count` times or more; None without a corpus or for at most k rows."""
        if self.counts is None:
            return None
        rows = (self.counts >= min_count).nonzero().flatten()
        return rows if len(rows) > k else None

    def norms(self) -> tuple[Tensor, Tensor | None]:
        """Row norms of the tokens that the corpus has, and their counts; without a corpus all, and None."""
        norms = self.matrix.norm(dim=1)
        if self.counts is None:
            return norms, None
        seen = self.counts > 0
        return norms[seen], self.counts[seen]


def find_source(source: str) -> str:
    """`source` if it exists, else its path below `HF_EMBINIT_DATA`, else `source` unchanged."""
    folder = os.environ.get(DATA_VARIABLE)
    if not Path(source).exists() and folder and (Path(folder) / source).exists():
        return str(Path(folder) / source)
    return source


def load_space(
    source: str, name: str | None = None, *, table: str | None = None, allow_pickle: bool = False
) -> Space:
    """The `Space` of a file of vectors, a checkpoint's folder, or a Hub id; no model is built.

    Raises what `load_vectors` raises, and `InvalidArgumentError` for NaN or infinite values, for a table
    whose rows are all zero, all the same or too long for float32, and when fewer than two rows are left.
    """
    path = find_source(source)
    vectors = load_vectors(path, table=table, allow_pickle=allow_pickle)
    name = name or Path(source.rstrip("/")).name.removesuffix(".gz").removesuffix(".txt").removesuffix(".vec")
    check_table(vectors.matrix, name)
    special = set(vectors.report.get("special_tokens", ()))
    reasons = {
        "special": torch.tensor([token in special for token in vectors.tokens]),
        "reserved": torch.tensor([bool(_RESERVED.fullmatch(token)) for token in vectors.tokens]),
        "without text": torch.tensor([not token.strip() for token in vectors.tokens]),
        "all zero": (vectors.matrix == 0).all(1),
    }
    keep = torch.ones(len(vectors), dtype=torch.bool)
    left_out = {}
    for reason, rows in reasons.items():
        left_out[reason] = int((keep & rows).sum())
        keep &= ~rows
    before = {  # left out by the reader
        "NaN or infinite": len(vectors.report.get("non_finite", ())),
        "repeated": vectors.report.get("duplicates", 0),
    }
    left_out |= before
    matrix = vectors.matrix[keep]
    if len(matrix) < 2 or bool((matrix == matrix[0]).all()):
        state = "of which at least two must be left" if len(matrix) < 2 else "which are all the same"
        raise InvalidArgumentError(
            f"{name} has {len(matrix)} rows that are neither special nor zero, {state}: nothing to compare"
        )
    longest = float(matrix.norm(dim=1).max())
    if not longest**2 * matrix.shape[1] < torch.finfo(matrix.dtype).max:
        raise InvalidArgumentError(
            f"{name} has values up to {float(matrix.abs().max()):.3g}: rows so long cannot be measured in "
            "float32, divide the table by their length"
        )
    own = _own_positions(path, allow_pickle) if "table" in vectors.report else None
    return Space(
        name=name,
        source=source,
        path=path,
        family=vectors.family,
        tokens=[token for token, kept in zip(vectors.tokens, keep.tolist(), strict=True) if kept],
        matrix=matrix,
        rows_read=len(vectors) + sum(before.values()),
        left_out={reason: count for reason, count in left_out.items() if count},
        own_positions_std=None if own is None else float(own.std()),
    )


def _own_positions(path: str, allow_pickle: bool) -> Tensor | None:
    for pattern in (_POSITION_TABLE_OF_GGUF,) if Path(path).is_file() else _POSITION_TABLES:
        try:
            return load_vectors(path, table=pattern, allow_pickle=allow_pickle).matrix
        except InvalidArgumentError:  # no tensor, or several, of such a name
            continue
    return None


def load_spaces(
    sources: Sequence[str],
    names: Sequence[str] | None = None,
    *,
    table: str | None = None,
    allow_pickle: bool = False,
) -> list[Space]:
    """A `Space` for each source, called as in `names` or like its file; equal names get a number.

    Raises `InvalidArgumentError` when there are not as many names as sources, and what `load_space` raises.
    """
    if names is not None and (len(names) != len(sources) or len(set(names)) != len(names)):
        raise InvalidArgumentError(
            f"--names {' '.join(names)}: give {len(sources)} different names, one for each of --sources"
        )
    spaces: list[Space] = []
    for i, source in enumerate(sources):
        space = load_space(source, names[i] if names else None, table=table, allow_pickle=allow_pickle)
        taken = {other.name for other in spaces}
        stem, number = space.name, 2
        while space.name in taken:
            space.name, number = f"{stem} ({number})", number + 1
        spaces.append(space)
    return spaces


def count_tokens(spaces: Sequence[Space], texts: Sequence[str], language: str) -> None:
    """Sets `counts` of each space: words by spaCy's rules, lower-cased; a checkpoint's by its tokenizer."""
    words: Counter[str] | None = None
    for space in spaces:
        if space.family == "words":
            words = count_words(texts, language) if words is None else words
            counts = [words.get(token, 0) for token in space.tokens]
        else:
            tokenizer = load_pretrained_tokenizer(space.path, f"the tokenizer of {space.name}")
            ids: Counter[int] = Counter()
            for start in range(0, len(texts), 1000):
                batch = list(texts[start : start + 1000])
                for row in tokenizer(batch, add_special_tokens=False)["input_ids"]:
                    ids.update(row)
            vocabulary = tokenizer.get_vocab()
            counts = [ids.get(vocabulary.get(token, -1), 0) for token in space.tokens]
        space.counts = torch.tensor(counts, dtype=torch.long)


def count_words(texts: Sequence[str], language: str) -> Counter[str]:
    """How often each word occurs: words by spaCy's rules for `language`, lower-cased, without white space."""
    from ..models import WordSegmenter  # which need a later transformers than the rest does

    counts: Counter[str] = Counter()
    for words, _ in WordSegmenter(language, "language")(texts):
        counts.update(words)
    return counts


class _Tokens(Protocol):
    tokens: list[str]
    family: TokenFamily


def shared_rows(a: _Tokens, b: _Tokens) -> tuple[Tensor, Tensor]:
    """Rows of `a` and `b`, `[S]` each, of the tokens that both have, in the order of `a`; each row once."""
    rows_of_b: dict[int, int] = {}
    for row, other in enumerate(align(a.tokens, a.family, b.tokens, b.family).tolist()):
        if other >= 0:
            rows_of_b.setdefault(other, row)
    rows_of_a = list(rows_of_b.values())
    return torch.tensor(rows_of_a, dtype=torch.long), torch.tensor(list(rows_of_b), dtype=torch.long)
