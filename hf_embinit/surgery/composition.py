"""`apply`: a surgery, or several joined by `+`, done to a model from left to right."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from torch import nn

from ..arguments import Seed, Tokenizer, checked
from ..arguments import check as check_argument
from ..errors import InvalidArgumentError, UnknownNameError, UnsupportedModelError
from ..initialization import initialize
from ..initializers import NEEDED_VECTORS, Initializer, list_initializers, required
from ..manifest import record_event, warn_of_another_tokenizer
from ..tables import checkpoint_of, unwrap
from .registry import Operation, Surgery, list_surgeries

M = TypeVar("M", bound=nn.Module)


@dataclass
class _Step:
    """One part of a composition: what it takes, and a function that does it."""

    name: str
    options: set[str]
    needs_tokenizer: bool
    brings_tokenizer: bool
    tables_alone: bool
    check_options: Callable[[dict[str, Any]], None]
    run: Callable[[Operation, dict[str, Any]], None]


@checked
def apply(model: M, spec: str, tokenizer: Tokenizer | None = None, seed: Seed = 0, **options: Any) -> M:
    """Changes `model` in place as `spec` says and returns it; `config.embinit` records each step.

    Names compose from left to right: `reversed+shuffled_embeddings`. Any initialiser of whole tables
    (`xavier`, `bert_xavier`) is a surgery, too.

    Args:
        model: any transformers model; DistributedDataParallel and torch.compile wrappers are looked through.
        spec: a name of `surgery.list()` or of a table initialiser, or several joined by `+`, done in turn.
        tokenizer: needed by interventions that look at tokens.
        seed: of everything drawn. Each step starts from it, so that a composition is its steps applied one
            after the other. The global random state stays as it is.
        options: keyword options of the steps; each goes to every step that has it.

    Raises:
        UnknownNameError: a name that is neither; nothing was changed.
        InvalidArgumentError: an option or number that does not fit.
        UnsupportedModelError: a model that the intervention cannot be done on, such as layers of ALBERT. On
            a model of `open_checkpoint` only those can be done that need nothing but its tables.

    Names, options, a missing tokenizer and missing vectors are checked before the first step. A step that
    raises changes nothing itself, but those before it in a composition are done and recorded.
    """
    steps = _steps(spec)
    _check_all(spec, steps, tokenizer, options)
    operation = Operation(unwrap(model), tokenizer, seed)
    for step in steps if checkpoint_of(operation.model) is not None else ():
        if not step.tables_alone:
            raise UnsupportedModelError(
                f"surgery {step.name!r} needs more than the tables, and nothing else is read of a model of "
                f"open_checkpoint: load it with from_pretrained"
            )
    warn_of_another_tokenizer(operation.model, tokenizer)
    for step in steps:
        step.run(operation, {k: v for k, v in options.items() if k in step.options})
    return model


@checked
def check(spec: str, tokenizer: Tokenizer | bool | None = None, **options: Any) -> None:
    """Raises what `apply` would for names, options, a missing tokenizer and missing vectors, without a model.

    `tokenizer` may also be True, for one that is read later.
    """
    _check_all(spec, _steps(spec), None if tokenizer is False else tokenizer, options)


def changes_tables_alone(spec: str) -> bool:
    """Whether `apply` does all of `spec` on a model of `open_checkpoint`, too. Raises `UnknownNameError`."""
    return all(step.tables_alone for step in _steps(spec))


def _check_all(spec: str, steps: list[_Step], tokenizer: Any, options: dict[str, Any]) -> None:
    known = sorted(set().union(*(step.options for step in steps)))
    for option in options:
        if option not in known:
            has = f"its options: {', '.join(known)}" if known else "it has none"
            raise InvalidArgumentError(f"surgery {spec!r} has no option {option!r}; {has}")
    has_tokenizer = tokenizer is not None
    for step in steps:
        step.check_options(options)
        if step.needs_tokenizer and not has_tokenizer:
            raise InvalidArgumentError(f"surgery {step.name!r} looks at tokens: give tokenizer=")
        has_tokenizer = has_tokenizer or step.brings_tokenizer


def _steps(spec: str) -> list[_Step]:
    if not isinstance(spec, str) or not all(name.strip() for name in spec.split("+")):
        raise InvalidArgumentError(
            f"surgery {spec!r}: expected a name such as 'reversed', or names joined by '+'"
        )
    return [_find(name.strip()) for name in spec.split("+")]


def _find(name: str) -> _Step:
    for surgery in list_surgeries():
        arguments = surgery.match(name)
        if arguments is not None:
            return _surgery_step(name, surgery, arguments)
    records = list_initializers(purpose="table")
    initializers = {known: record for record in records for known in (record.name, *record.aliases)}
    if name in initializers:
        return _initialization_step(initializers[name])
    raise UnknownNameError("surgery", name, {*(surgery.name for surgery in list_surgeries()), *initializers})


def _surgery_step(name: str, surgery: Surgery, arguments: tuple[str, ...]) -> _Step:
    def run(operation: Operation, options: dict[str, Any]) -> None:
        details = surgery.fn(operation, *arguments, **options)
        stored = {k: v for k, v in options.items() if k not in details}
        record_event(
            operation.model.config, "surgery", surgery=name, seed=operation.seed, options=stored, **details
        )

    return _Step(
        name,
        set(surgery.options),
        surgery.needs_tokenizer,
        surgery.brings_tokenizer,
        surgery.tables_alone,
        lambda options: surgery.check_options(name, options),
        run,
    )


def _initialization_step(record: Initializer) -> _Step:
    own = {"model", "init", "tokenizer", "seed", "options"}

    def run(operation: Operation, options: dict[str, Any]) -> None:  # `initialize` records its own event
        initialize(
            operation.model, record.name, tokenizer=operation.tokenizer, seed=operation.seed, **options
        )

    def check_options(given: dict[str, Any]) -> None:
        hints = get_type_hints(inspect.unwrap(initialize), include_extras=True)
        for name in options & set(given) & set(hints):
            check_argument(f"surgery {record.name!r}: {name}", given[name], hints[name])
        record.check_options({name: value for name, value in given.items() if name in record.options})
        if "vectors" in record.needs and "vectors" not in record.defaults:
            required(given.get("vectors"), NEEDED_VECTORS, record.name)

    options = (set(inspect.signature(initialize).parameters) - own) | set(record.options)
    if "vectors" not in record.needs:
        options -= {"vectors", "target_vectors"}
    return _Step(record.name, options, "tokens" in record.needs, False, True, check_options, run)
