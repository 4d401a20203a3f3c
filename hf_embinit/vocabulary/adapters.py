"""Adapters that carry their vocabulary: the rows and the manifest of a grown model, beside its PEFT adapter.

An adapter holds what was trained. New tokens need more: how many rows the tables have, and what stands in
them. `embinit.json` and `embinit.safetensors` say so, and `load_adapter` grows a base model by them.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Iterable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback

from ..arguments import FilePath, checked
from ..errors import EmbinitError, InvalidArgumentError, UnsupportedModelError, VocabularyWarning
from ..foreign import reason
from ..hub import checkpoint_file
from ..manifest import read_manifest
from ..tables import EmbeddingTables, RowsOf, Side, unwrap
from .adapter_files import (
    HINT,
    MANIFEST,
    read_vocabulary,
    sizes_at,
)
from .adapters_on_disk import attach_adapter
from .carried_rows import (
    bare_tables,
    biases_of,
    remember_whole,
    save_from_one_process,
    tables_of,
    ties_of,
    warn_of_untold_rows,
    wrapped,
)
from .old_rows import check_old_rows
from .peft_configuration import let_heads_tell_their_bias

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel


@checked
def load_adapter(
    base: Any,
    adapter: FilePath,
    *,
    revision: str | None = None,
    subfolder: str | None = None,
    **options: Any,
) -> PeftModel:
    """`base` with an adapter's vocabulary and the adapter on top, in place.

    Grows the tables of `base` to the adapter's size, puts its rows in, and gives what
    `PeftModel.from_pretrained` makes of it; `options` are that function's. `adapter` is a folder or a Hub id,
    with its files in `subfolder`; `base` a loaded model or, to be merged and written by `save_checkpoint`,
    one of `open_checkpoint`. A base that has grown alike already, up to some event of the adapter's manifest,
    is as good. Of what holds a model, such as a SentenceTransformer, that model gets both, and what holds it
    runs with them.

    Raises:
        DataNotFoundError: `adapter` has no vocabulary with it, or no weights.
        InvalidArgumentError: that vocabulary is of an adapter saved there before, `base` has another size,
            other old rows or another manifest, an option is misspelt, or PEFT cannot put the adapter on it:
            then alone is `base` changed, and the error says so.
        UnsupportedModelError: an opened `base`, and an adapter that is more than one sum for each tensor.
    """
    _refuse_misspelt(options)
    manifest, rows = read_vocabulary(adapter, revision, subfolder)
    grow(base, manifest, rows, str(adapter))
    base = unwrap(base)
    let_heads_tell_their_bias(base)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f".*{HINT}")
        try:
            model = attach_adapter(base, adapter, revision=revision, subfolder=subfolder, **options)
        except (EmbinitError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever PEFT raises for what stands in an adapter's files or `options`
            raise InvalidArgumentError(
                f"{adapter} cannot be put on base: {reason(error)}. base is changed by now: load it anew"
            ) from error
    check_nothing_left_out(model, adapter, revision, subfolder)
    carry_vocabulary(model)
    return model


def _refuse_misspelt(options: Iterable[str]) -> None:
    """Raises `InvalidArgumentError` for what is nearly an argument of PEFT's, which takes all it is given."""
    from peft import PeftModel

    known = inspect.signature(PeftModel.from_pretrained).parameters
    for name in options:
        if name not in known and (close := difflib.get_close_matches(name, known, 1, 0.85)):
            raise InvalidArgumentError(f"{name}= is no argument of load_adapter: did you mean {close[0]}=?")


@checked
def carry_vocabulary(model: PeftModel) -> None:
    """Makes every later `model.save_pretrained(folder)` write the vocabulary beside each adapter, also beside
    those that are added later. Warns of rows that transformers' own resize made, which leaves no event.

    Raises `UnsupportedModelError` for a head that is trained twice, which PEFT trains and then cannot run:
    TRL's `chat_template_path` makes one of a model whose tables are tied."""
    base = unwrap(model)
    _refuse_a_head_trained_twice(base)
    warn_of_untold_rows(base)
    for config in model.peft_config.values():
        carry_by_config(config, base)
    remember_whole(base)
    model.save_pretrained = partial(save_adapters, model)  # type: ignore[method-assign]


