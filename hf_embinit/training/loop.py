"""One run: `start` before any work, `run` once data and model are built. Every recipe calls both."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    PreTrainedModel,
    Seq2SeqTrainer,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)

from ..cards import PushTarget, prepare_push
from ..errors import InvalidArgumentError, RunFolderError
from ..initialization import InitReport
from ..manifest import read_manifest
from ..records import (
    NO_EFFECT,
    START_NAME,
    RunRecord,
    device_name,
    history_from_log,
    keep_inputs,
    prepare_run_folder,
    start_damage,
    unlock_folder,
)
from ..tasks import TaskData, TaskSpec
from ..tokens import read_vocabulary
from .callbacks import (
    CheckpointDigests,
    EpochClock,
    best_row,
    changed_tensors,
    energy_in_positions,
    freeze_all_but_embeddings,
    keep_checkpoints_whole,
    table_statistics,
    tracker_links,
    train_seconds,
    whole_state,
)
from .checks import check_metric, check_scores, check_trainer, warn_of_emulated_bf16
from .finish import draw_tables, finish_run, vector_digests
from .graphs import PADDED_TO, GraphedSteps, StepGraphs, check_cuda_graphs
from .sampler import LengthGroupedTraining, SequentialEvaluation

logger = logging.getLogger(__name__)

_MANY_PARAMETERS = 30_000_000
"""From this size on the matrices of a layer are large enough for several threads."""
_THREADS = torch.get_num_threads()


class RunTrainer(GraphedSteps, LengthGroupedTraining, SequentialEvaluation, Trainer):
    """A `Trainer` whose predictions are in the order of the texts, in batches of like length."""


class GeneratingTrainer(GraphedSteps, LengthGroupedTraining, SequentialEvaluation, Seq2SeqTrainer):
    """The same for generation: translations are in the order of their references."""


@dataclass(frozen=True)
class Run:
    """A run that is ready to begin: its folder and its repository are its own."""

    task: TaskSpec
    dataset: str
    init: str
    """Its name in the record: an initialiser, or what else was done to the embeddings."""
    tokenizer: str
    args: TrainingArguments
    arguments: dict[str, Any]
    """Every flag with its value."""
    folder: Path
    checkpoint: str | None
    """The checkpoint to go on from; None starts at step 0."""
    hub: PushTarget | None
    costs: dict[str, float] = field(default_factory=dict, init=False)
    """Further entries of the record's `runtime`: `surgery_seconds`, the CPU seconds of a surgery."""

    @contextmanager
    def timed(self, cost: str) -> Iterator[None]:
        """Puts the CPU seconds of a block among the costs, under a name such as `surgery_seconds`."""
        begin = time.process_time()
        yield
        self.costs[cost] = time.process_time() - begin


def start(
    task: TaskSpec, args: TrainingArguments, *flags: Any, hub: PushTarget | None = None, **names: str
) -> Run:
    """Prepares the run's folder and repository and seeds all draws; `flags` are its other dataclasses.

    `names` are those of the record: `dataset`, `init`, `tokenizer`; by default the flags of these names.
    `hub` is where the run is published, if that is settled before. Raises `RunFolderError` when the folder
    holds another run, `PublishError` when the repository does.
    """
    given = {name: value for part in flags for name, value in vars(part).items()}
    arguments = {**given, **args.to_dict()}
    check_metric(args, task.metrics)
    check_trainer(args)
    if given.get("cuda_graphs"):
        check_cuda_graphs(args, twins=bool(given.get("twin_seeds")))
    _prepare_reports(args)
    choose_threads(args)
    warn_of_emulated_bf16(args)
    state = prepare_run_folder(
        str(args.output_dir),
        args.resume_from_checkpoint,
        {
            **given,
            **{k: v for k, v in args.to_dict().items() if k not in NO_EFFECT},
            "num_processes": args.world_size,  # with it the batch changes
        },
        is_main_process=args.process_index == 0,
    )
    identity = {name: str(names.get(name) or given[name]) for name in ("dataset", "init", "tokenizer")}
    if hub is None:
        others: dict[str, Any] = {name: value for name, value in identity.items() if name != "init"}
        others |= {"task": task.record_name, "seed": args.seed}
        (hub,) = prepare_push(args, [identity["init"]], **others, arguments=arguments)
    set_seed(args.seed)
    return Run(
        task,
        **identity,
        args=args,
        arguments=arguments,
        folder=state.folder,
        checkpoint=state.checkpoint,
        hub=hub,
    )


