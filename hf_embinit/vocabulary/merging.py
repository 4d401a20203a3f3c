"""`merge_adapter`: base and adapter as one plain checkpoint, tied as its tensors are."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..arguments import Tokenizer, checked
from ..errors import InvalidArgumentError, UnsupportedModelError
from ..foreign import reason
from ..manifest import record_event, warn_of_another_tokenizer
from ..tables import EmbeddingTables, checkpoint_of, own_parameter, untie_configuration, unwrap
from ..tokens import tokenizer_of
from .adapters_on_disk import defer
from .carried_rows import bare_tables
from .new_ids import check_size

if TYPE_CHECKING:
    from peft import PeftModel


@checked
def merge_adapter(model: PeftModel, tokenizer: Tokenizer | None = None) -> PreTrainedModel:
    """The model with its active adapter in its weights, to be saved by `save_pretrained`; in place.

    PEFT adds the change of one tied table to the other as well; here each table gets its own. Tables that are
    equal afterwards stay tied. Others, such as a head that was trained apart, are untied, and
    `config.tie_word_embeddings` says so: with the old configuration a reload would put the embedding in the
    head's place.

    A model of `open_checkpoint` is merged when `save_checkpoint` writes it, one matrix after the other: only
    the adapter, tables that it trained as a whole and one matrix with its change are ever in memory.

    An adapter brings no generation configuration. With the `tokenizer` that was trained with, texts end
    where its end-of-sequence token says: an id that the configurations lack is added to theirs, or put in the
    place of the only one. Raises `InvalidArgumentError` for a model without an adapter,
    `UnsupportedModelError` for one that cannot be merged, which stays as it is: of virtual tokens (prompt and
    prefix tuning), with replicated layers, with LoRA around a head whose tied rows are trained, or refused by
    PEFT; of what that had merged by then the change is subtracted again, to rounding.
    """
    _refuse_what_cannot_be_merged(model)
    base = unwrap(model)
    said = [
        c for c in (base.config, base.config.get_text_config()) if getattr(c, "tie_word_embeddings", False)
    ]
    bare = bare_tables(base)
    tokenizer = tokenizer_of(tokenizer)
    eos: Any = getattr(tokenizer, "eos_token_id", None)
    if eos is not None:
        check_size(bare, eos + 1, max(table.num_embeddings for table in bare.tables), "the tokenizer")
    tied = [table for table in bare.output_tables if table.tied_to is not None]
    before = [(place, place.tensor) for table in bare.tables for place in table.tied.locations]
    modules = [(module, dict(module._modules)) for module in base.modules()]
    stored = checkpoint_of(base)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All adapters are already merged")
        warnings.filterwarnings("ignore", ".*no longer tied after merging")  # here they are, where equal
        try:
            for table in tied:
                own_parameter(table)
            apart = [] if stored is not None else _apart(base)
            if stored is not None:
                defer(model, bare_tables(base))
            merged = unwrap(model.merge_and_unload())
        except (RuntimeError, ValueError, UnsupportedModelError) as error:
            _take_apart(modules)
            for place, tensor in before:
                setattr(place.module, place.attribute, tensor)
            if isinstance(error, UnsupportedModelError):
                raise
            raise UnsupportedModelError(f"PEFT cannot merge this adapter: {reason(error)}") from error
    vars(merged).pop("peft_config", None)
    for config in said:
        config.tie_word_embeddings = True  # PEFT has set it to False, since the tables are two now
    for first, name in apart:  # before their outputs
        one, other = merged.get_parameter(first), merged.get_parameter(name)
        if _equal(one, other):
            module, _, attribute = name.rpartition(".")
            setattr(merged.get_submodule(module), attribute, one)
    if said or getattr(merged, "all_tied_weights_keys", None):
        _tie_what_is_equal(merged, {table.name for table in tied})
    else:  # ensure_weight_tying of PEFT 0.18 ties what a reload does not
        for table in EmbeddingTables(merged).output_tables:
            if table.tied_to is not None:
                own_parameter(table)
    configs: list[Any] = [merged.config, merged.config.get_text_config()]
    configs.append(getattr(merged, "generation_config", None))  # None for a model that does not generate
    for ending in configs if eos is not None else ():
        _end_at(ending, eos)
    warn_of_another_tokenizer(merged, tokenizer)
    record_event(merged.config, "merge_adapter")
    return merged


def _take_apart(modules: list[tuple[nn.Module, dict[str, nn.Module | None]]]) -> None:
    """Puts back what PEFT unwrapped, and takes out of the weights what it merged."""
    for module, children in modules:
        module._modules.clear()
        module._modules.update(children)
    for module, _ in modules:
        unmerge: Any = getattr(module, "unmerge", None)
        if unmerge is not None and getattr(module, "merged_adapters", None):
            unmerge()


def _refuse_what_cannot_be_merged(model: PeftModel) -> None:
    if hasattr(model, "prompt_encoder"):
        raise UnsupportedModelError(
            f"{type(model).__name__} has an adapter of virtual tokens, which no weight can hold: serve it as "
            f"load_adapter gives it"
        )
    if not hasattr(model, "merge_and_unload"):
        raise InvalidArgumentError(f"{type(model).__name__} has no adapter to merge: see load_adapter")
    if any(getattr(model.peft_config[name], "layer_replication", None) for name in model.active_adapters):
        raise UnsupportedModelError(
            "the adapter has layer_replication, whose layers share one matrix and change it each in its own "
            "way: it cannot be merged"
        )
    _refuse_lora_around_rows(unwrap(model))
    _refuse_bias_without_place(unwrap(model))


def _refuse_lora_around_rows(base: PreTrainedModel) -> None:
    for name, module in base.named_modules():
        if type(getattr(module, "base_layer", None)).__name__ == "TrainableTokensWrapper":
            raise UnsupportedModelError(
                f"{name} has LoRA, and its table, tied to it, single rows in trainable_token_indices: PEFT "
                f"runs such an adapter and cannot merge it. Serve it as load_adapter gives it, or train "
                f"without {name.rpartition('.')[2]} in target_modules"
            )


def _refuse_bias_without_place(base: PreTrainedModel) -> None:
    """PEFT finds it in the midst of a merge, with the layer's weight changed."""
    for name, module in base.named_modules():
        told: Any = getattr(module, "lora_bias", None)
        if not isinstance(told, dict) or getattr(module.base_layer, "bias", None) is not None:
            continue
        if any(told.get(one) for one in module.active_adapters):
            raise UnsupportedModelError(
                f"the adapter has lora_bias=True, and {name} has no bias that could take it up: it cannot be "
                f"merged. Serve it as load_adapter gives it, or train with lora_bias=False"
            )


