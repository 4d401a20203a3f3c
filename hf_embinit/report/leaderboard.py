"""The leaderboard of the site: initialisers by setting, what can be told of them, and how each was made."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UnknownNameError
from ..initializers import PURPOSES
from ..records import NO_EFFECT, Experiment, RunRecord, Setting, public_record
from ..retokenize import get_initializer
from ..studies import t_interval
from ..tasks import Score, task_of

Verdict = Literal["ahead", "level", "behind", "unknown"]
VERDICTS: dict[Verdict, str] = {
    "ahead": "told apart from all others",
    "level": "first, or not told from the first",
    "behind": "told apart from the first, which the same runs chose: of many rows a few are so by chance",
    "unknown": "one seed, or nothing to compare",
}
"""What is said of a row: by the 95% t intervals of paired differences over the seeds that two rows share.

The first is chosen by the same runs, so of many equal rows more are called behind than the level says.
"""
_APART = "a trained model, taken apart"
_HELD_OUT = ("test_", "validation_")


@dataclass(frozen=True)
class Row:
    """One initialiser in one setting, by one score."""

    experiment: Experiment
    makes: str
    mean: float
    interval: tuple[float, float] | None
    """95% Student's t interval of the mean; None with one seed."""
    n: int
    """Seeds."""
    verdict: Verdict
    why: str
    """The verdict in a sentence, with its numbers."""


@dataclass(frozen=True)
class Board:
    """The rows of one setting by one of its scores, the best first."""

    setting: Setting
    header: str
    score: Score
    rows: list[Row]
    not_measured: list[Experiment]
    """Those that diverged or have no such score."""


def boards(setting: Setting) -> list[Board]:
    """A board for each score of a setting, what was measured on held-out data first."""
    order = sorted(setting.scores, key=lambda name: not name.startswith(_HELD_OUT))
    found = [_board(setting, metric) for metric in order]
    return [board for board in found if board.rows]


def _board(setting: Setting, metric: str) -> Board:
    header, score = setting.scores[metric]
    measured = [(e, numbers) for e in setting.experiments if (numbers := e.by_seed(metric))]
    sign = 1 if score.lower_is_better else -1
    measured.sort(key=lambda pair: sign * statistics.fmean(pair[1].values()))
    rows = []
    for i, (experiment, numbers) in enumerate(measured):
        values = list(numbers.values())
        verdict, why = _verdict(measured, i, score)
        rows.append(
            Row(
                experiment,
                makes(experiment),
                statistics.fmean(values),
                t_interval(values),
                len(values),
                verdict,
                why,
            )
        )
    left = [e for e in setting.experiments if not e.by_seed(metric)]
    return Board(setting, header, score, rows, left)


def _verdict(
    measured: Sequence[tuple[Experiment, Mapping[str, float]]], i: int, score: Score
) -> tuple[Verdict, str]:
    """What can be told of the i-th row against the first, or of the first against all others."""
    if len(measured) == 1:
        return "unknown", "nothing to compare it with"
    if i:
        return _against(measured[0][1], measured[i][1], score)
    told = [_against(measured[0][1], numbers, score)[0] for _, numbers in measured[1:]]
    if "level" in told:
        count = told.count("level")
        return "level", f"first; {count} of {len(told)} others cannot be told from it"
    if "unknown" in told:
        count = told.count("unknown")
        return "unknown", f"first; of {count} of {len(told)} others nothing can be told, for want of seeds"
    return "ahead", "first, and told apart from all others"


def _against(first: Mapping[str, float], other: Mapping[str, float], score: Score) -> tuple[Verdict, str]:
    """What can be told of a row that is not the first."""
    shared = sorted(first.keys() & other.keys())
    if len(shared) < 2:
        seeds = "one seed" if shared else "no seed"
        return "unknown", f"{seeds} in common with the first: nothing can be told"
    deltas = [other[seed] - first[seed] for seed in shared]
    low, high = t_interval(deltas) or (0.0, 0.0)
    digits = score.digits + 1
    numbers = f"{statistics.fmean(deltas):+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"
    if low <= 0 <= high:
        return "level", f"{numbers} against the first: holds 0, cannot be told"
    if (low > 0) != score.lower_is_better:  # the first has its place from seeds that this one lacks
        return "level", f"{numbers} against the first: better over the {len(shared)} seeds of both"
    return "behind", f"{numbers} against the first"


def makes(experiment: Experiment) -> str:
    """What the initialiser of an experiment makes, in words."""
    record = experiment.runs[0]
    task = task_of(record.task, record.metrics)
    if record.arguments.get("refine"):
        return PURPOSES["refinement"]
    if task and task.takes_models_apart and (record.arguments.get("model") or "vanilla") != "vanilla":
        return _APART
    try:
        return PURPOSES[get_initializer(record.init.partition(":")[0]).purpose]
    except UnknownNameError:
        return "other"


def standings(shown: Sequence[Board]) -> list[tuple[str, str, dict[Verdict, int]]]:
    """Initialiser, what it makes, and of how many of its rows what can be told; most often ahead first."""
    counts: dict[tuple[str, str], dict[Verdict, int]] = {}
    for board in shown:
        for row in board.rows:
            of = counts.setdefault((row.experiment.init, row.makes), dict.fromkeys(VERDICTS, 0))
            of[row.verdict] += 1
    found = [(init, what, of) for (init, what), of in counts.items()]
    return sorted(found, key=lambda one: ([-one[2][v] for v in VERDICTS], one[0]))


def telling_first(settings: Sequence[Setting]) -> list[Setting]:
    """Settings of several initialisers before those of one, and those of more seeds before those of fewer."""

    def rank(setting: Setting) -> tuple[bool, int, int]:
        seeds = [len({record.seed for record in e.runs}) for e in setting.experiments]
        return len(seeds) < 2, -sorted(seeds)[len(seeds) // 2], -len(seeds)

    return sorted(settings, key=rank)


def arguments_of(record: RunRecord) -> dict[str, Any]:
    """The arguments of a run that can change its result and were set, without folders of a machine."""
    found = public_record(record).arguments.items()
    skipped = NO_EFFECT | {"seed", "save", "accelerator_config"}
    return {k: v for k, v in found if k not in skipped and v not in (None, False, "", [], {})}