def _prepare_reports(args: TrainingArguments) -> None:
    """Gives the run the name of its folder in experiment trackers, so that predictions land in the same run.

    Raises `InvalidArgumentError` for a tracker that is not installed, before any work.
    """
    trackers = [args.report_to] if isinstance(args.report_to, str) else args.report_to or []
    missing = [name for name in trackers if name not in get_available_reporting_integrations()]
    if missing:
        known = sorted(INTEGRATION_TO_CALLBACK)
        way_out = (
            f"not installed; `pip install {missing[0]}`"
            if missing[0] in known
            else f"not known to transformers; known: {', '.join(known)}"
        )
        raise InvalidArgumentError(
            f"--report_to {' '.join(trackers)}: {missing[0]} is {way_out}, or leave the flag out"
        )
    if trackers:
        args.run_name = args.run_name or Path(str(args.output_dir)).name
        args.project = "hf_embinit" if args.project == "huggingface" else args.project


def choose_threads(args: TrainingArguments, parameters: int = 0) -> None:
    """Sets one thread for a model of few parameters on a CPU, where several would wait for each other.

    So does `accelerate launch`. `OMP_NUM_THREADS` takes precedence.
    """
    if args.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1 if parameters < _MANY_PARAMETERS else max(_THREADS, 1))


def run(
    run: Run,
    data: TaskData,
    models: PreTrainedModel | Mapping[str, PreTrainedModel],
    tokenizer: Any,
    *,
    report: InitReport | None = None,
    freeze_rest: bool = False,
) -> str:
    """Trains, tests, writes the run folder and publishes it if asked to; returns a summary to print.

    `models` are one model, or several that are trained together, by the name of their sub-folder. `report` is
    of `initialize`. `freeze_rest` trains the input embeddings alone. Only the first process has a summary.
    """
    models = {"": models} if isinstance(models, PreTrainedModel) else models
    first, args = next(iter(models.values())), run.args
    check_scores(args, data)
    parameters = first.num_parameters()
    choose_threads(args, parameters)
    if data.generates:
        for model in models.values():
            _keep_generation(model, args)
    frozen = {name: freeze_all_but_embeddings(m) for name, m in models.items()} if freeze_rest else {}
    statistics = _of_tables(models, table_statistics)
    if args.should_save:
        _keep_start(run, data, models, tokenizer)
    trainer = _trainer(run, data, data.module(models), tokenizer)
    trainer.train(resume_from_checkpoint=run.checkpoint)

    log = list(trainer.state.log_history)
    history = data.history(history_from_log(log), log)
    outcome = data.outcome(trainer, history)
    if len(models) == 1:
        trainer.save_model()  # every process: it gathers sharded weights
    unchanged = _unchanged(data, models, frozen)
    if args.world_size == 1:  # else tables may be in parts
        for table, shares in _of_tables(models, energy_in_positions).items():
            statistics[table]["in_positions"]["energy_after_training"] = shares["energy"]
    if len(models) > 1:
        _save(models, tokenizer, run.folder, writes=trainer.is_world_process_zero())
    if not trainer.is_world_process_zero():
        return ""
    metrics = outcome.metrics | unchanged
    best = None
    if args.load_best_model_at_end and history:
        metric = str(args.metric_for_best_model).removeprefix("eval_")
        saved = [row for row in history if row["step"]]  # none is at the start, with or without evaluation
        best = best_row(saved, f"validation_{metric}", greater_is_better=bool(args.greater_is_better))
        metrics = {k: v for k, v in (best or {}).items() if k.startswith("validation_")} | metrics
    seconds = train_seconds(log)
    record = RunRecord(
        task=run.task.record_name,
        dataset=run.dataset,
        init=run.init,
        tokenizer=run.tokenizer,
        seed=args.seed,
        arguments=run.arguments,
        metrics=metrics,
        best_epoch=None if best is None else best["epoch"],
        history=history,
        parameters=parameters,
        embedding_statistics=statistics,
        coverage=dict(data.coverage) if report is None else _coverage(report),
        runtime={
            "train_seconds": seconds,
            "tokens_per_second": data.trained_tokens(trainer) / seconds if seconds else 0.0,
            "device": device_name(args.device),
            "world_size": args.world_size,
            **_base_model(first),
            **run.costs,
            **tracker_links(args),
        },
        signature=outcome.signature,
        data=data.digests,
    )
    summary = finish_run(run.folder, record, outcome.samples, models=list(models), figures=data.figures)
    unlock_folder(run.folder)
    return summary if run.hub is None else f"{summary}\n{run.hub.publish(run.folder)}"


def _input_digests(data: TaskData, events: Sequence[Mapping[str, Any]], tokenizer: Any) -> dict[str, str]:
    """SHA-256 of the texts of each split, of the vectors of each table, and of the tokens by their ids."""
    found = {f"{split} split": entry for split, entry in data.digests.items()}
    found |= vector_digests(events)
    tokens = [read_vocabulary(tokenizer, side).tokens for side in ("source", "target")]
    vocabulary = hashlib.sha256(json.dumps(tokens).encode()).hexdigest()
    return {name: entry["sha256"] for name, entry in found.items()} | {"vocabulary": vocabulary}


