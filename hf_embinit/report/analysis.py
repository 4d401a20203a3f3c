"""The measurements of the report on embedding tables: values, norms, neighbors, absorption.

Every table `[N, D]` is judged as the input of a transformer that reads `sqrt(D) * embedding + position` with
sinusoidal positions (Kim et al. 2024, Eq. 3), whatever the model that it comes from does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..errors import InvalidArgumentError
from ..measures import (
    AnalogyTask,
    EmbeddingStatistics,
    Metric,
    Question,
    absorption_curve,
    analogy_score,
    embedding_statistics,
    knn_match_similarity,
    nearest_neighbors,
    position_encoding,
    position_encoding_statistics,
    position_span,
    spearmanr,
    table_4_transformations,
    xavier_statistics,
)
from ..moments import standardize, xavier_std
from ..tokens import align, canonical_form
from .spaces import Space, shared_rows

_TABLE_4_POSITIONS = (64, 5000)

HARMLESS = 2.0
"""Largest sd of a table, scaled by sqrt(D), in sd of the positions, that did no harm unchanged: mBERT's in
translation (Kim et al. 2024, Tables 1 and 2), 3.0 and 4.4 times Xavier's sd."""
HARMFUL = 8.2
"""Smallest such sd of a table that did harm unchanged: GloVe's for IWSLT2017 (same tables). In sd of Xavier's
the smallest was GloVe's for Multi30k, at 23 times."""
_XAVIERS = 0.95
"""From this ratio on a table has Xavier's sd: freshly drawn ones are off by 3% for 20 tokens of width 12."""
_METRICS: tuple[Metric, ...] = ("inner_product", "cosine")
_ORDERED = 0.2  # Spearman's correlation of a token's row and its length: frequent words are short (Zipf)


def check_settings(spaces: Sequence[Space], *, k: int, lengths: Sequence[int]) -> None:
    """Raises `InvalidArgumentError` for settings that cannot work with these spaces, before any work."""
    for space in spaces:
        if k >= len(space.tokens):
            raise InvalidArgumentError(
                f"--k {k}: each of the {len(space.tokens)} rows of {space.name} has {len(space.tokens) - 1} "
                "others; choose a number between 1 and that"
            )
    if not lengths:
        raise InvalidArgumentError("--lengths : give lengths of 2 positions or more")


def statistics(space: Space, rows: Tensor | None = None) -> dict[str, Any]:
    """The values of Kim et al. 2024, Tables 2, 6 and 8 for a space (or its `rows`), and its relative sd.

    `table`, `xavier`, `pretrained_xavier` (Eq. 1), `xavier_pretrained` (Eq. 4) and `positions` (5,000), the
    first three also as `..._scaled` by sqrt(D); `sd_over_xavier`, `scaled_sd_over_positions`.
    """
    table = embedding_statistics(space.matrix if rows is None else space.matrix[rows])
    n, d = table.num_embeddings, table.embedding_dim
    xavier, root = xavier_statistics(n, d), math.sqrt(d)
    if not table.std > 0:
        raise InvalidArgumentError(f"all values of {space.name} are the same: nothing to compare")
    moved = table.standardized(xavier.std)
    positions = position_encoding_statistics(5000, d)
    parts: dict[str, EmbeddingStatistics] = {
        "table": table,
        "table_scaled": table.scaled(root),
        "xavier": xavier,
        "xavier_scaled": xavier.scaled(root),
        "pretrained_xavier": moved,
        "pretrained_xavier_scaled": moved.scaled(root),
        "xavier_pretrained": xavier.standardized(table.std, table.mean),
        "positions": positions,
    }
    return {
        **{key: part.to_dict() for key, part in parts.items()},
        "sd_over_xavier": table.std / xavier.std,
        "scaled_sd_over_positions": table.std * root / positions.std,
    }


