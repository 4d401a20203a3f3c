"""Tables over many records: a row for each experiment, with mean and sample sd over its seeds."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..display import markdown_code, markdown_table, markdown_text
from ..tasks import Score, TaskSpec, task_of
from .places import shorten
from .record import RunRecord

SEEDS = {"seed", "data_seed", "twin_seeds"}
"""Arguments in which the runs of one experiment differ."""
NO_EFFECT = {
    *("output_dir", "data_dir", "allow_pickle", "use_cpu"),
    *("disable_tqdm", "report_to", "run_name", "project", "resume_from_checkpoint", "local_rank"),
    *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "ddp_timeout"),
    *("logging_strategy", "logging_steps", "logging_first_step", "logging_nan_inf_filter"),
    *("log_level", "log_level_replica", "log_on_each_node", "include_num_input_tokens_seen"),
    *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push"),
    *("hub_revision", "save_total_limit", "save_only_model", "save_on_each_node", "skip_memory_metrics"),
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
    *("dataloader_prefetch_factor", "dataloader_multiprocessing_context"),
    *("do_train", "do_eval", "do_predict"),
}
"""Arguments that cannot change what a run measures. (The content of `data_dir` shows in the digests.)"""
_FILES = {"vectors", "target_vectors"}  # their digests tell, where the record has them
_OF_THE_INIT = {*_FILES, "init_options"}
"""What an initialiser reads, with the digests of it: runs that differ in it are still to be compared."""
_IN_COLUMNS = {
    "num_train_epochs",
    "max_steps",
    "max_train_samples",
    "model",
    "task",
    "dataset",
    "init",
    "tokenizer",
}
_IN_COLUMNS |= {"surgery", "inits", "refine"}  # the column `init` says them


def settings(record: RunRecord) -> dict[str, Any]:
    """What all runs of one experiment share, beside the columns.

    That is every argument but `SEEDS` and `NO_EFFECT`, the digests of the data and of the vectors, and the
    number of processes: each takes a batch of its own at every step.
    """
    hidden = SEEDS | NO_EFFECT | _IN_COLUMNS
    digests = {name: f"{split['sha256']:.8}" for name, split in record.data.items()}
    if any(name.startswith("vectors") for name in digests):
        hidden |= _FILES
    processes = {"processes": record.runtime.get("world_size", 1)}
    return {**{k: v for k, v in record.arguments.items() if k not in hidden}, **digests, **processes}


def _shared(record: RunRecord) -> dict[str, Any]:
    """The `settings` of a record that its initialiser has no part in."""
    found = settings(record).items()
    return {k: v for k, v in found if k not in _OF_THE_INIT and not k.startswith("vectors")}


def results_table(records: Iterable[RunRecord]) -> str:
    """A Markdown table for each task, with `mean (sd)` over n seeds in each row.

    Runs that differ in the seed alone share a row. Rows of the same settings are adjacent, the best by the
    first metric on top. Where rows would look alike, a column says how they differ. A run that is found
    twice counts once, and a seed that was run twice by the mean of its runs.
    """
    return "\n".join(_task_table(task, group) for task, group in _by_task(records).values())


def _by_task(records: Iterable[RunRecord]) -> dict[str, tuple[TaskSpec | None, list[RunRecord]]]:
    """Name of a task -> the task, None for one that is not registered, and its records."""
    found: dict[str, tuple[TaskSpec | None, list[RunRecord]]] = {}
    for record in records:
        task = task_of(record.task, record.metrics)
        found.setdefault(task.name if task else record.task, (task, []))[1].append(record)
    return found


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in nothing but the seed."""

    init: str
    told: str
    """How it differs from others of that name in its setting; empty where none has it."""
    runs: list[RunRecord]

    def by_seed(self, metric: str) -> dict[str, float]:
        """The numbers of the runs that did not diverge: their mean where a seed was run twice."""
        return _by_seed(self.runs, [record.metrics.get(metric) for record in self.runs])


