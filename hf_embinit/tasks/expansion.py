"""Adding tokens to a trained language model: what Hewitt (2021) measured, and his settings."""

from __future__ import annotations

from typing import Any

from .language_modeling import DATASETS, METRICS, SCORED
from .spec import Score, TaskSpec, register_task

TASK = register_task(
    TaskSpec(
        "vocabulary_expansion",
        recipe="expand_vocab.py",
        datasets=DATASETS,
        metrics=METRICS,
        also={
            "step_0_validation_perplexity": Score("perplexity per token before training, validation"),
            "step_0_validation_bits_per_byte": Score("bits per byte before training, validation"),
            "step_20_validation_bits_per_byte": Score("bits per byte after 20 steps, validation"),
            "step_100_validation_bits_per_byte": Score("bits per byte after 100 steps, validation"),
            "step_0_new_rows_smallest_distance": Score("smallest distance of new input rows before training"),
            "step_0_new_rows_effective_rank": Score("effective rank of new input rows before training"),
            "new_rows_smallest_distance": Score("smallest distance of new input rows"),
            "new_rows_effective_rank": Score("effective rank of new input rows"),
            "kl_mean": Score(
                "KL to the model before expansion, mean over positions (nats)",
                "KL before training",
                digits=4,
                lower_is_better=True,
            ),
            "kl_median": Score("KL to the model before expansion, median (nats)"),
            "kl_max": Score("KL to the model before expansion, largest (nats)"),
            "kl_bound": Score("bound of that KL for new rows at the mean (nats)"),
            "new_token_mass": Score("probability on new tokens before training"),
        },
        columns=("kl_mean", *SCORED),
        drawn=("perplexity",),
        auto_class="AutoModelForCausalLM",
        pipeline_tag="text-generation",
        settings={
            "max_steps": 500,
            "per_device_train_batch_size": 16,
            "per_device_eval_batch_size": 16,
            "lr_scheduler_type": "constant",
            "eval_strategy": "steps",
            "eval_steps": 20,
            "eval_on_start": True,
            "logging_steps": 20,
            "logging_nan_inf_filter": False,
            "save_strategy": "no",
            "ddp_find_unused_parameters": False,
        },
        models=("captions",),
        special_case_of="language_modeling",
        marker="new_tokens",
    )
)
"""Hewitt's 500 steps with validation every 20; he reports no batch size and no learning rate."""


def preset(model: str) -> dict[str, Any]:
    """The settings for a model; `captions` is the small one that is trained on embedded text."""
    small = {"learning_rate": 1e-3, "block_size": 64}
    return {**TASK.settings, **(small if model == "captions" else {"learning_rate": 5e-5})}