def advice(sd_over_xavier: float, scaled_sd_over_positions: float) -> str:
    """The initialiser to use for a table of that sd: `pretrained` or `pretrained_xavier`.

    `pretrained` where that is known to do no harm: between Xavier's sd (or what is as good as that) and
    `HARMLESS` times that of the positions that are added. Between `HARMLESS` and `HARMFUL`, and below
    Xavier's sd, nothing was measured, and `pretrained_xavier` is the safe choice.
    """
    harmless = sd_over_xavier >= _XAVIERS and scaled_sd_over_positions <= HARMLESS
    return "pretrained" if harmless else "pretrained_xavier"


def frequency(space: Space) -> dict[str, Any]:
    """What to plot the norms of a space against, and their Spearman correlation with the frequency.

    `by` is `counts` with a corpus; else `rows` for a list of words that look ordered by frequency, since
    later ones are longer (`row_length_correlation`); else None. The ids of a sub-word vocabulary are not
    ordered so: bytes and letters come first or last. `norm_correlation` is positive when frequent tokens have
    longer rows than rare ones.
    """
    norms = space.matrix.norm(dim=1)
    order = torch.arange(len(norms))
    texts = [canonical_form(token, space.family).bytes.decode("utf-8", "ignore") for token in space.tokens]
    words = torch.tensor([text.isalpha() for text in texts])
    lengths = torch.tensor([len(text) for text in texts])
    by_length = spearmanr(order[words], lengths[words]) if int(words.sum()) > 2 else 0.0
    by, tokens, correlation = None, 0, None
    if space.counts is not None and int((space.counts > 0).sum()) > 2:
        seen = space.counts > 0
        by, tokens, correlation = "counts", int(seen.sum()), spearmanr(space.counts[seen], norms[seen])
    elif space.counts is None and space.family == "words" and by_length >= _ORDERED:
        by, tokens, correlation = "rows", len(norms), spearmanr(-order, norms)
    return {
        "by": by,
        "tokens": tokens,
        "row_length_correlation": by_length,
        "norm_correlation": correlation,
    }


def chance_match(k: int, others: int) -> float:
    """Expected Jaccard index of two random sets of k of `others` tokens: by exact integers, which SciPy's
    `hypergeom` goes without."""
    total = math.comb(others, k)
    shared = range(max(0, 2 * k - others), k + 1)
    return sum(math.comb(k, m) * math.comb(others - k, k - m) / total * m / (2 * k - m) for m in shared)


def match_matrix(
    spaces: Sequence[Space], k: int, sample: int, generator: torch.Generator
) -> list[dict[str, Any]]:
    """KNN match similarity of each pair of spaces over their shared tokens, by inner product and by cosine.

    It is the mean over at most `sample` of the shared tokens, whose neighbors are sought among all shared
    ones. The values are None for a pair with too few shared tokens for k neighbors.
    """
    pairs = []
    for i, a in enumerate(spaces):
        for b in spaces[i + 1 :]:
            rows_a, rows_b = shared_rows(a, b)
            n = len(rows_a)
            pair: dict[str, Any] = {"a": a.name, "b": b.name, "shared_tokens": n, "k": k}
            pair.update(inner_product=None, cosine=None, chance=None)
            if n > k:
                tokens = torch.randperm(n, generator=generator)[:sample]
                x, y = a.matrix[rows_a], b.matrix[rows_b]
                for metric in _METRICS:
                    pair[metric] = knn_match_similarity(x, y, k, metric, tokens=tokens)
                pair["chance"] = chance_match(k, n - 1)
            pairs.append(pair)
    return pairs


def choose_words(spaces: Sequence[Space]) -> list[str]:
    """Eight words of four letters or more that most spaces have, evenly spread over the rows of the first."""
    having: Counter[str] = Counter()
    for space in spaces:
        forms = [canonical_form(token, space.family) for token in space.tokens]
        words = {
            f.bytes.decode()
            for f in forms
            if f.word_start and len(f.bytes) >= 4 and f.bytes.isalpha() and f.bytes.islower()
        }
        having.update(dict.fromkeys(sorted(words), 1))
    most = max(having.values(), default=0)
    common = [word for word in having if having[word] == most]
    rows = word_rows(common, spaces[0]).tolist()
    common = [word for _, word in sorted(zip(rows, common, strict=True))]
    step = max(1, len(common) / 8)
    return [common[int(i * step)] for i in range(min(8, len(common)))]


