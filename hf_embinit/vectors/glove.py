"""GloVe vectors trained on one's own sentences (Pennington, Socher & Manning 2014), on CPU or GPU.

The loss is a weighted least squares over the non-zero co-occurrences X of word i and context j,

    J = sum_ij f(X_ij) (w_i . c_j + b_i + d_j - log X_ij)^2,    f(x) = min((x / x_max) ** alpha, 1)

Shapes: V words, P non-zero pairs, D width, B pairs a batch. A batch is a sparse V x V matrix with B entries:
predictions are a sampled matrix product, the two gradients two sparse-dense products. The biases are two more
columns of the tables, `[w, b, 1]` and `[c, 1, d]`.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from ..arguments import Count, Positive, Seed, Wanted, checked, refuse_half_characters, shown
from ..errors import InvalidArgumentError
from .pretrained_vectors import PretrainedVectors, rows_digest

logger = logging.getLogger(__name__)


def _is_device(value: str | torch.device) -> bool:
    try:
        torch.empty(0, device=value)
    except (RuntimeError, AssertionError):  # the second: torch without that kind of device
        return False
    return True


Device = Annotated[str | torch.device, Wanted("a device that this torch has, such as 'cpu'", _is_device)]

CHUNK_PAIRS = 20_000_000
"""Windowed pairs that are counted at a time: 160 MB of keys, twice that while they are sorted."""

MIN_BATCHES = 16
"""Smallest number of batches in an epoch: with 2 or 3 the summed gradients of a small corpus overshoot, and
the loss after 6 epochs is a fifth above that of the authors' pair-by-pair descent; with 9 it is within 2%."""


@dataclass
class Cooccurrences:
    """The non-zero entries of a co-occurrence matrix, sorted by row, then column."""

    words: list[str]
    """The V words, the most frequent first; equally frequent ones in alphabetical order."""
    rows: np.ndarray
    """`[P]` int32, the word."""
    columns: np.ndarray
    """`[P]` int32, the context."""
    counts: np.ndarray
    """`[P]` float32, the weighted number of times that the context occurred in the word's window."""
    num_tokens: int
    """Tokens in the corpus, rare words included."""
    num_sentences: int
    digest: str
    """`sha256:...` of the corpus: its tokens joined by spaces, a line for each sentence."""

    def __len__(self) -> int:
        return len(self.counts)