def _refuse_a_head_trained_twice(base: PreTrainedModel) -> None:
    for name, module in base.named_modules():
        twice = type(module).__name__ == "TrainableTokensWrapper"
        if twice and type(wrapped(module)).__name__ == "ModulesToSaveWrapper":
            raise UnsupportedModelError(
                f"{name} is in modules_to_save, and its table, tied to the embedding, in "
                "trainable_token_indices: PEFT cannot run such an adapter once it is trained. Give "
                "peft_config_for_new_tokens(model, token_ids) alone. If TRL's chat_template_path made it: "
                "clone the chat template before, by `with hf_embinit.patched(): model, tokenizer, new = "
                "clone_chat_template(...)`, and give the trainer peft_config_for_new_tokens(model, new)"
            )


def save_adapters(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What the model's class saves, with the vocabulary beside each adapter that it has by now."""
    for config in self.peft_config.values():
        carry_by_config(config, unwrap(self))
    return type(self).save_pretrained(self, *args, **kwargs)


def carry_by_config(config: PeftConfig, model: PreTrainedModel) -> None:
    """Makes a PEFT configuration, whenever an adapter is saved with it, write the vocabulary of `model`."""
    config.embinit_model = _Reference(model)  # type: ignore[attr-defined]
    config.save_pretrained = partial(save_pretrained, config)  # type: ignore[method-assign]


def save_pretrained(self: Any, save_directory: str, **kwargs: Any) -> None:
    """Saves a PEFT configuration, and with it the vocabulary of the model that it was made for."""
    type(self).save_pretrained(self, save_directory, **kwargs)
    model = self.embinit_model()
    if model is None:
        warnings.warn(
            f"the model whose vocabulary grew is gone: {save_directory} has its adapter without new rows; "
            f"hf_embinit.save_vocabulary(model, folder) writes them beside it",
            VocabularyWarning,
            stacklevel=3,
        )
    else:
        save_from_one_process(model, save_directory)


def load_rows_too(self: Any, model_id: str | PathLike[str], *args: Any, **kwargs: Any) -> Any:
    """What the PEFT model's class loads, and the rows beside that adapter put into the tables."""
    loaded = type(self).load_adapter(self, model_id, *args, **kwargs)
    subfolder = kwargs.get("subfolder")
    if Path(model_id, subfolder or "", MANIFEST).is_file():
        manifest, rows = read_vocabulary(model_id, None, subfolder)
        tables = bare_tables(unwrap(self))
        for side, at in manifest["sides"].items():
            if tables.vocab_size(side) != at["rows"] or ties_of(tables) != manifest["tied"]:
                raise InvalidArgumentError(f"{model_id} is of a model with other tables than this one")
            tables.change(None, _writes(tables, side, at["ids"], rows))
    return loaded


class VocabularyCallback(TrainerCallback):
    """Trainer callback: each checkpoint of a PEFT model whose vocabulary grew carries manifest and rows."""

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Prepares a PEFT model for saving, and its head for TRL's loss."""
        if hasattr(model, "peft_config"):
            carry_vocabulary(model)
            let_heads_tell_their_bias(unwrap(model))

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Writes what is missing, for trainers that save an adapter in another way."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        inside = folder.is_dir() and not (folder / MANIFEST).is_file()
        if inside and state.is_world_process_zero and hasattr(unwrap(model), "peft_config"):
            save_from_one_process(unwrap(model), folder)


def grow(base: nn.Module, manifest: dict[str, Any], rows: dict[str, Tensor], name: str) -> None:
    """Gives `base` the vocabulary of a manifest and its rows. Checks first; `name` is what errors call it."""
    model = unwrap(base)
    if hasattr(model, "peft_config"):
        raise InvalidArgumentError("base has an adapter already: load the plain model first")
    tables = EmbeddingTables(model)
    sizes = sizes_at(manifest["events"], read_manifest(model), name)
    lacking = set(manifest["tables"]) - {table.name for table in tables.tables}
    if lacking:
        raise InvalidArgumentError(
            f"base, a {type(model).__name__}, has no {min(lacking)}, of which {name} has rows: give the base "
            f"it was made on"
        )
    if ties_of(tables) != manifest["tied"]:
        raise InvalidArgumentError(
            f"base ties its tables otherwise than {name} does: {ties_of(tables)}, not {manifest['tied']}"
        )
    for side, at in manifest["sides"].items():
        have, expected = tables.vocab_size(side), sizes.get(side, at["rows"])
        if have != expected:
            raise InvalidArgumentError(
                f"base has {have} rows, but {name} was trained on a model of {expected} before it grew to "
                f"{at['rows']}: give that one"
            )
        for table in tables_of(tables, side):
            if table.name not in rows or table.name not in manifest["tables"]:
                raise InvalidArgumentError(
                    f"{name} has no rows for {table.name}: give the base it was made on"
                )
            check_old_rows(tables, table, at["ids"], manifest["tables"][table.name], name)
        for bias_name, _ in biases_of(tables, side):
            if bias_name not in rows:
                raise InvalidArgumentError(
                    f"{name} has no entries for {bias_name}: give the base it was made on"
                )

    separate = bool(tables.output_tables) and all(t.tied_to is None for t in tables.output_tables)

    def record() -> None:
        model.config.embinit = manifest["events"]
        for config in (model.config, model.config.get_text_config()) if separate else ():
            if getattr(config, "tie_word_embeddings", False):
                config.tie_word_embeddings = False  # PEFT goes by it, and would load one table into both

    sides = manifest["sides"].items()
    plans = [tables.plan(at["rows"], side=side) for side, at in sides]
    writes = [write for side, at in sides for write in _writes(tables, side, at["ids"], rows)]
    tables.change(plans, writes, record)


def _writes(tables: EmbeddingTables, side: Side, ids: list[int], rows: dict[str, Tensor]) -> list[RowsOf]:
    """The rows of a vocabulary that came beside an adapter, and the entries of its heads' biases."""
    writes = [RowsOf(table, ids, rows[table.name]) for table in tables_of(tables, side)]
    for table in tables.output_tables:
        if table.side == side and table.bias:
            values = [rows[tied.name] for tied in table.bias]
            writes.append(RowsOf(table, (), biases=values, bias_ids=ids))
    return writes


class _Reference:
    """A model that a configuration knows without keeping it alive, copying it or pickling it; copied with the
    model, it is of the copy."""

    def __init__(self, model: PreTrainedModel | None) -> None:
        self._model = None if model is None else ref(model)

    def __call__(self) -> PreTrainedModel | None:
        return None if self._model is None else self._model()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Reference:
        return _Reference(memo.get(id(self()), self()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Reference, (None,)


_SAVED_TWICE = (".modules_to_save.", ".original_module.", ".base_layer.", ".token_adapter.")


def check_nothing_left_out(
    model: PeftModel,
    adapter: str | PathLike[str],
    revision: str | None = None,
    subfolder: str | None = None,
) -> None:
    """Raises `InvalidArgumentError` where PEFT did not load every tensor of an adapter: LoRA on two tied
    tables, or a classifier on a base that has none."""
    from peft import get_peft_model_state_dict
    from safetensors import safe_open

    file = checkpoint_file(adapter, "adapter_model.safetensors", revision, subfolder)
    if file is None:
        return
    with safe_open(file, "pt") as stored:
        saved = {key for key in stored.keys() if not any(part in key for part in _SAVED_TWICE)}  # noqa: SIM118
    config = model.peft_config[model.active_adapters[0]]
    prefix = "base_model." if config.is_prompt_learning else "base_model.model."
    loaded = get_peft_model_state_dict(
        model, adapter_name=model.active_adapters[0], save_embedding_layers=False
    ).keys() | {prefix + name for name in unwrap(model).state_dict()}
    again = (
        "lora_magnitude_vector.weight",
        "lora_magnitude_vector",
    )  # DoRA of an embedding, under both names
    left = sorted(key for key in saved if not {key, key.replace(*again)} & loaded)
    if left and "lora_" not in left[0]:
        raise InvalidArgumentError(
            f"{adapter} has {left[0].removeprefix(prefix)}, which {type(unwrap(model)).__name__} lacks: "
            f"give load_adapter a base of the class that PEFT's AutoPeftModel of that task loads"
        )
    if left:
        raise InvalidArgumentError(
            f"PEFT left {len(left)} tensors of {adapter} out, such as {left[0]}: it cannot load LoRA on both "
            f"of two tied tables that was trained with ensure_weight_tying=True; train it with False"
        )