def word_rows(words: Sequence[str], space: Space) -> Tensor:
    """The row of each word in a space, -1 where it is no token: int64 `[W]`."""
    return align(list(words), "words", space.tokens, space.family)


def neighbors(spaces: Sequence[Space], words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Word -> space -> its 6 nearest tokens by cosine, nearest first; None where the word is no token."""
    by_word: dict[str, dict[str, Any]] = {word: {} for word in words}
    for space in spaces:
        rows = word_rows(words, space)
        known = rows[rows >= 0]
        near: dict[int, list[int]] = {}
        if len(known):
            count = min(6, len(space.tokens) - 1)
            nearest = nearest_neighbors(space.matrix, count, metric="cosine", tokens=known)
            near = dict(zip(known.tolist(), nearest.tolist(), strict=True))
        for word, row in zip(words, rows.tolist(), strict=True):
            by_word[word][space.name] = [space.tokens[i] for i in near[row]] if row >= 0 else None
    return by_word


def absorption_curves(
    space: Space, lengths: Sequence[int], rows: Tensor | None = None, *, k: int, sample: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """`absorption_curve` of the table (or its `rows`), unchanged and standardized to Xavier's moments."""
    matrix = space.matrix if rows is None else space.matrix[rows]
    curves: dict[str, list[dict[str, Any]]] = {"pretrained": [], "pretrained_xavier": []}
    with tqdm(total=2 * len(lengths), desc=space.name, unit="length", disable=None) as bar:
        for name, points in curves.items():  # one after the other: tables can be gigabytes
            table = matrix if name == "pretrained" else standardize(matrix, 0.0, xavier_std(*matrix.shape))
            generator = torch.Generator().manual_seed(seed)
            for length in lengths:
                (point,) = absorption_curve(table, [length], generator=generator, k=k, sample=sample)
                points.append(point.to_dict())
                bar.update()
    return curves


def table_4(
    space: Space, questions: Mapping[str, Sequence[Question]], rows: Tensor | None = None, *, seed: int
) -> dict[str, Any] | None:
    """Word analogies under the transformations of Kim et al. 2024, Table 4, for 64 and for 5,000 positions.

    Over all tokens or those of `rows`. Questions are asked in lower case if more of them have all their words
    in the vocabulary then. None when no question has.
    """
    tokens = space.tokens if rows is None else [space.tokens[i] for i in rows.tolist()]
    matrix = space.matrix if rows is None else space.matrix[rows]
    lower = {section: [_lower(q) for q in asked] for section, asked in questions.items()}
    as_spelled, in_lower_case = (AnalogyTask.for_tokens(asked, tokens) for asked in (questions, lower))
    lowercase = len(in_lower_case.rows) > len(as_spelled.rows)
    task = in_lower_case if lowercase else as_spelled
    if not len(task.rows):
        return None
    scores: dict[str, dict[str, dict[str, Any]]] = {}
    span = {}
    for num_positions in _TABLE_4_POSITIONS:
        span[str(num_positions)] = len(position_span(position_encoding(num_positions, matrix.shape[1])))
        generator = torch.Generator().manual_seed(seed)
        for name, table in table_4_transformations(matrix, num_positions, generator=generator):
            known = scores.setdefault(name, {})
            if known and "positions" not in name:  # the same table for any number of them
                known[str(num_positions)] = next(iter(known.values()))
                continue
            score = analogy_score(table, task)
            known[str(num_positions)] = {
                "correct": score.correct,
                "applicable": score.applicable,
                "accuracy": score.accuracy,
            }
    return {
        "words": len(tokens),
        "applicable": len(task.rows),
        "total": task.total,
        "lowercase": lowercase,
        "span_dimensions": span,
        "rows": scores,
    }


def _lower(question: Question) -> Question:
    a, b, c, d = question
    return a.lower(), b.lower(), c.lower(), d.lower()
