"""How often tokens of two vocabularies translate each other: IBM model 1 on parallel text, vectorised.

A *cell* is a pair of positions in one pair of sentences, one old token and one new; the cells of a pair lie
new position by new position. A *link* is a distinct pair of tokens. V_old, V_new tokens, C cells, L links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from tqdm.auto import tqdm

from ..arguments import Count, Wanted, checked
from ..errors import InvalidArgumentError

CHUNK_CELLS = 2**23
"""Cells that are worked on at a time: some 300 MB of numbers beside those that are kept."""
LONGEST = 128
"""Pairs with a longer sentence, in tokens, are left out: their cells grow with the square, their alignments
get worse."""

Symmetrization = Literal["agreement", "intersection", "forward"]
Iterations = Annotated[int, Wanted("a whole number from 1 to 1000", lambda n: 1 <= n <= 1000)]


@dataclass
class AlignmentCounts:
    """Expected number of times that tokens are aligned: the non-zero entries of a table `[V_new, V_old]`."""

    new_ids: np.ndarray
    """`[L]` int64, ascending; equal ones by `old_ids`."""
    old_ids: np.ndarray
    """`[L]` int64."""
    counts: np.ndarray
    """`[L]` float64."""
    pairs: int
    """Pairs of sentences that were counted."""
    left_out: int
    """Pairs with an empty sentence or one of more than `LONGEST` tokens."""
    log_likelihoods: dict[str, list[float]] = field(default_factory=dict)
    """For each direction the log-likelihood before each iteration, in nats a token; without its constants."""


@checked
def count_alignments(
    old: Sequence[Sequence[int]],
    new: Sequence[Sequence[int]],
    *,
    num_old: Count,
    num_new: Count,
    iterations: Iterations = 5,
    symmetrization: Symmetrization = "agreement",
    progress: bool = True,
) -> AlignmentCounts:
    """Expected alignment counts of the tokens in sentences `old[i]` and their translations `new[i]`.

    IBM model 1 with an empty word (Brown et al. 1993), each direction by `iterations` steps of EM from equal
    probabilities. The counts are sums over cells of: the product of both posteriors (`agreement`, Liang,
    Taskar & Klein 2006), 1 where both directions prefer the cell (`intersection`), or the posterior of the
    old token that a new one comes from (`forward`, as in Remy et al. 2024).

    Raises `InvalidArgumentError` for lists of unequal length, ids out of range and text without a pair.
    """
    corpus = _Corpus.read(old, new, num_old, num_new)
    blocks = list(corpus.blocks())
    steps = len(blocks) * (1 + (iterations + 1) * 2)
    with tqdm(total=steps, desc="aligning", unit="block", disable=not progress) as bar:
        links, of_cells = _index_links(corpus, blocks, bar)
        new_ids, old_ids = links // num_old, links % num_old
        forward = _Direction(new_ids, old_ids, num_new, num_old)
        backward = _Direction(old_ids, new_ids, num_old, num_new)
        for _ in range(iterations):
            for direction in (forward, backward):
                _iterate(direction, corpus, blocks, of_cells, forward is direction, bar)
        counts = _symmetrized(forward, backward, corpus, blocks, of_cells, symmetrization, bar)
    kept = counts > 0
    return AlignmentCounts(
        new_ids[kept],
        old_ids[kept],
        counts[kept],
        pairs=corpus.pairs,
        left_out=corpus.left_out,
        log_likelihoods={"forward": forward.log_likelihoods, "backward": backward.log_likelihoods},
    )


@dataclass
class _Block:
    """Consecutive pairs of sentences, and where their cells lie."""

    first: int
    last: int


@dataclass
class _Corpus:
    """Sentences end to end: tokens and where each sentence starts, `[pairs + 1]`."""

    old: np.ndarray
    old_starts: np.ndarray
    new: np.ndarray
    new_starts: np.ndarray
    num_old: int
    num_new: int
    left_out: int

    @classmethod
    def read(
        cls, old: Sequence[Sequence[int]], new: Sequence[Sequence[int]], num_old: int, num_new: int
    ) -> _Corpus:
        """The pairs whose sentences have 1 to `LONGEST` tokens."""
        if len(old) != len(new):
            raise InvalidArgumentError(
                f"old= has {len(old)} sentences and new= {len(new)}: they are no pairs"
            )
        kept = [i for i in range(len(old)) if 0 < len(old[i]) <= LONGEST and 0 < len(new[i]) <= LONGEST]
        if not kept:
            raise InvalidArgumentError(
                f"the parallel text has no pair of sentences of 1 to {LONGEST} tokens among its {len(old)}"
            )
        sides: list[np.ndarray] = []
        for name, sentences, size in (("old", old, num_old), ("new", new, num_new)):
            starts = np.zeros(len(kept) + 1, dtype=np.int64)
            np.cumsum([len(sentences[i]) for i in kept], out=starts[1:])
            tokens = np.fromiter((t for i in kept for t in sentences[i]), np.int64, int(starts[-1]))
            if tokens.min() < 0 or tokens.max() >= size:
                raise InvalidArgumentError(
                    f"{name}= has the ids {tokens.min()} to {tokens.max()}, the vocabulary 0 to {size - 1}"
                )
            sides += [tokens, starts]
        return cls(sides[0], sides[1], sides[2], sides[3], num_old, num_new, len(old) - len(kept))

    @property
    def pairs(self) -> int:
        """Pairs of sentences."""
        return len(self.old_starts) - 1

    def blocks(self) -> Iterator[_Block]:
        """Runs of pairs with up to `CHUNK_CELLS` cells each."""
        cells = np.cumsum(np.diff(self.old_starts) * np.diff(self.new_starts))
        first = 0
        while first < self.pairs:
            before = cells[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(cells, before + CHUNK_CELLS, side="right")))
            yield _Block(first, last)
            first = last

    def positions(self, block: _Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the block's new positions, where their cells start `[n]` and how many they are `[n]`; of each
        cell the old position, counted within the block `[C]`."""
        lengths = np.diff(self.old_starts[block.first : block.last + 1])
        width = np.repeat(lengths, np.diff(self.new_starts[block.first : block.last + 1]))
        starts = np.cumsum(width) - width
        before = self.old_starts[block.first : block.last] - self.old_starts[block.first]
        shift = np.repeat(before, np.diff(self.new_starts[block.first : block.last + 1])) - starts
        old_position = np.arange(int(width.sum())) + np.repeat(shift, width)
        return starts, width, old_position

    def tokens(self, block: _Block) -> tuple[np.ndarray, np.ndarray]:
        """The old and the new tokens of a block's positions."""
        old = self.old[self.old_starts[block.first] : self.old_starts[block.last]]
        return old, self.new[self.new_starts[block.first] : self.new_starts[block.last]]


