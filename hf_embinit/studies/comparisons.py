"""A study's numbers against the paper's: differences with intervals, verdicts, agreement of ranks."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import InvalidArgumentError
from .scores import Scores, mean
from .study import Study

DRAWS = 2_000
"""Draws for the interval of a rank agreement."""
VERDICTS = ("agrees", "disagrees", "cannot tell")
ENOUGH = 0.8
"""The power that is commonly asked of an experiment (Cohen 1988)."""
MANY = 100
"""More seeds than anybody will run."""


def t_interval(numbers: Sequence[float]) -> tuple[float, float] | None:
    """Student's 95% t interval of the mean of independent `numbers`; None for a single number."""
    if not numbers:
        raise InvalidArgumentError("no numbers to take an interval of")
    if len(numbers) == 1:
        return None
    from scipy import stats

    middle = statistics.fmean(numbers)
    error = statistics.stdev(numbers) / math.sqrt(len(numbers))
    half = float(stats.t.ppf(0.975, len(numbers) - 1)) * error
    return middle - half, middle + half


def power(effect: float, sd: float, n: int) -> float:
    """The chance that the 95% t interval of `n` normal numbers lies on the side of 0 of their mean `effect`.

    `sd` is their standard deviation. Raises `InvalidArgumentError` for fewer than two numbers.
    """
    if n < 2:
        raise InvalidArgumentError(f"power of {n} number(s): an interval takes two or more")
    if not sd:
        return float(effect != 0)
    from scipy import stats

    noncentrality = min(abs(effect) / sd * math.sqrt(n), 1000.0)  # a power of 1, where SciPy's gets NaN
    return float(stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, noncentrality))


def compared(study: Study, scores: Sequence[Scores]) -> Iterable[tuple[Scores, Scores]]:
    """Pairs of cells that the paper compares: in one box, and in one column (or row)."""
    return ((a, b) for a, b in itertools.combinations(scores, 2) if _comparable(study, a, b))


def _comparable(study: Study, a: Scores, b: Scores) -> bool:
    if study.file.compare == "rows":
        same, boxes = a.cell.column == b.cell.column, [study.rows[s.cell.row].box for s in (a, b)]
    else:
        same, boxes = a.cell.row == b.cell.row, [study.columns[s.cell.column].box for s in (a, b)]
    return same and boxes[0] == boxes[1]


@dataclass(frozen=True)
class Difference:
    """One value of one cell minus that of another, over the seeds that both have."""

    where: str
    pair: str
    value: str
    deltas: tuple[float, ...]
    digits: int
    paper: float | None
    """The paper's difference of means."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95% t interval; None with one seed."""
        return t_interval(self.deltas)

    @property
    def verdict(self) -> str:
        """`agrees` or `disagrees`, `cannot tell` when the interval holds 0, `""` without a paper's
        difference: no value, or one of 0."""
        if not self.paper:
            return ""
        interval = self.interval
        if interval is None or interval[0] <= 0 <= interval[1]:
            return "cannot tell"
        return "agrees" if (interval[0] > 0) == (self.paper > 0) else "disagrees"

    @property
    def power(self) -> float | None:
        """The chance that so many seeds tell a difference as large as the paper's, with the sd of these.

        None with one seed, without a paper's difference, and where all seeds have the same, which is no sd.
        """
        if not self.paper or len(set(self.deltas)) < 2:
            return None
        return power(self.paper, statistics.stdev(self.deltas), len(self.deltas))

    @property
    def seeds_needed(self) -> int | None:
        """The least number of seeds with a power of `ENOUGH`; None as for `power`, or above `MANY`."""
        if not self.paper or len(set(self.deltas)) < 2:
            return None
        sd = statistics.stdev(self.deltas)
        return next((n for n in range(2, MANY + 1) if power(self.paper, sd, n) >= ENOUGH), None)


def differences(study: Study, scores: Sequence[Scores]) -> list[Difference]:
    """The differences of the pairs that the paper compares, for values with a `better`: of all, or where a
    study says `against`, from that one and from the best.

    The same numbers chose the best, so with many rows the intervals of a few leave 0 out by chance.
    """
    pairs = []
    for a, b in compared(study, scores):
        rows = study.file.compare == "rows"
        names = [s.cell.row if rows else s.cell.column for s in (a, b)]
        for i, value in enumerate(a.cell.values):
            if value.better is None or not same_value(a, b, i):
                continue
            told = study.file.against is None or study.file.against in names
            if not (told or best(study, scores, a, i) or best(study, scores, b, i)):
                continue
            shared = sorted(a.by_seed[i].keys() & b.by_seed[i].keys())
            if not shared:
                continue
            where = (study.columns[a.cell.column] if rows else study.rows[a.cell.row]).title
            theirs = (a.cell.paper[i][0], b.cell.paper[i][0])
            pairs.append(
                Difference(
                    where,
                    f"{names[1]} - {names[0]}",
                    value.title,
                    tuple(b.by_seed[i][seed] - a.by_seed[i][seed] for seed in shared),
                    value.digits + 1,
                    None if None in theirs else theirs[1] - theirs[0],  # type: ignore[operator]
                )
            )
    return pairs


