"""The `evaluate` modules that come with this package, by name; they work offline."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import checked, shown
from ..errors import InvalidArgumentError, UnknownNameError

if TYPE_CHECKING:
    import evaluate

_MODULES = Path(__file__).parent / "modules"


def list_metrics() -> list[str]:
    """Names of the `evaluate` modules that come with this package."""
    return sorted(m.name for m in pkgutil.iter_modules([str(_MODULES)]))


@checked
def metric_path(name: str) -> str:
    """The file of an `evaluate` module: `evaluate.load(metric_path("bleu"))` works offline."""
    if name not in list_metrics():
        raise UnknownNameError("metric", name, list_metrics())
    return str(_MODULES / f"{name}.py")


@checked
def load_metric(name: str, **options: Any) -> evaluate.EvaluationModule:
    """An instance of the `evaluate` module `name` that computes in each process alone and leaves no files.

    `Trainer` hands `compute_metrics` the predictions of all ranks on every rank, so each computes the same
    result. To have `evaluate` gather over processes instead, give `num_process`, `process_id`,
    `experiment_id` (as `evaluate.load` takes them); then only process 0 gets a result, the others None.
    Raises `UnknownNameError` for another name and `InvalidArgumentError` for another option.
    """
    metric_path(name)
    module = importlib.import_module(f"{__package__}.modules.{name}")
    cls = next(c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__)
    known = [name for name in inspect.signature(cls).parameters if name != "kwargs"]
    for option, value in options.items():
        if option not in known:
            raise InvalidArgumentError(
                f"{option}={shown(value)} is no option of {name!r}: expected {', '.join(known)}; what the "
                "scores themselves take goes to compute()"
            )
    options.setdefault("keep_in_memory", options.get("num_process", 1) == 1)
    return cls(**options)
