"""Output tables untied from their input table: a parameter of their own, and a model that saves it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from ..errors import InvalidArgumentError, UnsupportedModelError
from .checkpoint import checkpoint_of
from .embedding_tables import EmbeddingTables
from .memory import require_memory
from .table import Location, Table, is_partitioned


def own_parameter(output: Table) -> None:
    """Gives an output table that is tied a parameter of its own, equal to what it had."""
    _own(next(place for place in output.tied.locations if place.name == output.name))


def _own(place: Location) -> None:
    old = place.tensor
    setattr(place.module, place.attribute, nn.Parameter(old.detach().clone(), old.requires_grad))


def untie_configuration(model: PreTrainedModel, output: Table) -> None:
    """Has a model save and load an output table that has a parameter of its own, and its biases: BERT's hangs
    in two places, which are tied as long as the tables are."""
    for place in [*_bias_places(output), *_input_places(model)]:
        _own(place)
    for holder, name, value in _settings(model, output):
        setattr(holder, name, value)


def configured_tie(config: PretrainedConfig) -> bool | None:
    """What a configuration says of the tie of input and output; None where it says nothing. Of a composite
    model that of the whole counts, to transformers and PEFT, and where it is silent its language model's."""
    for one in (config, config.get_text_config()):
        said = getattr(one, "tie_word_embeddings", None)
        if said is not None:
            return bool(said)
    return None


@contextlib.contextmanager
def untied(model: PreTrainedModel) -> Iterator[None]:
    """Unties every output table of a model; ties them again if the block raises.

    Raises `UnsupportedModelError` for an encoder-decoder, as some scale logits when they are tied,
    for a model of `open_checkpoint` and for one that ZeRO-3 has sharded; `InvalidArgumentError` for one
    without an output table.
    """
    tables = EmbeddingTables(model)
    if not tables.output_tables:
        raise InvalidArgumentError(
            f"untie=True: {type(model).__name__} has no output table (load it with its language-model head)"
        )
    refusals = (
        (model.config.is_encoder_decoder, "an encoder-decoder: leave untie= out"),
        (checkpoint_of(model) is not None, "opened on the disk: load it with from_pretrained"),
        (any(map(is_partitioned, model.parameters())), "sharded by ZeRO-3: untie it before that"),
    )
    for why in (why for refused, why in refusals if refused):
        raise UnsupportedModelError(f"untie=True: {type(model).__name__} is {why}")
    tied = [table for table in tables.output_tables if table.tied_to is not None]
    for table in tied:
        require_memory(table.parameter.nbytes, table.parameter.device, f"untying {table.name}")
    before: list[tuple[Any, str, Any]] = []
    for table in tied:
        own = next(place for place in table.tied.locations if place.name == table.name)
        places = [own, *_bias_places(table), *_input_places(model)]
        before += [(place.module, place.attribute, place.tensor) for place in places]
        before += [(holder, name, getattr(holder, name)) for holder, name, _ in _settings(model, table)]
    try:
        for table in tied:
            own_parameter(table)
            untie_configuration(model, table)
        yield
    except BaseException:
        for holder, name, value in reversed(before):
            setattr(holder, name, value)
        raise


def _bias_places(output: Table) -> list[Location]:
    """Where a bias of an output table hangs, beside its first place."""
    return [place for bias in output.bias for place in bias.locations[1:]]


def _input_places(model: PreTrainedModel) -> list[Location]:
    """Where input tables hang beside their first place because of the same setting, as in BART's encoder."""
    keys = getattr(model, "all_tied_weights_keys", None) or {}
    return [p for t in EmbeddingTables(model).input_tables for p in t.tied.locations if p.name in keys]


def _settings(model: PreTrainedModel, output: Table) -> list[tuple[Any, str, Any]]:
    """What says that the output is tied: (holder, attribute, value that says that it is not)."""
    configs = {id(one): one for one in (model.config, model.config.get_text_config())}
    found: list[tuple[Any, str, Any]] = [
        (one, "tie_word_embeddings", False) for one in configs.values() if isinstance(one, PretrainedConfig)
    ]
    apart = {output.name, *(place.name for bias in output.bias for place in bias.locations)}
    apart |= {place.name for table in EmbeddingTables(model).input_tables for place in table.tied.locations}
    for module in model.modules():
        keys = getattr(module, "all_tied_weights_keys", None)
        if isinstance(module, PreTrainedModel) and keys:  # else saving leaves the head out
            left = {name: source for name, source in keys.items() if name not in apart}
            found.append((module, "all_tied_weights_keys", left))
    return found
