"""What a report on embedding spaces is made of: reading them, counting tokens, comparing and judging them.

Every table `[N, D]` is judged as the input of a transformer that reads `sqrt(D) * embedding + position` with
sinusoidal positions (Kim et al. 2024, Eq. 3), whatever the model that it comes from does.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from ..measures.absorption import absorption_curve, position_span, table_4_transformations
from ..measures.analogies import AnalogyTask, Question, analogy_score
from ..measures.knn import Metric, knn_match_similarity, nearest_neighbors
from ..measures.statistics import (
    EmbeddingStatistics,
    check_table,
    embedding_statistics,
    position_encoding,
    position_encoding_statistics,
    xavier_statistics,
)
from ..moments import standardize, xavier_std
from ..tasks.data import DATA_VARIABLE
from ..tokens import TokenFamily, align, canonical_form
from ..vectors import load_vectors, read_embedding_table

_RESERVED = re.compile(r"[\[<]unused_?\d+[\]>]")
_POSITION_TABLES = ("*position_embeddings.weight", "*wpe.weight", "*embed_positions.weight")
_TABLE_4_POSITIONS = (64, 5000)

HARMLESS = 2.0
"""Widest a table was, scaled by sqrt(D) and in sd of the positions, that did no harm as it is (Kim et al.
2024, Tables 1 and 2): mBERT's in translation. It was 3.0 and 4.4 times as wide as Xavier's."""
HARMFUL = 8.2
"""From here on tables did harm as they are: GloVe's for IWSLT2017 (the same tables). The narrowest in sd of
Xavier's was GloVe's for Multi30k, with 23 times."""
_METRICS: tuple[Metric, ...] = ("inner_product", "cosine")
_ORDERED = 0.2  # Spearman's correlation of a token's row and its length: frequent words are short (Zipf)


@dataclass
class Space:
    """One embedding table with a token a row; special, reserved, empty and zero rows are left out."""

    name: str
    source: str
    """As it was given: a file, a folder or a Hub id."""
    path: str
    """Where it was found."""
    family: TokenFamily
    tokens: list[str]
    matrix: Tensor
    """`[N, D]` float32."""
    rows_read: int
    left_out: dict[str, int] = field(default_factory=dict)
    """Why -> how many rows."""
    own_positions_std: float | None = None
    """Standard deviation of the checkpoint's own learned positions; None when it has no table of them."""
    counts: Tensor | None = None
    """`[N]`: how often each token occurs in the corpus; None without one."""


def find_source(source: str) -> str:
    """`source` when it exists here, else its place in the folder of `HF_EMBINIT_DATA`, else unchanged."""
    folder = os.environ.get(DATA_VARIABLE)
    if not Path(source).exists() and folder and (Path(folder) / source).exists():
        return str(Path(folder) / source)
    return source


def load_space(
    source: str, name: str | None = None, *, table: str | None = None, allow_pickle: bool = False
) -> Space:
    """The `Space` of a file of vectors, a checkpoint's folder, or a Hub id; no model is built.

    Raises what `load_vectors` raises, and `InvalidArgumentError` for NaN or infinite values, for a table
    whose rows are all zero or all the same, and when fewer than two rows are left.
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
    left_out["NaN or infinite"] = len(vectors.report.get("non_finite", ()))
    matrix = vectors.matrix[keep]
    if len(matrix) < 2 or bool((matrix == matrix[0]).all()):
        state = "of which at least two must be left" if len(matrix) < 2 else "which are all the same"
        raise InvalidArgumentError(
            f"{name} has {len(matrix)} rows that are neither special nor zero, {state}: nothing to compare"
        )
    own = _own_positions(path, allow_pickle) if "table" in vectors.report else None
    return Space(
        name=name,
        source=source,
        path=path,
        family=vectors.family,
        tokens=[token for token, kept in zip(vectors.tokens, keep.tolist(), strict=True) if kept],
        matrix=matrix,
        rows_read=len(vectors) + left_out["NaN or infinite"],
        left_out={reason: count for reason, count in left_out.items() if count},
        own_positions_std=None if own is None else float(own.std()),
    )


def _own_positions(path: str, allow_pickle: bool) -> Tensor | None:
    for pattern in _POSITION_TABLES:
        try:
            return read_embedding_table(path, table=pattern, allow_pickle=allow_pickle).matrix
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
    """A `Space` each, named by `names` or by their files and folders; equal names are told apart by a number.

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


def check_settings(spaces: Sequence[Space], *, k: int, sample: int, lengths: Sequence[int]) -> None:
    """Raises `InvalidArgumentError` for settings that cannot work with these spaces, before any work."""
    for space in spaces:
        if not 1 <= k < len(space.tokens):
            raise InvalidArgumentError(
                f"--k {k}: each of the {len(space.tokens)} rows of {space.name} has {len(space.tokens) - 1} "
                "others; choose a number between 1 and that"
            )
    if sample < 1:
        raise InvalidArgumentError(f"--sample {sample}: give at least 1 token")
    if not lengths or min(lengths) < 2:
        raise InvalidArgumentError(
            f"--lengths {' '.join(map(str, lengths))}: give lengths of 2 positions or more"
        )


