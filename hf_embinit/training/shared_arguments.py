"""Arguments that several recipes take, and `flag`, which declares one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from ..errors import InvalidArgumentError
from ..initializers import get_initializer


def flag(default: Any, text: str, *, choices: Sequence[str] | None = None) -> Any:
    """A field of a dataclass of arguments, with its default and its text for `--help`."""
    metadata: dict[str, Any] = {"help": text}
    if choices is not None:
        metadata["choices"] = list(choices)
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


BY_LENGTH = {"train_sampling_strategy": "group_by_length", "remove_unused_columns": False}
"""Settings of the Trainer for texts of varying length; the sampler reads their column `length`."""
BY_LOSS = {"metric_for_best_model": "eval_loss", "greater_is_better": False}
"""Settings of the Trainer: the best epoch is that of the lowest validation loss."""


def every_epoch() -> dict[str, Any]:
    """Settings of the Trainer: evaluate and save after each epoch, keep the best weights and the last."""
    return {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "save_total_limit": 1,  # beside the best one
        "load_best_model_at_end": True,
        **on_this_machine(),
    }


def on_this_machine() -> dict[str, Any]:
    """Settings of the Trainer that do not change a result."""
    return {"ddp_find_unused_parameters": False, "dataloader_pin_memory": torch.cuda.is_available()}


@dataclass
class InitArguments:
    """The options of the initialiser."""

    init_options: list[str] | None = field(
        default=None,
        metadata={"help": "Options of the --init, each name=value, such as `mode=rows` of `glove_shuffled`."},
    )

    def options_of(self, init: str | None) -> dict[str, Any]:
        """The options as keyword arguments. Raises `InvalidArgumentError` for one that `init` does not have,
        and without an `init`."""
        options: dict[str, Any] = {}
        for text in self.init_options or []:
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                raise InvalidArgumentError(f"--init_options {text!r}: give name=value, such as mode=rows")
            try:
                options[name] = json.loads(value)
            except ValueError:
                options[name] = value
        if options and init is None:
            raise InvalidArgumentError(f"--init_options {self.init_options} needs --init, which has them")
        if init is not None:
            get_initializer(init).check_options(options)
        return options


@dataclass
class VanillaArguments(InitArguments):
    """The architecture of a new vanilla transformer. Defaults are those of the task and the data set."""

    position_encoding: str | None = flag(
        None,
        "Vanilla: how positions enter. Default: sinusoidal.",
        choices=["sinusoidal", "learned", "rotary", "relative", "none"],
    )
    position_scale: float | None = flag(
        None,
        "Vanilla: factor of the sinusoidal positions; less lets more of the embeddings through. Default: 1.",
    )
    norm_position: str | None = flag(
        None, "Vanilla: LayerNorm after or before each block. Default: by task.", choices=["post", "pre"]
    )
    d_model: int | None = flag(
        None,
        "Vanilla: width of embeddings and layers, in dimensions. Default: by data set and tokenizer "
        "(300 for words; 128 on embedded corpora).",
    )
    d_ff: int | None = flag(
        None, "Vanilla: width of the feed-forward layers, in dimensions. Default: by data set."
    )
    num_layers: int | None = flag(
        None, "Vanilla: layers of the encoder, and as many of a decoder. Default: by data set."
    )
    num_heads: int | None = flag(
        None, "Vanilla: attention heads a layer; must divide --d_model. Default: by data set and tokenizer."
    )
    dropout_rate: float | None = flag(None, "Vanilla: dropout probability, 0 to 1. Default: 0.1.")

    def config(self, tokenizer: Any, **settings: Any) -> Any:
        """The configuration of a model for the tokenizer's vocabulary; `settings` go into it as they are."""
        from ..models import VanillaTransformerConfig

        sizes = {name: getattr(self, name) for name in VanillaArguments.__annotations__}
        special = {
            f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")
        }
        return VanillaTransformerConfig(vocab_size=len(tokenizer), **sizes, **special, **settings)

    def refuse_shapes(self, model: str) -> None:
        """Raises `InvalidArgumentError` when a flag that shapes a vanilla model is given with another one."""
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and f.metadata["help"].startswith("Vanilla:"):
                raise InvalidArgumentError(
                    f"--{f.name} {value} shapes the vanilla encoder; --model {model} has its own"
                )


@dataclass
class FileArguments:
    """The files of the data."""

    data_dir: str | None = flag(
        None,
        "Folder that has the data set, or a sub-folder of its name. Then HF_EMBINIT_DATA, then the Hub.",
    )
    train_file: str | None = flag(None, "Training data, in place of the data set's.")
    validation_file: str | None = flag(None, "Validation data, in place of the data set's.")

    @property
    def places(self) -> dict[str, Any]:
        """Keyword arguments of the data loaders: the folder, and the files that replace single splits."""
        files = {split: getattr(self, f"{split}_file", None) for split in ("train", "validation", "test")}
        return {"data_dir": self.data_dir, "files": files}


@dataclass
class TestFileArguments(FileArguments):
    """Data with a test split."""

    test_file: str | None = flag(None, "Test data, in place of the data set's.")
    max_train_samples: int | None = flag(None, "Train on this many examples only.")


@dataclass
class SampleArguments(TestFileArguments):
    """Data that may be cut to their first examples."""

    max_eval_samples: int | None = flag(
        None, "Validate on this many examples only (of matched and mismatched, each)."
    )
    max_predict_samples: int | None = flag(None, "Test on this many examples only.")

    @property
    def places(self) -> dict[str, Any]:
        """Those of `FileArguments`, and the number of examples used of each split; None for all."""
        limits = (self.max_train_samples, self.max_eval_samples, self.max_predict_samples)
        return {**super().places, "limits": dict(zip(("train", "validation", "test"), limits, strict=True))}