def rank_agreement(
    study: Study, scores: Sequence[Scores]
) -> tuple[float, int, tuple[float, float] | None] | None:
    """Kendall's tau-b between our means and the paper's, its number of pairs, and its 95% interval.

    Only cells that the paper compares make a pair, so it is 1 when every experiment orders its initialisers
    as the paper does, and -1 when each has the opposite order; SciPy's `kendalltau` would pair all cells. The
    interval is that of tau when each of our means is drawn from its t distribution over seeds; None when a
    cell has one seed. None without a pair.
    """
    pairs = []
    for a, b in compared(study, scores):
        for i, value in enumerate(a.cell.values):
            if not same_value(a, b, i):
                continue
            theirs = (a.cell.paper[i][0], b.cell.paper[i][0])
            if value.better is not None and None not in theirs and a.by_seed[i] and b.by_seed[i]:
                keys = (a.cell.column, a.cell.row, i), (b.cell.column, b.cell.row, i)
                pairs.append((*keys, _sign(theirs[1] - theirs[0])))  # type: ignore[operator]
    cells = {key for *both, _ in pairs for key in both}
    by_seed = {
        (s.cell.column, s.cell.row, i): list(n.values()) for s in scores for i, n in enumerate(s.by_seed)
    }
    tau = _tau({key: statistics.fmean(by_seed[key]) for key in cells}, pairs)
    if tau is None:
        return None
    if any(len(by_seed[key]) == 1 for key in cells):
        return tau, len(pairs), None
    rng = random.Random(0)
    draws = [
        found
        for _ in range(DRAWS)
        if (found := _tau({key: _t_draw(by_seed[key], rng) for key in sorted(cells)}, pairs)) is not None
    ]
    draws.sort()
    return tau, len(pairs), (draws[round(0.025 * (len(draws) - 1))], draws[round(0.975 * (len(draws) - 1))])


def _tau(means: dict, pairs: Sequence[tuple]) -> float | None:
    agree, ours_differ, theirs_differ = 0, 0, 0
    for a, b, paper in pairs:
        ours = _sign(means[b] - means[a])
        agree += ours * paper
        ours_differ, theirs_differ = ours_differ + ours * ours, theirs_differ + paper * paper
    if not ours_differ or not theirs_differ:
        return None
    return agree / math.sqrt(ours_differ * theirs_differ)


def _t_draw(numbers: Sequence[float], rng: random.Random) -> float:
    df = len(numbers) - 1
    error = statistics.stdev(numbers) / math.sqrt(len(numbers))
    return statistics.fmean(numbers) + error * rng.gauss(0, 1) / math.sqrt(rng.gammavariate(df / 2, 2 / df))


def _sign(x: float) -> int:
    return (x > 0) - (x < 0)


def same_value(a: Scores, b: Scores, i: int) -> bool:
    """Whether value `i` of two cells is the same, by its title and which way is better."""
    values = [s.cell.values[i : i + 1] for s in (a, b)]
    return [(v.title, v.better) for v in values[0]] == [(v.title, v.better) for v in values[1]]


def best(study: Study, scores: Sequence[Scores], of: Scores | None, i: int) -> bool:
    """Whether a cell has the best mean of its experiment, also over the seeds that each other one shares.

    A cell of which more seeds, or others, were run is no better for them: its paired difference may say so.
    """
    if of is None or of.cell.values[i].better is None or not of.by_seed[i]:
        return False
    compared_with = (p for p in scores if p is not of and _comparable(study, of, p))
    rivals = [p.by_seed[i] for p in compared_with if same_value(of, p, i) and p.by_seed[i]]
    sign, ours = -1 if of.cell.values[i].better == "lower" else 1, of.by_seed[i]
    for theirs in rivals:
        shared = ours.keys() & theirs.keys()
        if sign * mean(ours) <= sign * mean(theirs):
            return False
        if shared and sign * statistics.fmean(ours[k] - theirs[k] for k in sorted(shared)) <= 0:
            return False
    return bool(rivals)