@checked
def count_cooccurrences(
    sentences: Iterable[Sequence[str]],
    *,
    window: Count = 10,
    min_count: Count = 2,
    symmetric: bool = True,
    distance_weighting: bool = True,
) -> Cooccurrences:
    """The co-occurrence counts, within sentences, of the words seen at least `min_count` times.

    Rarer words are removed before windows are formed, as in the authors' program. A pair `d` words apart
    counts 1/d, or 1 without `distance_weighting`. The contexts of a word are the `window` words on either
    side of it, or only those on its left when not `symmetric`. Raises `InvalidArgumentError` when no words or
    pairs are left.
    """
    ids_of: dict[str, int] = {}
    tokens: list[int] = []
    lengths: list[int] = []
    digest = hashlib.sha256()
    for sentence in sentences:
        if isinstance(sentence, str):
            raise InvalidArgumentError(
                f"sentences holds the string {sentence[:40]!r}; give a list of words for each sentence"
            )
        if not isinstance(sentence, Collection) or not all(isinstance(word, str) for word in sentence):
            raise InvalidArgumentError(
                f"sentences has {shown(sentence)}; give a list of words for each sentence"
            )
        digest.update(_line(sentence))
        tokens += [ids_of.setdefault(word, len(ids_of)) for word in sentence]
        lengths.append(len(sentence))
    stream = np.asarray(tokens, dtype=np.int64)
    frequency = np.bincount(stream, minlength=len(ids_of))
    spelled = list(ids_of)
    kept = sorted(
        (i for i in range(len(spelled)) if frequency[i] >= min_count),
        key=lambda i: (-frequency[i], spelled[i]),
    )
    if not tokens:
        raise InvalidArgumentError("the sentences have no words: give text with some")
    if not kept:
        raise InvalidArgumentError(
            f"min_count={min_count}: no word is so frequent among the {len(tokens)} of the corpus; lower it"
        )
    new_id = np.full(len(spelled), -1, dtype=np.int64)
    new_id[kept] = np.arange(len(kept))
    sentence_of = np.repeat(np.arange(len(lengths)), lengths)
    stream = new_id[stream]
    sentence_of, stream = sentence_of[stream >= 0], stream[stream >= 0]

    v = len(kept)
    step = max(CHUNK_PAIRS // window, 1)
    keys, counts = np.empty(0, dtype=np.int64), np.empty(0)
    for start in range(0, len(stream), step):
        part = [np.empty(0, dtype=np.int64)]
        for d in range(1, window + 1):
            right = slice(max(start, d), min(start + step, len(stream)))
            left = slice(right.start - d, max(right.stop - d, right.start - d))
            same = sentence_of[left] == sentence_of[right]
            # the distance rides in the key's last digit: sorting integers is faster than argsort
            part.append(((stream[right] * v + stream[left]) * (window + 1) + d)[same])
        coded = np.concatenate(part)
        coded.sort()
        weights = 1.0 / (coded % (window + 1)) if distance_weighting else np.ones(len(coded))
        keys, counts = _add_equal(np.append(keys, coded // (window + 1)), np.append(counts, weights))
    if symmetric:
        keys, counts = _add_equal(np.append(keys, keys % v * v + keys // v), np.append(counts, counts))
    if not len(keys):
        raise InvalidArgumentError(
            f"no two words of the corpus ({len(stream)} tokens) stand in one sentence; give longer sentences"
        )
    return Cooccurrences(
        words=[spelled[i] for i in kept],
        rows=(keys // v).astype(np.int32),
        columns=(keys % v).astype(np.int32),
        counts=counts.astype(np.float32),
        num_tokens=len(tokens),
        num_sentences=len(lengths),
        digest=f"sha256:{digest.hexdigest()}",
    )


def _line(sentence: Iterable[str]) -> bytes:
    try:
        return (" ".join(sentence) + "\n").encode()
    except UnicodeEncodeError:
        refuse_half_characters(sentence, "sentences")
        raise


def _add_equal(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct `keys`, sorted, with the sum of the `values` of each."""
    if not len(keys):
        return keys, values
    order = np.argsort(keys, kind="stable")  # merges runs that are sorted already
    keys, values = keys[order], values[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return keys[first], np.add.reduceat(values, first)


@checked
def train_glove(
    sentences: Iterable[Sequence[str]],
    *,
    dim: Count = 300,
    window: Count = 10,
    min_count: Count = 2,
    x_max: Positive = 100.0,
    alpha: Positive = 0.75,
    epochs: Count = 25,
    learning_rate: Positive = 0.05,
    seed: Seed = 0,
    symmetric: bool = True,
    distance_weighting: bool = True,
    batch_size: Count = 100_000,
    device: Device = "cpu",
    progress: bool = True,
    name: str = "glove",
) -> PretrainedVectors:
    """GloVe vectors of the words in `sentences` (lists of words), word plus context, most frequent first.

    Defaults are those of Pennington et al. 2014, but for a small corpus's `min_count`. `window` is in words,
    `x_max` in co-occurrences, `batch_size` in pairs. The same seed gives the same vectors on one machine with
    one number of threads; else they differ by rounding, and so does their digest: `computed_with` of their
    provenance says on what they were made. Raises `InvalidArgumentError` for settings out of range and for a
    corpus without pairs.
    """
    cooccurrences = count_cooccurrences(
        sentences,
        window=window,
        min_count=min_count,
        symmetric=symmetric,
        distance_weighting=distance_weighting,
    )
    vectors = fit_glove(
        cooccurrences,
        dim=dim,
        x_max=x_max,
        alpha=alpha,
        epochs=epochs,
        learning_rate=learning_rate,
        seed=seed,
        batch_size=batch_size,
        device=device,
        progress=progress,
        name=name,
    )
    vectors.report["settings"] |= {
        "window": window,
        "min_count": min_count,
        "symmetric": symmetric,
        "distance_weighting": distance_weighting,
    }
    return vectors


@checked
def fit_glove(
    cooccurrences: Cooccurrences,
    *,
    dim: Count = 300,
    x_max: Positive = 100.0,
    alpha: Positive = 0.75,
    epochs: Count = 25,
    learning_rate: Positive = 0.05,
    seed: Seed = 0,
    batch_size: Count = 100_000,
    device: Device = "cpu",
    progress: bool = True,
    name: str = "glove",
) -> PretrainedVectors:
    """GloVe vectors from counts: the second half of `train_glove`, with the same settings.

    Mini-batch AdaGrad: pairs are assigned at random to batches of at most `batch_size`, at least
    `MIN_BATCHES` of them, whose order is shuffled each epoch. As in the authors' program, vectors start
    uniform within +-0.5/(D+1), and the sums of squared steps (learning rate times gradient) start at 1.
    """
    generator = torch.Generator().manual_seed(seed)
    v = len(cooccurrences.words)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
        words, contexts = _initial_tables(v, dim, generator, device)
        word_squares, context_squares = torch.ones_like(words), torch.ones_like(contexts)
        batches = _make_batches(cooccurrences, x_max, alpha, batch_size, generator, device)
        losses: list[float] = []
        bar = tqdm(total=epochs * len(batches), desc=name, unit="batch", disable=not progress)
        for epoch in range(epochs):
            total = torch.zeros((), dtype=torch.float64, device=device)
            for k in torch.randperm(len(batches), generator=generator).tolist():
                batch = batches[k]
                word, context = words.index_select(0, batch.words), contexts.index_select(0, batch.contexts)
                loss, word_grad, context_grad = _loss_and_gradients(word, context, batch)
                total += loss
                _adagrad_step(words, word_squares, batch.words, word, word_grad, learning_rate)
                _adagrad_step(contexts, context_squares, batch.contexts, context, context_grad, learning_rate)
                bar.update()
            losses.append(total.item() / len(cooccurrences))
            bar.set_postfix(epoch=f"{epoch + 1}/{epochs}", loss=f"{losses[-1]:.4f}")
        bar.close()
    matrix = (words + contexts)[:, :dim].cpu().contiguous()
    logger.info("%s: %d words x %d, %d pairs, loss %.4f", name, v, dim, len(cooccurrences), losses[-1])
    provenance = {
        "corpus_digest": cooccurrences.digest,
        "corpus_sentences": cooccurrences.num_sentences,
        "corpus_tokens": cooccurrences.num_tokens,
        "pairs": len(cooccurrences),
        "final_loss": losses[-1],
        "settings": {
            "dim": dim,
            "x_max": x_max,
            "alpha": alpha,
            "epochs": epochs,
            "learning_rate": learning_rate,
            "seed": seed,
            "batch_size": batch_size,
        },
        "computed_with": {
            "device": str(device),
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        },
    }
    return PretrainedVectors(
        tokens=list(cooccurrences.words),
        matrix=matrix,
        name=name,
        family="words",
        digest=rows_digest(cooccurrences.words, matrix),
        report={**provenance, "losses": losses},
        provenance={"method": "GloVe", **provenance},
    )


def _initial_tables(
    v: int, dim: int, generator: torch.Generator, device: str | torch.device
) -> tuple[Tensor, Tensor]:
    """The tables `[w, b, 1]` and `[c, 1, d]`, both `[V, D + 2]`."""
    drawn = (torch.rand(v, dim + 1, dtype=torch.float32, generator=generator) for _ in range(2))
    words, contexts = ((table - 0.5) / (dim + 1) for table in drawn)
    one = torch.ones(v, 1, dtype=torch.float32)
    words = torch.cat([words, one], dim=1)
    contexts = torch.cat([contexts[:, :dim], one, contexts[:, dim:]], dim=1)
    return words.to(device), contexts.to(device)


@dataclass
class _Batch:
    """B pairs as a sparse matrix over the words and contexts that occur in them, and its transpose."""

    words: Tensor
    """`[n]` int64, rows of the word table."""
    contexts: Tensor
    """`[m]` int64, rows of the context table."""
    row_starts: Tensor
    """`[n + 1]` int32: where each word's pairs start."""
    columns: Tensor
    """`[B]` int32: the index in `contexts` of each pair's context."""
    transposed_starts: Tensor
    """`[m + 1]` int32: where each context's pairs start, once they are sorted by context."""
    transposed_columns: Tensor
    """`[B]` int32: the index in `words` of each pair's word, sorted by context."""
    transposition: Tensor
    """`[B]` int32: the pairs sorted by context."""
    log_counts: Tensor
    """`[B]` log X."""
    weights: Tensor
    """`[B]` f(X)."""

    def matrix(self, values: Tensor) -> Tensor:
        """The sparse `[n, m]` matrix of `[B]` values, one a pair."""
        size = (len(self.words), len(self.contexts))
        return torch.sparse_csr_tensor(self.row_starts, self.columns, values, size, check_invariants=False)

    def transposed_matrix(self, values: Tensor) -> Tensor:
        """The sparse `[m, n]` transpose of `matrix(values)`."""
        size = (len(self.contexts), len(self.words))
        values = values.index_select(0, self.transposition)
        return torch.sparse_csr_tensor(
            self.transposed_starts, self.transposed_columns, values, size, check_invariants=False
        )


def _make_batches(
    cooccurrences: Cooccurrences,
    x_max: float,
    alpha: float,
    batch_size: int,
    generator: torch.Generator,
    device: str | torch.device,
) -> list[_Batch]:
    """The pairs, each in a random batch; sizes differ by one at the most."""
    p = len(cooccurrences)
    num_batches = min(max(-(-p // batch_size), MIN_BATCHES), p)
    rows, columns = torch.from_numpy(cooccurrences.rows), torch.from_numpy(cooccurrences.columns)
    counts = torch.from_numpy(cooccurrences.counts)
    batch_of = torch.randperm(p, generator=generator).remainder_(num_batches)
    order = torch.argsort(batch_of, stable=True)  # pairs stay sorted by word and context within a batch
    batches = []
    for pairs in order.tensor_split(num_batches):
        words, row = torch.unique_consecutive(rows[pairs], return_inverse=True)
        contexts, column = torch.unique(columns[pairs], return_inverse=True)
        transposition = torch.argsort(column, stable=True)
        batch = _Batch(
            words=words.long(),
            contexts=contexts.long(),
            row_starts=_starts(row, len(words)),
            columns=column.int(),
            transposed_starts=_starts(column, len(contexts)),
            transposed_columns=row[transposition].int(),
            transposition=transposition.int(),
            log_counts=counts[pairs].log(),
            weights=(counts[pairs] / x_max).pow(alpha).clamp(max=1.0),
        )
        batches.append(_Batch(**{name: tensor.to(device) for name, tensor in vars(batch).items()}))
    return batches


def _starts(sorted_or_not: Tensor, n: int) -> Tensor:
    """`[n + 1]` int32: how many of the indices are below each of 0..n."""
    starts = torch.zeros(n + 1, dtype=torch.int32)
    torch.cumsum(torch.bincount(sorted_or_not, minlength=n), 0, out=starts[1:])
    return starts


def _loss_and_gradients(word: Tensor, context: Tensor, batch: _Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Half the weighted squared error of a batch, and its gradients `[n, D + 2]` and `[m, D + 2]`."""
    residual = torch.sparse.sampled_addmm(batch.matrix(-batch.log_counts), word, context.t()).values()
    weighted = batch.weights * residual
    word_grad = batch.matrix(weighted) @ context
    context_grad = batch.transposed_matrix(weighted) @ word
    word_grad[:, -1] = 0.0  # the columns of ones are no parameters
    context_grad[:, -2] = 0.0
    return 0.5 * (weighted @ residual), word_grad, context_grad


def _adagrad_step(
    table: Tensor, squares: Tensor, rows: Tensor, values: Tensor, grad: Tensor, lr: float
) -> None:
    """One AdaGrad step on the `rows` of a table; their present `values` and `grad` are overwritten."""
    step = grad.mul_(lr)
    gathered = squares.index_select(0, rows).addcmul_(step, step)  # 4 times as fast as squares[rows]
    squares.index_copy_(0, rows, gathered)
    table.index_copy_(0, rows, values.addcdiv_(step, gathered.sqrt_(), value=-1.0))
