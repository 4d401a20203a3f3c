"""`forward_passes`: what `open_checkpoint` gave, able to run, with one layer in memory at a time."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from typing import Any

import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import is_accelerate_available
from transformers.utils import logging as transformers_logging

from ..hub import load_pretrained
from .checkpoint import checkpoint_of
from .embedding_tables import EmbeddingTables
from .meta_models import quiet_loading
from .stored_rows import StoredRows
from .table import Location


@contextlib.contextmanager
def forward_passes(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Inside, a model that runs: a loaded one itself, of an opened one another whose weights are its files'.

    That one reads each weight when it is used and then drops it, by accelerate's offloading to the disk, and
    its tables by blocks, so that memory is bounded by the largest layer; a progress bar tells the bytes of
    each run. It is loaded as a whole where that cannot be: with quantised weights, without accelerate, and
    before transformers 5.16, which gives accelerate no model that is on the disk alone.
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
        if reads_layers:
            _share_tables(model, made)
        with _bar(made) if reads_layers else contextlib.nullcontext():
            yield made.eval()


def _share_tables(opened: PreTrainedModel, made: PreTrainedModel) -> None:
    """Gives an offloaded model the rows in files of an opened one, where they are all that a module holds."""
    from accelerate.hooks import remove_hook_from_module

    for table in EmbeddingTables(opened).tables:
        rows = table.parameter
        places = [
            Location(place.name, made.get_submodule(place.name.rpartition(".")[0]), place.attribute)
            for place in table.tied.locations
        ]
        if not isinstance(rows, StoredRows) or not all(_holds_alone(p, rows) for p in places):
            continue
        parameter = nn.Parameter(rows.detach(), requires_grad=rows.requires_grad)
        for place in places:
            remove_hook_from_module(place.module)
            place.module._parameters[place.attribute] = parameter


def _holds_alone(place: Location, rows: StoredRows) -> bool:
    held = [*place.module.parameters(recurse=False), *place.module.buffers(recurse=False)]
    return len(held) == 1 and place.is_offloaded and place.tensor.dtype == rows.dtype


@contextlib.contextmanager
def _bar(model: PreTrainedModel) -> Iterator[None]:
    """A progress bar in bytes of weights, which starts anew with each run of a model."""
    sizes = {
        module: sum(p.numel() * p.dtype.itemsize for p in module.parameters(recurse=False))
        for module in model.modules()
    }
    left: set[nn.Module] = set()
    runs = 0
    with transformers_logging.tqdm(total=sum(sizes.values()), unit="B", unit_scale=True, disable=None) as bar:

        def begin(*_: Any) -> None:
            nonlocal runs
            runs += 1
            left.update(sizes)
            bar.reset()
            bar.set_description(f"Run {runs}")

        def ran(module: nn.Module, *_: Any) -> None:
            if module in left:
                left.remove(module)
                bar.update(sizes[module])

        handles = [model.register_forward_pre_hook(begin)]
        handles += [module.register_forward_hook(ran) for module, size in sizes.items() if size]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
