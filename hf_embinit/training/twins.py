"""Two models trained side by side on the same batches, and how similar their embeddings become.

The Butterfly experiments: models that differ in the seed of their initialisation alone see the same data in
the same order under the same dropout masks, while KNN match similarity, losses and statistics are recorded at
steps that are evenly spaced on a logarithmic axis.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..errors import InvalidArgumentError
from ..measures import Metric, embedding_statistics, knn_match_by_k, knn_match_similarity
from ..records import RunRecord, shorten
from ..tables import EmbeddingTables, is_sharded
from ..tasks import Outcome, TaskData
from ..tasks.language_modeling import TextData
from .loop import Run
from .shared_arguments import TwinArguments, chosen_init
from .trajectory_figures import plot_trajectory

logger = logging.getLogger(__name__)

RECORDED: tuple[tuple[str, Metric], ...] = (("input", "inner_product"), ("input", "cosine"))
"""Role of the table and metric of each curve; an untied trained output table adds one more."""
AT_END: tuple[Metric, ...] = ("inner_product", "cosine", "euclidean")
"""Metrics of the input tables after the last step, for each of `KS`."""
KS = (1, 2, 5, 10, 20, 50, 100)
"""Numbers of neighbors after the last step, those of them that the compared tokens have."""


class Twins(nn.Module):
    """Several causal language models as one module: the same batch for each, the sum of their losses.

    No gradient of one reaches another. In evaluation `losses` `[B, n]` repeats each model's mean loss of the
    batch in every row. `loss_sums` adds up their training losses in this process until it is reset.
    """

    # Blocks are of one length: the mean over batches is that over tokens, but for a last batch of fewer
    # blocks, which in its step of several (`gradient_accumulation_steps`) counts as one.
    accepts_loss_kwargs = False
    _keys_to_ignore_on_save = None  # Trainer asks any model for it

    def __init__(self, models: Mapping[str, PreTrainedModel]):
        super().__init__()
        self.models = nn.ModuleDict(dict(models))
        first = next(iter(models.values()))
        # FSDP2 shards each model by itself, so that it runs and saves alone
        self._no_split_modules = [*(first._no_split_modules or ()), type(first).__name__]
        # no buffers, which accelerate has no place for beside sharded parameters
        self.loss_sums, self.loss_count = torch.zeros(len(models)), 0

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Blocks `[B, T]` -> the sum of the losses, and each of them."""
        device = input_ids.device
        devices, kind = ([], "cuda") if device.type == "cpu" else ([device], device.type)
        losses = []
        for i, model in enumerate(self.models.values()):
            last = i == len(self.models) - 1
            with torch.random.fork_rng(devices, enabled=not last, device_type=kind):  # same masks next
                losses.append(model(input_ids=input_ids, labels=labels).loss)
        each = torch.stack([loss.detach() for loss in losses])
        if self.training:
            self.loss_sums = self.loss_sums.to(device) + each
            self.loss_count += 1
            return {"loss": torch.stack(losses).sum()}
        return {"loss": torch.stack(losses).sum(), "losses": each.expand(len(input_ids), -1)}

    def summed_losses(self) -> Tensor:
        """The mean of `loss_sums` over all processes; to be called in each."""
        sums = self.loss_sums.clone()
        if dist.is_initialized():
            dist.all_reduce(sums)
            sums /= dist.get_world_size()
        return sums

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As in torch, but tied tensors are copied, since a safetensors file holds no tensor twice."""
        state = super().state_dict(*args, **kwargs)
        seen: set[int] = set()
        for name, tensor in state.items():
            if is_sharded(tensor):
                continue  # gathered one by one
            if tensor.data_ptr() in seen and tensor.numel():
                state[name] = tensor.clone()
            seen.add(tensor.data_ptr())
        return state


def twin_metrics(prediction: Any) -> dict[str, float]:
    """`compute_metrics` of a `Trainer` of `Twins`: the mean loss of each model, by its index."""
    losses = torch.as_tensor(prediction.predictions).double().mean(0).tolist()
    return {f"loss_{i}": loss for i, loss in enumerate(losses)}


def log_schedule(last: int, per_decade: int) -> list[int]:
    """Steps 0, 1, ..., `last`, evenly spaced on a logarithmic axis: `per_decade` for each factor of ten."""
    if last < 1 or per_decade < 1:
        raise InvalidArgumentError(f"last={last} and per_decade={per_decade} must be at least 1")
    count = math.floor(math.log10(last) * per_decade)
    return sorted({0, last, *(round(10 ** (i / per_decade)) for i in range(count + 1))})


def compared_rows(model: PreTrainedModel, counts: Tensor, most_frequent: int | None, k: int) -> Tensor:
    """Ids of the tokens to compare: all, or the `most_frequent` in the training text (`counts` `[V]`).

    A padding row is left out. Raises `InvalidArgumentError` when no more than k are left.
    """
    table = EmbeddingTables(model).input_tables[0]
    if most_frequent is None:
        rows = torch.arange(table.num_embeddings)
    else:
        padded = torch.zeros(table.num_embeddings, dtype=torch.long)
        padded[: len(counts)] = counts[: table.num_embeddings]
        rows = padded.argsort(descending=True, stable=True)[:most_frequent].sort().values
    rows = rows[rows != table.padding_index] if table.padding_index is not None else rows
    if not 1 <= k < len(rows):
        raise InvalidArgumentError(
            f"--knn_k {k}: each of the {len(rows)} tokens that are compared has {len(rows) - 1} others; "
            "choose a number between 1 and that"
        )
    return rows


class TwinRecorder(TrainerCallback):
    """Writes one row into the Trainer's log at each step of a schedule; clips each model's gradients alone.

    A row has `step`, `epoch`, `record_seconds`, and for each model (named as in `Twins`) `train_loss_<name>`
    (mean since the row before), `validation_loss_<name>`, `std_<name>`, `row_norm_mean_<name>`; and for each
    table and metric the KNN match similarity `knn_<table>_<metric>`: the mean over all `rows`, over those
    that occur in the training text (`..._seen`; the others keep their initial values), and weighted by their
    frequency (`..._weighted`). The log is saved with checkpoints, so a resumed run continues it. The
    Trainer's own clipping, by the norm of all models together, must be off.
    """

    def __init__(
        self,
        twins: Twins,
        *,
        per_decade: int,
        rows: Tensor,
        counts: Tensor,
        k: int,
        max_grad_norm: float,
    ):
        self.twins, self.per_decade, self.rows, self.k = twins, per_decade, rows, k
        self.schedule: set[int] = set()
        self.weights = torch.zeros(int(rows.max()) + 1, dtype=torch.float64)
        self.weights[: len(counts)] = counts[: len(self.weights)].double()
        self.max_grad_norm = max_grad_norm
        self._numbers = range(len(twins.models))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Makes the schedule, and goes on with the losses of a checkpoint."""
        self.schedule = set(log_schedule(state.max_steps, self.per_decade))
        for entry in state.log_history:
            if entry["step"] == state.global_step and "loss_count" in entry:
                self.twins.loss_sums = torch.tensor([entry[f"loss_sum_{i}"] for i in self._numbers])
                self.twins.loss_count = int(entry["loss_count"])

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Clips the gradients of each model."""
        if self.max_grad_norm > 0:
            for model in self.twins.models.values():
                nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Asks for an evaluation, which makes the row. A checkpoint without one has the losses in the log."""
        if state.global_step in self.schedule:
            control.should_evaluate = True
        self._keep_losses(state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The same of a checkpoint of `--save_strategy epoch`."""
        self._keep_losses(state, control)

    def _keep_losses(self, state: TrainerState, control: TrainerControl) -> None:
        if control.should_save and not control.should_evaluate:
            sums = self.twins.summed_losses().tolist()
            kept = {f"loss_sum_{i}": sums[i] for i in self._numbers} | {"loss_count": self.twins.loss_count}
            state.log_history.append({"step": state.global_step, **kept})

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Writes the row after that evaluation, in every process: sharded tables are gathered."""
        metrics = kwargs["metrics"]
        start = time.perf_counter()
        row: dict[str, Any] = {"step": state.global_step, "epoch": state.epoch or 0.0}
        count, sums = self.twins.loss_count, self.twins.summed_losses().tolist()
        for i, (name, model) in enumerate(self.twins.models.items()):
            if count:
                row[f"train_loss_{name}"] = sums[i] / count
            row[f"validation_loss_{name}"] = metrics[f"eval_loss_{i}"]
            table = _read(model, "input", self.rows)
            statistics = embedding_statistics(table, effective_rank=False)
            row[f"std_{name}"] = statistics.std
            row[f"row_norm_mean_{name}"] = statistics.row_norm_mean
        self.twins.loss_sums, self.twins.loss_count = torch.zeros_like(self.twins.loss_sums), 0
        row.update(self.similarities())
        row["record_seconds"] = time.perf_counter() - start
        state.log_history.append(row)
        if state.is_world_process_zero:
            logger.info("step %d: %s", state.global_step, {k: v for k, v in row.items() if k != "step"})

    @property
    def curves(self) -> list[tuple[str, Metric]]:
        """`RECORDED`, and the output table where it is trained on its own."""
        output = EmbeddingTables(next(iter(self.twins.models.values()))).output_tables
        alone = output and output[0].tied_to is None and output[0].parameter.requires_grad
        return [*RECORDED, ("output", "inner_product")] if alone else [*RECORDED]

    def similarities(self) -> dict[str, float]:
        """KNN match similarity of the first two models, by table and metric: `knn_<table>_<metric>`."""
        a, b = list(self.twins.models.values())[:2]
        scores: dict[str, float] = {}
        for role, metric in self.curves:
            x, y = (_read(model, role, self.rows) for model in (a, b))
            values = knn_match_similarity(x, y, self.k, metric, per_token=True).cpu().double()
            name = f"knn_{role}_{metric}"
            scores[name] = float(values.mean())
            weights = self.weights[self.rows]
            seen = weights > 0
            if bool(seen.any()):
                scores[f"{name}_seen"] = float(values[seen].mean())
                scores[f"{name}_weighted"] = float((values * weights).sum() / weights.sum())
        return scores

    def similarities_by_k(self) -> dict[str, float]:
        """The same of the input tables by metric (`AT_END`) and K (`KS`): `knn_input_<metric>_k<K>`."""
        x, y = (_read(model, "input", self.rows) for model in list(self.twins.models.values())[:2])
        ks = [k for k in KS if k < len(self.rows)]
        return {
            f"knn_input_{metric}_k{k}": value
            for metric in AT_END
            for k, value in knn_match_by_k(x, y, ks, metric).items()
        }


def _read(model: Any, role: str, rows: Tensor) -> Tensor:
    tables = EmbeddingTables(model)
    table = (tables.input_tables if role == "input" else tables.output_tables)[0]
    return tables.read(table)[rows.to(table.parameter.device)]


def trajectory(log_history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows that a `TwinRecorder` wrote, by step."""
    rows = {row["step"]: dict(row) for row in log_history if "knn_input_inner_product" in row}
    return [rows[step] for step in sorted(rows)]


class TwinData(TaskData):
    """The texts of two models that are trained side by side, and how similar their embeddings become.

    Replaces the Trainer's clipping, which would couple the models; requests a record of step 0 unless the run
    goes on from a checkpoint.
    """

    compute_metrics = staticmethod(twin_metrics)
    not_smoothed = "two models add up losses of their own"

    def __init__(
        self,
        texts: TextData,
        models: Mapping[str, PreTrainedModel],
        run: Run,
        twins: TwinArguments,
    ):
        self.texts, self.models = texts, models
        self.digests, self.train, self.validation = texts.digests, texts.train, texts.validation
        counts = texts.token_counts()
        self.twins = Twins({self.suffix(name)[1:]: model for name, model in models.items()})
        recorder = TwinRecorder(
            self.twins,
            per_decade=twins.records_per_decade,
            rows=compared_rows(next(iter(models.values())), counts, twins.knn_tokens, twins.knn_k),
            counts=counts,
            k=twins.knn_k,
            max_grad_norm=run.args.max_grad_norm,
        )
        self.recorder = recorder
        self.callbacks = [recorder]  # before the clock: it asks for evaluations, which stop that
        run.args.max_grad_norm = 0.0
        run.args.eval_on_start = run.checkpoint is None

    def module(self, models: Mapping[str, Any]) -> Any:
        """Both models as one."""
        return self.twins

    def suffix(self, name: str) -> str:
        """The suffix of a model's metrics: `twin-3` is `seed3` in the record."""
        return f"_seed{name.removeprefix('twin-')}"

    def trained_tokens(self, trainer: Any) -> float:
        """Tokens of the blocks of all steps."""
        return self.texts.trained_tokens(trainer)

    def history(
        self, rows: list[dict[str, float]], log: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, float]]:
        """The rows that the recorder wrote."""
        return trajectory(log)

    def outcome(self, trainer: Any, history: Sequence[Mapping[str, float]]) -> Outcome:
        """Scores of each model and their means, the last and the highest KNN match, and the last by K."""
        metrics: dict[str, float] = {}
        for split, found in self.texts.losses(trainer).items():
            each = []
            for i, name in enumerate(self.models):
                each.append(self.texts.scores(split, found[f"{split}_loss_{i}"]))
                metrics |= {f"{key}{self.suffix(name)}": value for key, value in each[-1].items()}
            metrics |= {key: fmean(scores[key] for scores in each) for key in each[0]}
        peak = max(history, key=lambda row: row["knn_input_inner_product"])
        metrics |= {key: value for key, value in history[-1].items() if key.startswith("knn_")}
        metrics |= {"knn_peak": peak["knn_input_inner_product"], "knn_peak_step": peak["step"]}
        metrics |= self.recorder.similarities_by_k()
        return Outcome(metrics, self.texts.continuations(self.models))

    def figures(self, folder: Path, record: RunRecord) -> None:
        """KNN match, losses and standard deviations by step."""
        told = record.arguments
        plot_trajectory(
            record.history,
            [self.suffix(name)[1:] for name in self.models],
            folder / "figures" / "trajectory.png",
            title=f"{shorten(record.dataset)}, {shorten(told['model'])}, {record.init}, seeds "
            + " and ".join(map(str, told["twin_seeds"])),
        )


def check_experiment(model: Any, twins: TwinArguments, args: TrainingArguments) -> None:
    """Raises `InvalidArgumentError` for flags that do not go together, before any work.

    `model` has the flags `model`, `init`, `vectors`, `min_frequency`, `tie_word_embeddings`,
    `reinitialize_embeddings` and `freeze_rest`.
    """
    model.refuse_shapes()
    for name in ("reinitialize_embeddings", "freeze_rest"):
        if model.model == "vanilla" and getattr(model, name):
            raise InvalidArgumentError(
                f"--{name} is for a trained model: --model is 'vanilla', a new one; give a folder or Hub id"
            )
    if model.model != "vanilla" and model.tie_word_embeddings:
        raise InvalidArgumentError(
            f"--tie_word_embeddings shapes a new vanilla model; --model {model.model} has its own tables"
        )
    if model.model != "vanilla" and model.min_frequency is not None:
        raise InvalidArgumentError(
            f"--min_frequency {model.min_frequency} with --model {model.model}: a trained model has its own "
            "vocabulary (hf_embinit.prune_vocabulary makes it smaller)"
        )
    if chosen_init(model) is None and model.vectors is not None:
        raise InvalidArgumentError(f"--vectors {model.vectors!r} is given, but not --init, which reads it")
    if twins.twin_seeds is None:
        for f in fields(twins):
            if (value := getattr(twins, f.name)) != f.default:
                raise InvalidArgumentError(f"--{f.name} {value} is for two models: give --twin_seeds, too")
    else:
        _check_twins(twins, args, model=model.model, init=chosen_init(model))


def _check_twins(twins: TwinArguments, args: TrainingArguments, *, model: str, init: str | None) -> None:
    seeds = twins.twin_seeds or []
    if len(set(seeds)) != 2 or len(seeds) != 2:
        given = " ".join(map(str, seeds))
        raise InvalidArgumentError(f"--twin_seeds {given}: give two different seeds, such as 0 1")
    if init is None:
        raise InvalidArgumentError(
            f"--twin_seeds with --model {model} would train the same model twice: add "
            "--reinitialize_embeddings or --init"
        )
    if args.fp16:
        raise InvalidArgumentError("--fp16 with --twin_seeds would clip scaled gradients: use --bf16")
    of_one = {
        "--gradient_checkpointing": args.gradient_checkpointing,
        "--neftune_noise_alpha": args.neftune_noise_alpha is not None,
    }
    for flag, is_given in of_one.items():
        if is_given:
            raise InvalidArgumentError(f"{flag} with --twin_seeds is for one model: leave one of them out")
    if args.load_best_model_at_end:
        raise InvalidArgumentError(
            "--load_best_model_at_end with --twin_seeds: both models are kept as they are after the last step"
        )
