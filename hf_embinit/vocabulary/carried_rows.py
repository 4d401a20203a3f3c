"""The vocabulary of a grown model beside an adapter: what is written there, by which process, and when."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from ..arguments import FilePath, checked
from ..disk import writing
from ..errors import EmbinitError, UnsupportedModelError, VocabularyWarning
from ..files import replaced_files
from ..hub import cache_only, load_pretrained
from ..manifest import package_version, read_manifest
from ..tables import EmbeddingTables, Side, Table, is_partitioned, is_sharded, unwrap
from .adapter_files import MANIFEST, ROWS, grown_ids, leave_hint, rows_told
from .old_rows import describe_old_rows


@checked
def save_vocabulary(model: nn.Module, folder: FilePath) -> bool:
    """Writes manifest and new rows of a grown model into `folder`; False where its vocabulary did not grow,
    and those of an earlier adapter, if any, are removed.

    The rows are those of the tables themselves, without what an adapter puts in their place: the initial
    ones, or trained ones where `train_new_rows_only` moved them. `model` may be wrapped by PEFT. Of tables
    that FSDP2 or ZeRO-3 spread over processes: call it in every one, the first of which writes.
    """
    base = unwrap(model)
    found = vocabulary_of(base)
    if found is None:
        with writing(folder):
            for name in (MANIFEST, ROWS):
                Path(folder, name).unlink(missing_ok=True)
        return False
    if not _is_spread(base) or dist.get_rank() == 0:
        _write(folder, *found)
    return True


def _write(folder: FilePath, tensors: dict[str, Tensor], manifest: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    with writing(folder), replaced_files(folder) as hidden:
        save_file(tensors, hidden / ROWS, metadata={"format": "pt"})
        (hidden / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        leave_hint(Path(folder), hidden)


def vocabulary_of(base: PreTrainedModel) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """New rows and the manifest that goes with them; None where no event tells of any."""
    events = read_manifest(base)
    grown = grown_ids(events)
    if not grown:
        return None
    tables = bare_tables(base)
    tensors: dict[str, Tensor] = {}
    described: dict[str, Any] = {}
    sides: dict[str, Any] = {}
    for side, ids in grown.items():
        rows = tables.vocab_size(side)
        untold = range(rows_told(events, side) or rows, rows)  # a plain resize, which leaves no event
        kept = sorted({*(i for i in ids if i < rows), *untold})
        sides[side] = {"rows": rows, "ids": kept}
        for table in tables_of(tables, side):
            tensors[table.name] = tables.read(table)[kept].cpu().contiguous()
            described[table.name] = {"side": side, **describe_old_rows(tables, table, kept)}
        for name, bias in biases_of(tables, side):
            tensors[name] = bias[kept].cpu().contiguous()
    manifest = {"version": package_version(), "events": events, "sides": sides, "tables": described}
    manifest["tied"] = ties_of(tables)
    return tensors, manifest


def warn_of_untold_rows(base: PreTrainedModel) -> None:
    """Warns where a model has more rows than the checkpoint that it is of, and no event tells of them."""
    name = str(getattr(base, "name_or_path", "") or "")
    if grown_ids(read_manifest(base)) or not name:
        return
    try:
        with cache_only():
            saved = load_pretrained(AutoConfig, name, f"the base {name!r}")
    except EmbinitError:  # nothing to compare with
        return
    before = vars(saved.get_text_config()).get("vocab_size")
    rows = max(table.num_embeddings for table in bare_tables(base).tables)
    if before is not None and rows > before:
        warnings.warn(
            f"the model has {rows} rows, its checkpoint {name} has {before}, and config.embinit tells of no "
            f"new ones, so that they are not saved beside the adapter: grow the model by "
            f"hf_embinit.patch or expand_vocabulary, or save it and train the adapter on what was saved",
            VocabularyWarning,
            stacklevel=4,
        )


_WHOLE: WeakKeyDictionary[PreTrainedModel, tuple[dict[str, Tensor], dict[str, Any]]] = WeakKeyDictionary()
"""The vocabulary of models that several processes train, from before they were spread over these."""


def remember_whole(base: PreTrainedModel) -> None:
    """Where several processes run, which may spread the tables, keeps the vocabulary as it is now; to be
    called in each of them."""
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if (several or os.environ.get("WORLD_SIZE", "1") != "1") and (found := vocabulary_of(base)):
        _WHOLE[base] = found


def forget_whole(base: PreTrainedModel) -> None:
    """Called where rows of the tables themselves are trained from now on."""
    _WHOLE.pop(base, None)


def _is_spread(base: PreTrainedModel) -> bool:
    """Whether reading the tables takes all of several processes: FSDP2 or ZeRO-3 spread them."""
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    tensors = [table.tied.tensor for table in bare_tables(base).tables] if several else []
    return any(is_sharded(tensor) or is_partitioned(tensor) for tensor in tensors)


def save_from_one_process(model: PreTrainedModel, folder: FilePath) -> None:
    """`save_vocabulary` where the other processes may do something else: nothing is read from them."""
    if not _is_spread(model):
        save_vocabulary(model, folder)
        return
    events = read_manifest(model)
    found = _WHOLE.get(model)
    if found is not None and found[1]["events"] == events:
        _write(folder, *found)
    elif grown_ids(events):
        warnings.warn(
            f"the tables are spread over the processes, and {folder} has its adapter without new rows: "
            f"hf_embinit.save_vocabulary(model, folder), called in every process, writes them beside it",
            VocabularyWarning,
            stacklevel=4,
        )


def bare_tables(model: PreTrainedModel) -> EmbeddingTables:
    """The tables of a model as they are under the adapters that PEFT put around them."""
    replaced: list[tuple[nn.Module, str, nn.Module]] = []
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            inner = child
            while (below := wrapped(inner)) is not None:
                inner = below
            if child is not None and inner is not child:
                replaced.append((module, name, child))
                module._modules[name] = inner
    try:
        return EmbeddingTables(model)
    finally:
        for module, name, child in replaced:
            module._modules[name] = child


def wrapped(module: nn.Module | None) -> nn.Module | None:
    """The module that a layer of PEFT stands around, if it is one."""
    if "peft" not in sys.modules:
        return None
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    if isinstance(module, AuxiliaryTrainingWrapper):
        return module.original_module
    return module.base_layer if isinstance(module, BaseTunerLayer) else None


def tables_of(tables: EmbeddingTables, side: Side) -> list[Table]:
    own = [table for table in tables.own_tables if table.side == side]
    for table in own:
        if table.extra_rows:
            raise UnsupportedModelError(
                f"{table.name} has rows beside those of the vocabulary, which an adapter cannot carry: save "
                f"the whole model"
            )
    return own


def biases_of(tables: EmbeddingTables, side: Side) -> Iterator[tuple[str, Tensor]]:
    for table in tables.output_tables:
        if table.side == side:
            for tied, bias in zip(table.bias, tables.biases(table), strict=True):
                yield tied.name, bias


def ties_of(tables: EmbeddingTables) -> dict[str, str | None]:
    return {table.name: table.tied_to for table in tables.output_tables}