def _apart(base: PreTrainedModel) -> list[tuple[str, str]]:
    """Gives each module of an input table a parameter of its own, where an adapter is around several; gives
    the names of the first and of each other."""
    found = []
    for table in bare_tables(base).input_tables:
        places = table.tied.locations
        wrapped = {id(m.base_layer) for m in base.modules() if hasattr(m, "base_layer")}
        if sum(id(place.module) in wrapped for place in places) > 1:
            for place in places[1:]:
                old = place.tensor
                own = torch.nn.Parameter(old.detach().clone(), old.requires_grad)
                setattr(place.module, place.attribute, own)
                found.append((places[0].name, place.name))
    return found


def _end_at(config: Any, eos: int) -> None:
    """Lets generation end at an id; several ids stay."""
    known = getattr(config, "eos_token_id", None)
    if isinstance(known, (list, tuple)):
        config.eos_token_id = [*known, *({eos} - set(known))]
    elif config is not None and known != eos:
        config.eos_token_id = eos


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    return all(torch.equal(x, y) for x, y in zip(a.split(2**12), b.split(2**12), strict=True))


def _tie_what_is_equal(model: PreTrainedModel, were_tied: set[str]) -> None:
    """Ties output tables to their input table again where they are equal, else unties the configuration."""
    tables = EmbeddingTables(model)
    for output in tables.output_tables:
        source = next((t for t in tables.input_tables if t.side == output.side), None)
        if source is None or output.name not in were_tied:
            continue
        if _equal(tables.read(output), tables.read(source)):
            place = next(place for place in output.tied.locations if place.name == output.name)
            setattr(place.module, place.attribute, source.parameter)
            continue
        untie_configuration(model, output)