def rows_in_corpus(space: Space, min_count: int, k: int) -> Tensor | None:
    """Rows of the tokens seen `min_count` times or more in the corpus; None without one, or of k at most."""
    if space.counts is None:
        return None
    rows = (space.counts >= min_count).nonzero().flatten()
    return rows if len(rows) > k else None


def norms(space: Space) -> tuple[Tensor, Tensor | None]:
    """Norms of the rows and counts of their tokens, of those seen in the corpus; without one, of all rows."""
    values = space.matrix.norm(dim=1)
    if space.counts is None:
        return values, None
    seen = space.counts > 0
    return values[seen], space.counts[seen]


def count_tokens(spaces: Sequence[Space], texts: Sequence[str], language: str) -> None:
    """Sets `counts` of each space: words by spaCy's rules, lower-cased; a checkpoint's by its tokenizer."""
    words: Counter[str] | None = None
    for space in spaces:
        if space.family == "words":
            if words is None:
                words = _count_words(texts, language)
            found = [words.get(token, 0) for token in space.tokens]
        else:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(space.path)
            ids: Counter[int] = Counter()
            for start in range(0, len(texts), 1000):
                batch = list(texts[start : start + 1000])
                for row in tokenizer(batch, add_special_tokens=False)["input_ids"]:
                    ids.update(row)
            vocabulary = tokenizer.get_vocab()
            found = [ids.get(vocabulary.get(token, -1), 0) for token in space.tokens]
        space.counts = torch.tensor(found, dtype=torch.long)


def _count_words(texts: Sequence[str], language: str) -> Counter[str]:
    import spacy

    counts: Counter[str] = Counter()
    tokenize: Any = spacy.blank(language).tokenizer
    for doc in tokenize.pipe(texts):
        counts.update(word.text.lower() for word in doc if not word.is_space)
    return counts


def statistics(space: Space, rows: Tensor | None = None) -> dict[str, Any]:
    """The values of Kim et al. 2024, Tables 2, 6 and 8 for a space (or its `rows`), and how wide it is.

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
    """The initialiser to use for a table of that width: `pretrained` or `pretrained_xavier`.

    The rows as they are where that is known to do no harm: up to `HARMLESS` times as wide as the positions
    that are added to them. Between that and `HARMFUL` nothing was measured, and `pretrained_xavier` is the
    safe side; as it is for a table narrower than Xavier's.
    """
    harmless = sd_over_xavier >= 1 and scaled_sd_over_positions <= HARMLESS
    return "pretrained" if harmless else "pretrained_xavier"


def frequency(space: Space) -> dict[str, Any]:
    """What the norms of a space can be drawn against, and their Spearman correlation with the frequency.

    `by`: `counts` of the corpus; else `rows` for a list of words that look ordered by frequency, since later
    ones are longer (`row_length_correlation`); else None. The ids of a sub-word vocabulary are in no such
    order: bytes and letters come first or last. A positive `norm_correlation` says that frequent tokens have
    longer rows.
    """
    norms = space.matrix.norm(dim=1)
    order = torch.arange(len(norms))
    texts = [canonical_form(token, space.family).bytes.decode("utf-8", "ignore") for token in space.tokens]
    words = torch.tensor([text.isalpha() for text in texts])
    lengths = torch.tensor([len(text) for text in texts])
    looks = spearman(order[words], lengths[words]) if int(words.sum()) > 2 else 0.0
    by, seen = None, torch.ones(len(norms), dtype=torch.bool)
    if space.counts is not None and int((space.counts > 0).sum()) > 2:
        by, seen = "counts", space.counts > 0
        correlation = spearman(space.counts[seen], norms[seen])
    elif space.counts is None and space.family == "words" and looks >= _ORDERED:
        by, correlation = "rows", spearman(-order, norms)
    else:
        correlation = None
    return {
        "by": by,
        "tokens": int(seen.sum()) if by else 0,
        "row_length_correlation": looks,
        "norm_correlation": correlation,
    }


def spearman(x: Tensor, y: Tensor) -> float:
    """Spearman's rank correlation of two vectors, equal values sharing their mean rank; 0 of a constant."""

    def ranks(values: Tensor) -> Tensor:
        _, inverse, counts = values.double().unique(return_inverse=True, return_counts=True)
        last = counts.cumsum(0).double()
        mean = (last - (counts - 1) / 2)[inverse]
        return mean - mean.mean()

    a, b = ranks(x), ranks(y)
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale else 0.0