def _index_links(corpus: _Corpus, blocks: list[_Block], bar: tqdm) -> tuple[np.ndarray, list[np.ndarray]]:
    """The links as `new * V_old + old`, ascending `[L]`, and for each block the link of each cell `[C]`."""
    inside: list[tuple[np.ndarray, np.ndarray]] = []
    for block in blocks:
        _, width, old_position = corpus.positions(block)
        old, new = corpus.tokens(block)
        keys = np.repeat(new, width) * corpus.num_old + old[old_position]
        # the cell rides in the low bits: sorting integers is several times as fast as argsort
        bits = max(1, int(len(keys) - 1).bit_length())
        if corpus.num_old * corpus.num_new < 2 ** (63 - bits):
            packed = keys << bits
            packed |= np.arange(len(keys))
            packed.sort()
            order, sorted_keys = packed & ((1 << bits) - 1), packed >> bits
        else:
            order = np.argsort(keys)
            sorted_keys = keys[order]
        is_first = np.append(True, sorted_keys[1:] != sorted_keys[:-1])
        local = np.empty(len(keys), dtype=np.int32)
        local[order] = np.cumsum(is_first) - 1
        inside.append((sorted_keys[is_first], local))
        bar.update()
    links = inside[0][0] if len(blocks) == 1 else np.unique(np.concatenate([keys for keys, _ in inside]))
    small = np.int32 if len(links) < 2**31 else np.int64
    return links, [np.searchsorted(links, keys).astype(small)[local] for keys, local in inside]