@dataclass(frozen=True)
class Setting:
    """Experiments that differ in nothing but the initialiser and what it reads."""

    task: str
    dataset: str
    model: str
    """`vanilla`, or the checkpoint that was started from."""
    tokenizer: str
    length: str
    """`5` epochs, `500 steps`; empty where nothing was trained."""
    told: str
    """How it differs from settings that look alike."""
    scores: dict[str, tuple[str, Score]]
    """What was measured, as the task's columns: name in the records -> header, and what it is."""
    experiments: list[Experiment]


def compare_settings(records: Iterable[RunRecord]) -> list[Setting]:
    """The settings of all records, by task, in the order of their first runs.

    A run that is found twice counts once.
    """
    found = []
    for name, (task, of_task) in _by_task(records).items():
        parts: dict[tuple, list[Group]] = defaultdict(list)
        for shown, runs in _groups(of_task):
            key = (*shown[:-1], _text(_shared(runs[0])))
            parts[key].append((shown, runs))
        told = _told_apart([(key[:-1], groups[0][1]) for key, groups in parts.items()], _shared)
        short = _short_names(name for _, model, tokenizer, *_ in parts for name in (model, tokenizer))
        for (key, groups), how in zip(parts.items(), told, strict=True):
            dataset, model, tokenizer, length, samples, _ = key
            found.append(
                Setting(
                    name,
                    dataset if samples is None else f"{dataset}, first {samples}",
                    short[model],
                    short[tokenizer],
                    length,
                    how,
                    _columns(task, [record for _, runs in groups for record in runs]),
                    [
                        Experiment(shown[-1], text, runs)
                        for (shown, runs), text in zip(groups, _told_apart(groups, settings), strict=True)
                    ],
                )
            )
    return found


Group = tuple[tuple, list[RunRecord]]
"""The cells that identify an experiment, its initialiser last, and its runs."""


def _task_table(task: TaskSpec | None, records: Sequence[RunRecord]) -> str:
    groups = _groups(records)
    told = _told_apart(groups, settings)
    columns = _columns(task, records)
    first = next(iter(columns), None)
    lower_is_better = first is not None and columns[first][1].lower_is_better
    models = any(model != "vanilla" for (_, model, *_), _ in groups)
    short = _short_names(name for (_, model, tokenizer, *_), _ in groups for name in (model, tokenizer))
    header = ["data", *(["model"] if models else []), "tokenizer", "epochs", "init"]
    header += [*(["settings"] if any(told) else []), "seeds"]
    header += [*(title for title, _ in columns.values()), "best epoch"]
    rows = []
    for i in _best_first(groups, first, lower_is_better=lower_is_better):
        (dataset, model, tokenizer, epochs, samples, init), group = groups[i]
        data = dataset if samples is None else f"{dataset}, first {samples}"
        named = [data, *([short[model]] if models else []), short[tokenizer], epochs]
        cells = [*map(markdown_text, named), markdown_code(init)]
        cells += [*([markdown_text(told[i])] if any(told) else []), str(len({_seeds(r) for r in group}))]
        for name, (_, score) in columns.items():
            cells.append(_mean_sd(group, [r.metrics.get(name) for r in group], score.digits))
        cells.append(_mean_sd(group, [r.best_epoch for r in group], 1))
        rows.append(cells)
    return markdown_table(header, rows)


def _columns(task: TaskSpec | None, records: Sequence[RunRecord]) -> dict[str, tuple[str, Score]]:
    """The measured numbers that a table shows: name -> header, and what it is."""
    measured = dict.fromkeys(name for record in records for name in record.metrics)
    if task is None:
        return {name: (name.replace("_", " "), Score(name)) for name in measured}
    return {name: task.column(name) for name in task.columns if name in measured}


def _groups(records: Sequence[RunRecord]) -> list[Group]:
    """The experiments, in the order of their first runs."""
    groups: dict[tuple, dict[str, RunRecord]] = defaultdict(dict)
    for record in records:
        a = record.arguments
        shown = (
            *(record.dataset, a.get("model") or "vanilla", record.tokenizer),
            *(_length(a), a.get("max_train_samples"), record.init),
        )
        run = _text([_seeds(record), record.metrics])
        groups[shown, _text(settings(record))].setdefault(run, record)
    return [(shown, list(runs.values())) for (shown, _), runs in groups.items()]


