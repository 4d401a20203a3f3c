"""`open_checkpoint`: a model whose tables are rows in files and whose other weights are never read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from ..arguments import FilePath, checked
from ..errors import InvalidArgumentError, UnsupportedModelError
from ..foreign import reading
from ..hub import hub_snapshot, load_pretrained, model_class
from ..vectors import is_static_embedding, read_weight_map
from .beside import SMALL_FILES, module_patterns
from .embedding_tables import EmbeddingTables
from .meta_models import meta_model
from .safetensors_files import (
    INDEX,
    TORCH_DTYPES,
    WEIGHTS,
    CheckpointFiles,
    StoredTensor,
    read_checkpoint_files,
)
from .stored_rows import BLOCK_BYTES, StoredRows
from .table import TiedTensor

_WAY_OUT = "Give the folder or the Hub id of a saved model."


@dataclass
class StoredCheckpoint:
    """Where a model of `open_checkpoint` comes from."""

    files: CheckpointFiles
    places: dict[str, str]
    """Tensor in the files -> the parameter or buffer that it is."""
    repeated: dict[str, str]
    """Tensor in the files that a tied one repeats, under another name -> the parameter that it is tied to."""
    held: dict[str, StoredTensor] = field(default_factory=dict)
    """Each place of a table or a bias -> the tensor that it was given; tied places have the same."""
    changes: dict[str, Callable[[StoredRows], Iterable[Tensor]]] = field(default_factory=dict)
    """Parameter -> what is made of its rows when they are written: as many, block by block."""
    is_whole: bool = True
    """Whether all files are here, and not only those with tables."""
    repo_id: str | None = None
    """The Hub id that it was opened by; None for a folder."""


@checked
def open_checkpoint(
    path_or_id: FilePath,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    tables_only: bool = False,
) -> PreTrainedModel:
    """The model of a folder or Hub id, of which only the token tables are ever read, by blocks.

    It is of its own class, on the meta device, with its config, and its tables are `StoredRows`.
    `expand_vocabulary`, `initialize`, `prune_vocabulary` and the surgeries on embeddings take it as they take
    a loaded model, and `save_checkpoint` writes what they made of it; there is no forward pass. Tables are
    tied where the files hold one tensor for them, or equal ones that the config ties. Nothing else in the
    files is looked at: other weights may be quantised in any way.

    With `tables_only` nothing but the files that hold tables comes from the Hub, to look at them or to plan a
    change: where other files stayed there, such a model cannot be saved.

    Raises:
        DataNotFoundError: a folder without config or safetensors, or without a file that its index names.
        VectorFileError: damaged files.
        InvalidArgumentError: the config is of another model than the tensors are.
        UnsupportedModelError: tables that are quantised, or that the model keeps in another odd way.
    """
    name = str(path_or_id)
    folder = Path(name).expanduser()
    is_here = bool(name) and folder.is_dir()
    if not is_here:
        folder = hub_snapshot(name, SMALL_FILES, revision=revision, way_out=_WAY_OUT)
    elif revision is not None:
        raise InvalidArgumentError(f"revision={revision!r} was given, but {name!r} is a folder")
    if (folder / "adapter_config.json").is_file():
        raise InvalidArgumentError(f"{name} is an adapter, not a model: merge it into its base first")
    if is_static_embedding(folder):
        raise InvalidArgumentError(
            f"{name} holds static embeddings, a table without a model: give it as vectors= (--vectors), or "
            f"to hf-embinit analyze"
        )
    config = load_pretrained(AutoConfig, str(folder), f"model {name!r}", trust_remote_code=trust_remote_code)
    found = model_class(config)
    if hasattr(found, "from_config"):  # an Auto class: of a registered model, or one with code of its own
        with torch.device("meta"):
            found = type(found.from_config(config, trust_remote_code=trust_remote_code))
    only = None
    if not is_here:
        only = _files_of_tables(folder / INDEX, found, config) if tables_only else None
        every = set(read_weight_map(folder / INDEX).values()) if (folder / INDEX).is_file() else {WEIGHTS}
        modules = [] if tables_only else module_patterns(folder)
        wanted = [*SMALL_FILES, *sorted(only or every), *modules]
        folder = hub_snapshot(name, wanted, revision=folder.name, way_out=_WAY_OUT)
    files = read_checkpoint_files(folder, only)
    with reading(f"the config of {name}, with the tensors beside it,", InvalidArgumentError):
        model, names, odd = meta_model(found, config, files)
    if (folder / "generation_config.json").is_file() and model.can_generate():
        model.generation_config = load_pretrained(GenerationConfig, str(folder), f"model {name!r}")
    model.config._name_or_path = name
    stored = _Opening(model, files, names, name).fill()
    stored.is_whole, stored.repo_id = only is None, None if is_here else name
    odd = odd if only is None else [text for text in odd if not text.startswith("there is no ")]
    if odd:
        raise InvalidArgumentError(
            f"{name} is not what its config says, a {type(model).__name__}: in its files {sorted(odd)[0]}"
        )
    model.embinit_checkpoint = stored  # type: ignore[assignment]
    model.save_pretrained = _refuse_to_save  # type: ignore[method-assign]
    return model


def _files_of_tables(index: Path, model_class: type[PreTrainedModel], config: Any) -> set[str] | None:
    """The files of an index that hold what goes with tokens, by name; None where names do not tell."""
    if not index.is_file():
        return None
    with torch.device("meta"):
        tables = EmbeddingTables(model_class(copy.deepcopy(config)))
    file_of, files = read_weight_map(index), set[str]()
    for tied in [*(tied for t in tables.tables for tied in (t.tied, *t.bias)), *tables.companions]:
        places = [place.name for place in tied.locations]
        found = [name for name in file_of if any(_same_name(name, place) for place in places)]
        if not found and isinstance(tied.tensor, nn.Parameter):
            return None
        files.update(file_of[name] for name in found)
    return files


def _same_name(one: str, other: str) -> bool:
    """Whether two names are one but for a prefix, such as `model.`."""
    return f".{one}".endswith(f".{other}") or f".{other}".endswith(f".{one}")


def checkpoint_of(model: nn.Module) -> StoredCheckpoint | None:
    """Where a model of `open_checkpoint` comes from; None for a loaded one."""
    return vars(model).get("embinit_checkpoint")


def open_matrices(model: PreTrainedModel) -> None:
    """Makes `StoredRows` of every other matrix, too, that the files of an opened model hold as it is."""
    stored = checkpoint_of(model)
    if stored is None:
        return
    for name, place in stored.places.items():
        old, tensor = model.get_parameter_or_buffer(place), stored.files.tensors[name]
        if not isinstance(old, nn.Parameter) or not old.is_meta or tensor.shape != old.shape:
            continue
        made: Tensor
        if _is_matrix(tensor):
            made = StoredRows(tensor)
        elif len(tensor.shape) == 1 and tensor.is_plain and TORCH_DTYPES[tensor.dtype].is_floating_point:
            made = tensor.read()  # norms and biases, which modules that an adapter saves whole have, too
        else:
            continue
        module, _, attribute = place.rpartition(".")
        setattr(model.get_submodule(module), attribute, nn.Parameter(made, old.requires_grad))


def _is_matrix(tensor: StoredTensor) -> bool:
    is_matrix = len(tensor.shape) == 2 and min(tensor.shape) > 1 and tensor.is_plain
    return is_matrix and TORCH_DTYPES[tensor.dtype].is_floating_point


def _refuse_to_save(*args: Any, **kwargs: Any) -> None:
    raise UnsupportedModelError(
        "a model of open_checkpoint has no weights in memory: hf_embinit.save_checkpoint(model, folder, "
        "tokenizer) writes it from its files"
    )


class _Opening:
    """Puts rows of files into a model on the meta device."""

    def __init__(self, model: PreTrainedModel, files: CheckpointFiles, names: dict[str, str], where: str):
        self.model, self.where = model, where
        self.tensors = files.tensors
        self.file_name = {place: name for name, place in names.items()}
        self.stored = StoredCheckpoint(files, names, {})

    def fill(self) -> StoredCheckpoint:
        """Ties what the files hold as equal, and gives every table, bias and buffer of tokens its values."""
        for target, source in list((getattr(self.model, "all_tied_weights_keys", None) or {}).items()):
            self._tie(target, source)
        tables = EmbeddingTables(self.model)
        for table in tables.tables:
            self._put(table.tied, f"the table {table.name}")
            for bias in table.bias:
                self._put(bias, f"the output bias {bias.name}")
        for tied in tables.companions:
            if any(place.name in self.file_name for place in tied.locations):
                self._put(tied, tied.name)
        return self.stored

    def _tie(self, target: str, source: str) -> None:
        """Ties two parameters that the config ties and the files hold twice, if they are equal there."""
        a, b = (self.file_name.get(place) for place in (target, source))
        if a is None or b is None or a == b:
            return
        if not _equal(self.tensors[a], self.tensors[b]):
            self.model.all_tied_weights_keys.pop(target)
            return
        module, _, attribute = target.rpartition(".")
        setattr(self.model.get_submodule(module), attribute, self.model.get_parameter(source))
        self.stored.repeated[a] = source

    def _put(self, tied: TiedTensor, what: str) -> None:
        if not tied.tensor.is_meta or isinstance(tied.tensor, StoredRows):
            return
        place = next((p.name for p in tied.locations if p.name in self.file_name), None)
        if place is None:
            self._refuse(tied, what)
        name = self.file_name[place]
        stored = self.tensors[name]
        self.stored.held |= {place.name: stored for place in tied.locations}
        if tied.dim == 0 and _is_matrix(stored):
            tensor: Tensor = StoredRows(stored)
        else:
            tensor = stored.read()
        if isinstance(tied.tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, tied.tensor.requires_grad)
        tied.put(tensor)

    def _refuse(self, tied: TiedTensor, what: str) -> NoReturn:
        names = [place.name for place in tied.locations]
        for stored in (self.tensors[name] for name in names if name in self.tensors):
            if stored.dtype not in TORCH_DTYPES or stored.dtype in ("I8", "U8"):
                raise UnsupportedModelError(
                    f"{stored.name} in {stored.path.name} is quantised ({stored.dtype}), and other rows "
                    f"would be rounded by other scales: change the vocabulary of the original checkpoint, "
                    f"and quantise afterwards"
                )
            raise InvalidArgumentError(
                f"{self.where} is not what its config says: {stored.name} is {list(stored.shape)} in "
                f"{stored.path.name}, but a {type(self.model).__name__} of this config has "
                f"{list(tied.tensor.shape)}"
            )
        raise InvalidArgumentError(
            f"{self.where} is not what its config says: its files have no tensor for {what} of a "
            f"{type(self.model).__name__}"
        )


def _equal(a: StoredTensor, b: StoredTensor) -> bool:
    """Whether two tensors have the same dtype, shape and bytes."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    with a.path.open("rb") as one, b.path.open("rb") as other:
        one.seek(a.start)
        other.seek(b.start)
        left = a.size
        while left:
            count = min(left, BLOCK_BYTES)
            if one.read(count) != other.read(count):
                return False
            left -= count
    return True