class _Direction:
    """Probabilities of tokens given the token that they come from, and of those that come from none."""

    def __init__(self, tokens: np.ndarray, givens: np.ndarray, num_tokens: int, num_givens: int) -> None:
        self.givens, self.num_tokens, self.num_givens = givens, num_tokens, num_givens
        self.probabilities = np.full(len(tokens), 1 / num_tokens, dtype=np.float32)
        self.empty = np.full(num_tokens, 1 / num_tokens)
        self.log_likelihoods: list[float] = []

    def update(self, counts: np.ndarray, empty_counts: np.ndarray) -> None:
        """The probabilities that fit expected counts of links `[L]` and of the empty word `[V]` best."""
        totals = np.bincount(self.givens, counts, minlength=self.num_givens)
        self.probabilities = (counts / np.maximum(totals, 1e-300)[self.givens]).astype(np.float32)
        self.empty = empty_counts / max(empty_counts.sum(), 1e-300)


def _posteriors(
    direction: _Direction, corpus: _Corpus, block: _Block, links: np.ndarray, forward: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each cell the share of the token's probability `[C]`; of each position the probability of the token,
    the share of the empty word, and the token, all `[n]`."""
    starts, width, old_position = corpus.positions(block)
    p = direction.probabilities[links]
    old, new = corpus.tokens(block)
    if forward:  # each new token from one of the old ones
        empty = direction.empty[new]
        total = np.add.reduceat(p, starts, dtype=np.float64) + empty
        with np.errstate(divide="ignore"):
            scale = np.where(total > 0, 1 / total, 0)
        p *= np.repeat(scale, width).astype(np.float32)
        return p, total / (width + 1), empty * scale, new
    empty = direction.empty[old]
    total = np.bincount(old_position, p, minlength=len(old)) + empty
    with np.errstate(divide="ignore"):
        scale = np.where(total > 0, 1 / total, 0)
    p *= scale.astype(np.float32)[old_position]
    new_lengths = np.diff(corpus.new_starts[block.first : block.last + 1])
    given = np.repeat(new_lengths, np.diff(corpus.old_starts[block.first : block.last + 1])) + 1
    return p, total / given, empty * scale, old


def _iterate(
    direction: _Direction,
    corpus: _Corpus,
    blocks: list[_Block],
    of_cells: list[np.ndarray],
    forward: bool,
    bar: tqdm,
) -> None:
    """One step of EM."""
    counts = np.zeros(len(direction.probabilities))
    empty_counts = np.zeros(direction.num_tokens)
    logs, positions = 0.0, 0
    for block, links in zip(blocks, of_cells, strict=True):
        shares, likelihood, empty, tokens = _posteriors(direction, corpus, block, links, forward)
        counts += np.bincount(links, shares, minlength=len(counts))
        empty_counts += np.bincount(tokens, empty, minlength=len(empty_counts))
        logs += float(np.log(np.maximum(likelihood, 1e-300)).sum())
        positions += len(tokens)
        bar.update()
    direction.log_likelihoods.append(logs / positions)
    direction.update(counts, empty_counts)


def _symmetrized(
    forward: _Direction,
    backward: _Direction,
    corpus: _Corpus,
    blocks: list[_Block],
    of_cells: list[np.ndarray],
    how: Symmetrization,
    bar: tqdm,
) -> np.ndarray:
    """The counts of links `[L]` after the last step."""
    counts = np.zeros(len(forward.probabilities))
    for block, links in zip(blocks, of_cells, strict=True):
        from_old, _, from_none, _ = _posteriors(forward, corpus, block, links, True)
        bar.update()
        if how == "forward":
            counts += np.bincount(links, from_old, minlength=len(counts))
            bar.update()
            continue
        from_new, _, none_from, _ = _posteriors(backward, corpus, block, links, False)
        if how == "agreement":
            from_old *= from_new
        else:
            starts, width, old_position = corpus.positions(block)
            best = np.maximum(np.maximum.reduceat(from_old, starts), from_none)
            best_back = none_from.copy()
            np.maximum.at(best_back, old_position, from_new)
            agreed = (from_old >= np.repeat(best, width)) & (from_new >= best_back[old_position])
            from_old = agreed.astype(np.float32)
        counts += np.bincount(links, from_old, minlength=len(counts))
        bar.update()
    return counts
