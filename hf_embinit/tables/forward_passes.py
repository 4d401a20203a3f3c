"""`forward_passes`: what `open_checkpoint` gave, able to run, with one layer in memory at a time."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from typing import Any

import transformers
from transformers import PreTrainedModel
from transformers.utils import is_accelerate_available

from ..hub import load_pretrained
from .checkpoint import checkpoint_of
from .meta_models import quiet_loading


@contextlib.contextmanager
def forward_passes(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Inside, a model that runs: a loaded one itself, of an opened one another whose weights are its files'.

    That one reads each weight when it is used and then drops it, by accelerate's offloading to the disk, so
    that memory is bounded by the largest layer and the tables. It is loaded as a whole where that cannot be:
    with quantised weights, without accelerate, and before transformers 5.16, which gives accelerate no model
    that is on the disk alone.
    """
    stored = checkpoint_of(model)
    if stored is None:
        yield model
        return
    reads_layers = (
        is_accelerate_available()
        and tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 16)
        and getattr(model.config, "quantization_config", None) is None
    )
    with tempfile.TemporaryDirectory() as folder:  # for weights that are converted, such as joined experts
        options: dict[str, Any] = (
            {"device_map": {"": "disk"}, "offload_folder": folder} if reads_layers else {}
        )
        where, dispatching = str(stored.files.folder), logging.getLogger("accelerate.big_modeling")
        level = dispatching.level
        dispatching.setLevel(logging.ERROR)  # it warns that weights are on the disk
        try:
            with quiet_loading():
                made = load_pretrained(
                    type(model), where, f"model {where!r}", use_safetensors=True, **options
                )
        finally:
            dispatching.setLevel(level)
        yield made.eval()
