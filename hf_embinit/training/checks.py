"""What a Trainer would refuse, or ignore without a word, after data and model were made."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
from accelerate.utils import DynamoBackend
from transformers import GenerationConfig, Trainer, TrainingArguments, get_scheduler
from transformers.utils import is_liger_kernel_available

from ..errors import InvalidArgumentError
from ..tasks import TaskData

logger = logging.getLogger(__name__)


def check_metric(args: TrainingArguments, measured: Iterable[str]) -> None:
    """Raises `InvalidArgumentError` for a metric that no evaluation will have."""
    names = dict.fromkeys(["loss", *measured])
    metric = str(args.metric_for_best_model).removeprefix("eval_")
    if args.load_best_model_at_end and metric not in names:
        known = ", ".join(names)
        raise InvalidArgumentError(f"--metric_for_best_model {metric}: not measured here; known: {known}")


def check_scores(args: TrainingArguments, data: TaskData) -> None:
    """Raises `InvalidArgumentError` for a best epoch by what these data are not scored by."""
    check_metric(args, data.measured)
    if args.prediction_loss_only and data.compute_metrics is not None:
        raise InvalidArgumentError("--prediction_loss_only True: what is scored here is more than the loss")
    if args.label_smoothing_factor and data.not_smoothed:
        raise InvalidArgumentError(
            f"--label_smoothing_factor {args.label_smoothing_factor}: {data.not_smoothed}; leave the flag out"
        )
    if data.generates and not getattr(args, "predict_with_generate", True):
        raise InvalidArgumentError("--predict_with_generate False: what is scored here is generated text")


def check_trainer(args: TrainingArguments) -> None:
    """Raises `InvalidArgumentError` for what the Trainer would refuse after data and model were made."""
    if args.fsdp and args.world_size == 1:
        raise InvalidArgumentError(
            "--fsdp shards a model over processes, and this is one: start the recipe by `accelerate launch "
            "--num_processes 2`, or leave the flag out"
        )
    if args.fp16 and args.device.type == "cpu":
        raise InvalidArgumentError(
            "--fp16 on a CPU: transformers would train in float32 without a word; use --bf16, or leave the "
            "flag out"
        )
    by_steps = args.eval_strategy == args.save_strategy == "steps"
    if args.load_best_model_at_end and by_steps and args.save_steps != args.eval_steps:
        raise InvalidArgumentError(
            f"--save_steps {args.save_steps} with --eval_steps {args.eval_steps}: the best evaluation may be "
            "at a step that was not saved; give both one number, or --load_best_model_at_end False"
        )
    if args.use_liger_kernel and not is_liger_kernel_available():
        raise InvalidArgumentError("--use_liger_kernel: `pip install liger-kernel`, or leave the flag out")
    if (generation := getattr(args, "generation_config", None)) is not None:
        try:
            GenerationConfig.from_pretrained(generation)
        except OSError as error:
            said = str(error).partition("\n")[0]
            raise InvalidArgumentError(f"--generation_config {generation}: {said}") from None
    _check_compilation(args)
    try:
        Trainer.get_optimizer_cls_and_kwargs(args, torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    except (ImportError, ValueError) as error:
        if args.optim_target_modules is None or isinstance(error, ImportError):
            given = f", --optim_args {args.optim_args} (expected name=value, ...)" if args.optim_args else ""
            raise InvalidArgumentError(
                f"--optim {getattr(args.optim, 'value', args.optim)}{given}: {error}"
            ) from None
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=args.learning_rate)
    kind, options = args.lr_scheduler_type, args.to_dict()["lr_scheduler_kwargs"] or {}
    try:
        get_scheduler(kind, optimizer, 1, 10, scheduler_specific_kwargs=dict(options))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"--lr_scheduler_type {getattr(kind, 'value', kind)}, --lr_scheduler_kwargs {options}: {error}"
        ) from None


def _check_compilation(args: TrainingArguments) -> None:
    """Raises `InvalidArgumentError` for a backend or a mode of `torch.compile` that there is not."""
    backend = args.torch_compile_backend
    known = [one.value.lower() for one in DynamoBackend]
    if args.torch_compile and backend is not None and backend.lower() not in known:
        raise InvalidArgumentError(f"--torch_compile_backend {backend}: known: {', '.join(sorted(known))}")
    mode = args.torch_compile_mode
    if args.torch_compile and mode is not None and backend in (None, "inductor"):
        from torch._inductor import list_mode_options

        if mode not in (modes := list_mode_options()):
            raise InvalidArgumentError(f"--torch_compile_mode {mode}: known: {', '.join(modes)}")


def warn_of_emulated_bf16(args: TrainingArguments) -> None:
    """Says so when `--bf16` would be computed without instructions for it: on an AMD EPYC with AVX2 alone, a
    product of bfloat16 matrices takes 30 times as long as one of float32."""
    cpu = torch.cpu.get_capabilities() if args.bf16 and args.device.type == "cpu" else {}
    if cpu.get("architecture") == "x86_64" and not (cpu.get("avx512_bf16") or cpu.get("amx_bf16")):
        logger.warning(
            "--bf16: this CPU (%s) has no instructions for bfloat16, so training will be many times slower "
            "than in float32; leave the flag out",
            cpu.get("cpu_name"),
        )