def _keep_generation(model: PreTrainedModel, args: TrainingArguments) -> None:
    """Has the checkpoint generate as the run does; transformers' default ends a text after 20 tokens."""
    settings = {"max_length": "generation_max_length", "num_beams": "generation_num_beams"}
    given = {name: getattr(args, flag, None) for name, flag in settings.items()}
    model.generation_config.update(**{name: value for name, value in given.items() if value is not None})


def _base_model(model: PreTrainedModel) -> dict[str, Any]:
    """The Hub id and the commit of the model that training started from; nothing for any other."""
    commit = getattr(model.config, "_commit_hash", None)
    return {"base_model": {"name": model.name_or_path, "revision": commit}} if commit else {}


def _trainer(run: Run, data: TaskData, module: Any, tokenizer: Any) -> Trainer:
    collator = data.collator(module)
    graphed = bool(run.arguments.get("cuda_graphs"))
    if graphed and hasattr(collator, "pad_to_multiple_of"):
        collator.pad_to_multiple_of = PADDED_TO
    trainer = (GeneratingTrainer if data.generates else RunTrainer)(
        model=module,
        args=run.args,
        train_dataset=data.train,
        eval_dataset=data.validation,
        processing_class=tokenizer,
        data_collator=collator,
        compute_metrics=data.compute_metrics,
        callbacks=[*data.callbacks, EpochClock(), CheckpointDigests()],
    )
    trainer.graphs = StepGraphs() if graphed else None
    keep_checkpoints_whole(trainer)
    return trainer


def _keep_start(run: Run, data: TaskData, models: Mapping[str, PreTrainedModel], tokenizer: Any) -> None:
    """Keeps step 0 beside the trained model; a run that goes on begins with the same weights and inputs."""
    first = next(iter(models.values()))
    keep_inputs(run.folder, _input_digests(data, read_manifest(first), tokenizer), run.checkpoint)
    if not _has_start(run, models):
        _save_start(run, models, tokenizer)
        if data.draws_tables:
            draw_tables(first, run.folder / "figures", run.init)


def _has_start(run: Run, models: Mapping[str, PreTrainedModel]) -> bool:
    """Whether the model before step 0 is in the folder of a run that goes on, as it was written."""
    if run.checkpoint is None or start_damage(Path(run.checkpoint), run.folder) is not None:
        return False
    return _is_saved(models, run.folder / START_NAME)


def _save_start(run: Run, models: Mapping[str, PreTrainedModel], tokenizer: Any) -> None:
    """Saves the model before step 0. Raises `RunFolderError` when a run that goes on began with another."""
    _save(models, tokenizer, run.folder / START_NAME)
    if run.checkpoint is not None and start_damage(Path(run.checkpoint), run.folder) is not None:
        raise RunFolderError(
            f"{run.folder / START_NAME} was missing or damaged, and the model that this command makes is not "
            f"the one that {Path(run.checkpoint).name} began with: vectors, data or versions have changed "
            f"since; bring them back, or start in another --output_dir"
        )


def _is_saved(models: Mapping[str, PreTrainedModel], folder: Path) -> bool:
    """Whether every model is saved completely: its weights can be opened, which a truncated file cannot."""
    try:
        for name in models:
            files = list((folder / name).glob("*.safetensors"))
            if not files or not (folder / name / "config.json").is_file():
                return False
            for file in files:
                with safe_open(file, "pt") as weights:
                    weights.keys()
    except (OSError, SafetensorError):
        return False
    return True


def _save(
    models: Mapping[str, PreTrainedModel], tokenizer: Any, folder: Path, *, writes: bool = True
) -> None:
    """Saves models with a tokenizer each. Sharded ones are gathered in every process; one `writes`."""
    for name, model in models.items():
        state = whole_state(model)
        if writes:
            model.save_pretrained(folder / name, state_dict=state)
            tokenizer.save_pretrained(folder / name)


def _coverage(report: InitReport) -> dict[str, Any]:
    return {table.table: table.coverage for table in report.tables if table.coverage is not None}


def _of_tables(
    models: Mapping[str, PreTrainedModel], measure: Callable[[PreTrainedModel], dict[str, dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """What `measure` says of the tables of each model, by the model's name and the table's."""
    return {
        f"{name}/{table}".lstrip("/"): values
        for name, model in models.items()
        for table, values in measure(model).items()
    }


def _unchanged(
    data: TaskData, models: Mapping[str, PreTrainedModel], frozen: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Checks that no frozen tensor has changed, and returns how many each model has."""
    counts: dict[str, float] = {}
    for name, before in frozen.items():
        changed = changed_tensors(models[name], before)
        assert not changed, f"frozen tensors of {name or 'the model'} changed: {', '.join(changed)}"
        counts[f"frozen_tensors_unchanged{data.suffix(name)}"] = len(before)
    return counts