def _told_apart(groups: Sequence[Group], settings_of: Callable[[RunRecord], Mapping[str, Any]]) -> list[str]:
    """For each group, the settings in which it differs from groups with the same cells."""
    told = []
    for shown, group in groups:
        same = [others[0] for other, others in groups if other == shown]
        alike, mine = [settings_of(record) for record in same], settings_of(group[0])
        digests = {name for record in same for name in record.data}
        keys = dict.fromkeys(k for s in alike for k in s if any(o.get(k) != s[k] for o in alike))
        known = {k: f"{k} {_plain(mine[k])}" for k in keys if k in mine}
        for k in keys:
            if k not in mine and k not in group[0].arguments:
                known[k] = f"no digest of {k}" if k in digests else f"{k} not recorded"
        told.append(", ".join(known[k] for k in keys if k in known))
    return told


def _best_first(groups: Sequence[Group], metric: str | None, *, lower_is_better: bool) -> list[int]:
    """Indices of the groups: in order of their settings' first runs, then best first by `metric`."""
    keys = [(*shown[:-1], _text(_shared(runs[0]))) for shown, runs in groups]
    order = list(dict.fromkeys(keys))

    def rank(i: int) -> tuple[int, float]:
        runs = groups[i][1]
        numbers = _by_seed(runs, [r.metrics.get(metric) for r in runs]) if metric else {}
        if not numbers:
            return order.index(keys[i]), float("inf")
        mean = statistics.fmean(numbers.values())
        return order.index(keys[i]), mean if lower_is_better else -mean

    return sorted(range(len(groups)), key=rank)


def _length(arguments: Mapping[str, Any]) -> str:
    """The planned length of the training, in epochs or in steps."""
    steps, epochs = arguments.get("max_steps") or -1, arguments.get("num_train_epochs")
    if steps > 0:
        return "1 step" if steps == 1 else f"{steps} steps"
    return "" if epochs is None else f"{epochs:g}"


def _seeds(record: RunRecord) -> str:
    return _text([record.seed, *(record.arguments.get(name) for name in ("data_seed", "twin_seeds"))])


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not given"}[value]
    if isinstance(value, str):
        return value.rstrip("/").split("/")[-1]  # of a checkpoint, without its folder
    return f"{value:g}" if isinstance(value, float) else str(shorten(value))


def _short_names(names: Iterable[str]) -> dict[str, str]:
    """Each name -> it without its folder, or with so much of it as tells it from the others."""
    parts = {name: tuple(name.rstrip("/").split("/")) for name in names}
    ends = Counter(path[i:] for path in set(parts.values()) for i in range(len(path)))
    return {
        name: "/".join(next((path[i:] for i in reversed(range(len(path))) if ends[path[i:]] == 1), path))
        for name, path in parts.items()
    }


def _by_seed(runs: Sequence[RunRecord], values: Sequence[float | None]) -> dict[str, float]:
    """The values of the runs that did not diverge: their mean where a seed was run twice."""
    found: dict[str, list[float]] = defaultdict(list)
    for record, value in zip(runs, values, strict=True):
        if value is not None and not record.diverged:
            found[_seeds(record)].append(value)
    return {seed: statistics.fmean(own) for seed, own in found.items()}


def _mean_sd(runs: Sequence[RunRecord], values: Sequence[float | None], digits: int) -> str:
    """Mean and sd over seeds, and how many of the runs diverged."""
    lost = sum(record.diverged for record in runs)
    kept = list(_by_seed(runs, values).values())
    if not kept:
        return "diverged" if lost else "not measured"
    mean = f"{statistics.fmean(kept):.{digits}f}"
    text = mean if len(kept) == 1 else f"{mean} ({statistics.stdev(kept):.{digits}f})"
    if not lost and len(kept) < len({_seeds(record) for record in runs}):
        text += f", n={len(kept)}"
    return f"{text}, {lost} diverged" if lost else text
