"""A model as it is used: without dropout, and afterwards as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Inside, every module of a model is in evaluation mode; afterwards each in the mode that it had.

    The 4-bit linear layers of bitsandbytes, where nothing depends on the mode but whether the CPU packs their
    weights to run, are in training mode: what is saved of packed ones is in another order (0.50).
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    for module, _ in modes:
        if getattr(module, "support_avx512bf16_for_cpu", False):
            module.training = True
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
