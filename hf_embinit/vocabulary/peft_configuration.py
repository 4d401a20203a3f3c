"""`peft_config_for_new_tokens`: training new rows by PEFT."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..arguments import RowId, checked
from ..errors import InvalidArgumentError, UnsupportedModelError
from ..tables import EmbeddingTables, Side, Table, configured_tie
from .carried_rows import remember_whole, warn_of_untold_rows
from .new_row_training import adapter_trains_rows, checked_ids, token_modules

if TYPE_CHECKING:
    from peft import PeftConfig


@checked
def peft_config_for_new_tokens(
    model: Any, token_ids: Sequence[RowId] | Tensor, *, side: Side = "shared", **lora_options: Any
) -> PeftConfig:
    """A PEFT configuration that trains and saves the rows of `token_ids`, in input and output tables.

    `lora_options` are those of `LoraConfig`; without `target_modules` nothing but those rows is trained.
    `target_modules` and `modules_to_save` may not have the modules of those rows: PEFT trains these one way.
    Expand the vocabulary first, then wrap, or hand the configuration to a trainer of TRL (`peft_config=`).
    An adapter that is saved with it carries manifest and initial rows: `load_adapter` needs the base alone.

    TRL computes its loss from the weight and the bias of the head, and a head that PEFT wrapped has a weight
    with the trained rows, but no bias to ask for. So `model.get_output_embeddings` is given a version, on
    this instance alone, that answers None. A trainer that loads the model itself, from a name, has another
    instance: give it the model, or `callbacks=[VocabularyCallback()]`.

    Raises `UnsupportedModelError` where PEFT 0.21 would train something else: it ties modules by
    `config.tie_word_embeddings`, not by the tensors, so that T5's three embeddings beside a separate head (as
    in Flan-T5) are not one to it, and it drops the bias of a head that it wraps.
    """
    from peft import LoraConfig
    from peft.utils.constants import DUMMY_TARGET_MODULES

    from .adapters import carry_by_config

    if adapter_trains_rows(model):
        raise UnsupportedModelError(
            "an adapter trains rows of this model: make the configurations of all its adapters before the "
            "first is added (get_peft_model, add_adapter)"
        )
    tables = EmbeddingTables(model)
    ids = checked_ids(tables, token_ids, side).tolist()
    for table in tables.tables:
        if table.side == side:
            _refuse_what_peft_mistakes(tables, table)
    rows = dict.fromkeys(token_modules(tables, side), ids)
    known = [field.name for field in fields(LoraConfig)]
    for name in lora_options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InvalidArgumentError(
                f"{name}= is no option of LoraConfig" + (f": did you mean {near[0]}=?" if near else "")
            )
    if "trainable_token_indices" in lora_options:
        raise InvalidArgumentError("trainable_token_indices= is what token_ids= fills: give one of them")
    warn_of_untold_rows(tables.model)
    let_heads_tell_their_bias(tables.model)
    targets = {"target_modules": DUMMY_TARGET_MODULES} | lora_options
    config = LoraConfig(trainable_token_indices=rows, **targets)
    _refuse_rows_trained_twice(config, tables, side)
    carry_by_config(config, tables.model)
    remember_whole(tables.model)
    return config


def _refuse_rows_trained_twice(config: Any, tables: EmbeddingTables, side: Side) -> None:
    """What else a configuration trains must not be a module with those rows: PEFT stops there when it wraps
    the model, or only when it merges it."""
    from peft.tuners.tuners_utils import check_target_module_exists

    places = [place for table in tables.tables if table.side == side for place in table.tied.locations]
    for name in dict.fromkeys(place.name.rpartition(".")[0] for place in places):
        whole = any(name == one or name.endswith(f".{one}") for one in config.modules_to_save or ())
        if whole or (config.target_modules != "all-linear" and check_target_module_exists(config, name)):
            option = "modules_to_save" if whole else "target_modules"
            raise InvalidArgumentError(
                f"{option}={getattr(config, option)} has {name}, whose rows token_ids= trains: leave it out"
            )


def _refuse_what_peft_mistakes(tables: EmbeddingTables, table: Table) -> None:
    if table.role == "output":
        said = bool(configured_tie(tables.model.config))
        tied = table.tied_to is not None
        if tied != said:
            first = next(t.name for t in tables.input_tables if t.side == table.side)
            raise UnsupportedModelError(
                f"{table.name} is {'tied to' if tied else 'separate from'} {first}, but "
                f"config.tie_word_embeddings={said} is what PEFT goes by: set it to {tied} first"
            )
        if getattr(table.module, "bias", None) is not None:
            raise UnsupportedModelError(
                f"the head {table.name} has a bias, which PEFT drops when it trains single rows: "
                "use train_new_rows_only instead"
            )
    modules = [place.name.rpartition(".")[0] for place in table.tied.locations]
    if len(modules) > 1 and not configured_tie(tables.model.config):
        raise UnsupportedModelError(
            f"{', '.join(modules)} read one table, of which PEFT would train the first alone where the head "
            "is a table of its own: use train_new_rows_only instead"
        )
    if table.tied_to is None and not isinstance(table.module, nn.Embedding | nn.Linear):
        raise UnsupportedModelError(
            f"PEFT cannot train single rows of {table.name}, a {type(table.module).__name__}: "
            "use train_new_rows_only instead"
        )


def let_heads_tell_their_bias(model: PreTrainedModel) -> None:
    """Makes `model.get_output_embeddings()` give wrapped heads that answer `bias`, on this instance alone."""
    model.get_output_embeddings = partial(get_output_embeddings, model)  # type: ignore[method-assign]


def get_output_embeddings(self: PreTrainedModel) -> nn.Module | None:
    """What the model's class gives; a head whose single rows PEFT trains has no bias, and says so."""
    head = type(self).get_output_embeddings(self)
    if type(head).__name__ == "TrainableTokensWrapper" and not hasattr(head, "bias"):
        head.register_parameter("bias", None)
    return head