def shared_rows(a: Space, b: Space) -> tuple[Tensor, Tensor]:
    """Rows of `a` and of `b`, `[S]` each, that stand for the same token; each row at most once."""
    found = align(a.tokens, a.family, b.tokens, b.family)
    first: dict[int, int] = {}
    for row, other in enumerate(found.tolist()):
        if other >= 0:
            first.setdefault(other, row)
    return torch.tensor(list(first.values()), dtype=torch.long), torch.tensor(list(first), dtype=torch.long)


def chance_match(k: int, others: int) -> float:
    """Expected Jaccard index of two random sets of k of `others` tokens."""
    total = math.comb(others, k)
    shared = range(max(0, 2 * k - others), k + 1)
    return sum(math.comb(k, m) * math.comb(others - k, k - m) / total * m / (2 * k - m) for m in shared)


def match_matrix(
    spaces: Sequence[Space], k: int, sample: int, generator: torch.Generator
) -> list[dict[str, Any]]:
    """KNN match similarity of each pair of spaces over their shared tokens, by inner product and by cosine.

    Averaged over at most `sample` of the shared tokens, whose neighbors are sought among all shared ones. The
    values are None for a pair that shares too few tokens to have k neighbors each.
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


def choose_words(spaces: Sequence[Space], count: int = 8) -> list[str]:
    """Words of four letters or more that most spaces have, spread over the rows of the first."""
    having: Counter[str] = Counter()
    for space in spaces:
        found = set()
        for token in space.tokens:
            form = canonical_form(token, space.family)
            if form.word_start and len(form.bytes) >= 4 and form.bytes.isalpha() and form.bytes.islower():
                found.add(form.bytes.decode())
        having.update(dict.fromkeys(sorted(found), 1))
    most = max(having.values(), default=0)
    words = [word for word in having if having[word] == most]
    rows = word_rows(words, spaces[0]).tolist()
    words = [word for _, word in sorted(zip(rows, words, strict=True))]
    step = max(1, len(words) / count)
    return [words[int(i * step)] for i in range(min(count, len(words)))]


def word_rows(words: Sequence[str], space: Space) -> Tensor:
    """The row of each word in a space, -1 where it is no token: int64 `[W]`."""
    return align(list(words), "words", space.tokens, space.family)


def neighbors(spaces: Sequence[Space], words: Sequence[str], k: int = 6) -> dict[str, dict[str, Any]]:
    """Word -> space -> its k nearest tokens by cosine, nearest first; None where the word is no token."""
    found: dict[str, dict[str, Any]] = {word: {} for word in words}
    for space in spaces:
        rows = word_rows(words, space)
        there = rows >= 0
        near = (
            nearest_neighbors(
                space.matrix, min(k, len(space.tokens) - 1), metric="cosine", tokens=rows[there]
            )
            if bool(there.any())
            else torch.empty(0, k, dtype=torch.long)
        )
        lists = iter(near.tolist())
        for word, inside in zip(words, there.tolist(), strict=True):
            found[word][space.name] = [space.tokens[i] for i in next(lists)] if inside else None
    return found


def absorption_curves(
    space: Space, lengths: Sequence[int], rows: Tensor | None = None, *, k: int, sample: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """`absorption_curve` of the table (or its `rows`) as it is, and standardized to Xavier's moments."""
    matrix = space.matrix if rows is None else space.matrix[rows]
    tables = {
        "pretrained": matrix,
        "pretrained_xavier": standardize(matrix, 0.0, xavier_std(*matrix.shape)),
    }
    return {
        name: [
            point.to_dict()
            for point in absorption_curve(
                table, lengths, generator=torch.Generator().manual_seed(seed), k=k, sample=sample
            )
        ]
        for name, table in tables.items()
    }


def table_4(
    space: Space, questions: Mapping[str, Sequence[Question]], rows: Tensor | None = None, *, seed: int
) -> dict[str, Any] | None:
    """Word analogies under the transformations of Kim et al. 2024, Table 4, for 64 and for 5,000 positions.

    Over all tokens or those of `rows`; questions in lower case where more of them apply then. None when no
    question applies.
    """
    tokens = space.tokens if rows is None else [space.tokens[i] for i in rows.tolist()]
    matrix = space.matrix if rows is None else space.matrix[rows]
    tasks = {}
    for lowercase in (False, True):
        asked = {
            name: [tuple(w.lower() for w in q) if lowercase else q for q in section]
            for name, section in questions.items()
        }
        tasks[lowercase] = AnalogyTask.for_tokens(asked, tokens)  # type: ignore[arg-type]
    lowercase = len(tasks[True].rows) > len(tasks[False].rows)
    task = tasks[lowercase]
    if not len(task.rows):
        return None
    scores: dict[str, dict[str, dict[str, Any]]] = {}
    span = {}
    for num_positions in _TABLE_4_POSITIONS:
        span[str(num_positions)] = len(position_span(position_encoding(num_positions, matrix.shape[1])))
        generator = torch.Generator().manual_seed(seed)
        for name, table in table_4_transformations(matrix, num_positions, generator=generator):
            score = analogy_score(table, task)
            scores.setdefault(name, {})[str(num_positions)] = {
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
