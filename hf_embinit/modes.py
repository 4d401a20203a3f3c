"""A model as it is used: without dropout, and afterwards as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Inside, every module of a model is in evaluation mode; afterwards each in the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
