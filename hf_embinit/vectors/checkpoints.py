"""The input-embedding table of a checkpoint, read by name: no model is built, no other tensor is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor

from ..arguments import FilePath, checked
from ..errors import DataNotFoundError, InvalidArgumentError, UnsupportedModelError, VectorFileError
from ..foreign import read_json, reading
from ..hub import hub_file, hub_snapshot
from .pretrained_vectors import PretrainedVectors, rows_digest
from .static_embeddings import MODEL2VEC, MODULES, first_module, row_of_each_token
from .table_names import find_table
from .token_strings import TOKENIZER_FILES, read_token_strings

_SAFETENSORS = "model.safetensors"
_PICKLE = "pytorch_model.bin"
_WAY_OUT = "Give a folder, a Hub id or a file of vectors that is here."


@checked
def read_embedding_table(
    path_or_id: FilePath,
    *,
    tokens: Sequence[str] | None = None,
    revision: str | None = None,
    table: str | None = None,
    allow_pickle: bool = False,
) -> PretrainedVectors:
    """The input embeddings of a checkpoint (a folder or a Hub id): `[V, D]` float32, a token a row.

    From the Hub come the config, the tokenizer's files, the index and the one weight file that holds the
    table. The tensor is found by its name and the config's `vocab_size`; `table` chooses another one, by
    name or pattern (`"*decoder.embed_tokens*"`). `allow_pickle` permits a `pytorch_model.bin` where there
    are no safetensors; it is loaded with `weights_only=True`. `revision` is a branch, tag or commit.

    Rows come in the order of their ids, or of `tokens` if given. Rows without a token (a padded vocabulary)
    are left out. Static embeddings (Model2Vec's, sentence-transformers') are checkpoints, too: a row is what
    they average for its token. `report`: `table`, `file`, `dtype`, `rows` (of the tensor, or tokens of static
    embeddings), `rows_without_token`, `tokens_without_row`, `special_tokens`, `asked`, `found`.

    Raises `DataNotFoundError` for a checkpoint that is not there or has no config, weights or tokenizer;
    `VectorFileError` for a file of it that is damaged;
    `InvalidArgumentError` when the table is ambiguous or only a pickle is there; `UnsupportedModelError`
    when no tensor looks like a table, or its type is not floating point."""
    name = str(path_or_id)
    folder = Path(name).expanduser()
    if folder.is_file():
        raise InvalidArgumentError(
            f"{name!r} is a file: load_vectors reads files of vectors and of GGUF; give the folder of any "
            f"other model"
        )
    place = _find_place(name, folder, revision)
    config = {} if place.static else _read_json(place.folder / "config.json", name)
    weights = _open_weights(place, name, allow_pickle)
    with reading(name):
        chosen = find_table(weights.files, weights.shape, config, name, table)
        tensor = weights.tensor(chosen)
    _require_numbers(tensor, chosen, name, weights.files)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if chosen == MODEL2VEC:
        tensor = row_of_each_token(tensor, weights.files, weights.tensor, name)
    side: Literal["source", "target"] = "target" if "decoder" in chosen.split(".") else "source"
    by_id, family, special_tokens = read_token_strings(place.folder, side)
    ids = sorted(index for index in by_id if index < len(tensor))
    report: dict[str, Any] = {
        "table": chosen,
        "file": weights.files[chosen],
        "dtype": dtype,
        "rows": len(tensor),
        "rows_without_token": len(tensor) - len(ids),
        "tokens_without_row": len(by_id) - len(ids),
        "special_tokens": special_tokens,
    }
    if tokens is not None:
        id_of = {by_id[index]: index for index in ids}
        asked = list(dict.fromkeys(tokens))
        ids = [id_of[token] for token in asked if token in id_of]
        report.update(asked=len(asked), found=len(ids))
    with reading(f"{chosen} of {name}"):
        matrix = tensor[torch.tensor(ids, dtype=torch.long)]
    kept = [by_id[index] for index in ids]
    return PretrainedVectors(kept, matrix, name, family, place.commit, rows_digest(kept, matrix), report)


@dataclass(frozen=True)
class _Place:
    """Where a checkpoint is: its folder, a function that gives a file of it, and the commit, of the Hub."""

    folder: Path
    fetch: Callable[[str], Path | None]
    commit: str | None
    static: bool
    """Whether it is a static embedding, which needs no `config.json`."""


def _find_place(name: str, folder: Path, revision: str | None) -> _Place:
    """Older saves of sentence-transformers keep the model in the folder of their first module."""
    commit = None
    patterns = ["config.json", MODULES, "*.index.json", *TOKENIZER_FILES]
    if folder.is_dir():
        if revision is not None:
            raise InvalidArgumentError(f"revision={revision!r} was given, but {name!r} is a folder.")
    else:
        folder = hub_snapshot(name, patterns, revision=revision, way_out=_WAY_OUT)
        commit = folder.name
    module, static = first_module(folder)
    inner = folder / ("" if (folder / "config.json").is_file() else module)
    if commit is None:
        return _Place(inner, lambda file: inner / file if (inner / file).is_file() else None, None, static)
    if inner != folder:
        hub_snapshot(name, [f"{module}/{one}" for one in patterns], revision=commit, way_out=_WAY_OUT)

    def fetch(file: str) -> Path | None:
        path = (inner / file).relative_to(folder).as_posix()
        return hub_file(name, path, revision=commit, way_out=_WAY_OUT)

    return _Place(inner, fetch, commit, static)


def _require_numbers(tensor: Tensor, chosen: str, name: str, names: Iterable[str]) -> None:
    """Raises `UnsupportedModelError` unless a tensor is a matrix whose entries are the table's."""
    if tensor.ndim != 2 or not tensor.is_floating_point():
        raise UnsupportedModelError(
            f"{chosen} of {name} is {tensor.dtype} {list(tensor.shape)}, expected a floating-point matrix."
        )
    stem = chosen.removesuffix("weight")
    scales = [n for n in names if n != chosen and n.startswith(stem) and "scale" in n[len(stem) :]]
    if tensor.element_size() == 1 and scales:
        raise UnsupportedModelError(
            f"{chosen} of {name} is quantised ({tensor.dtype}, its scales are {scales[0]}): give a "
            f"checkpoint that is not, such as the one that it was made from."
        )


@dataclass
class _Safetensors:
    """The tensors of a checkpoint's safetensors: `files` gives the file of each by name."""

    files: dict[str, str]
    path_of: Callable[[str], Path]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        with self._reading(name), self._open(name) as file:
            return tuple(file.get_slice(name).get_shape())

    def tensor(self, name: str) -> Tensor:
        """One tensor, on the CPU, in the type it was saved in."""
        with self._reading(name), self._open(name) as file:
            return file.get_tensor(name)

    def names(self, file: str) -> list[str]:
        """The tensors in one file."""
        path = self.path_of(file)
        with (
            reading(f"{path}, which is no safetensors file or a damaged one,"),
            safe_open(path, "pt") as found,
        ):
            return list(found.keys())

    def _reading(self, name: str) -> AbstractContextManager[None]:
        return reading(f"{name!r} in {self.path_of(self.files[name])}")

    def _open(self, name: str) -> Any:
        return safe_open(self.path_of(self.files[name]), framework="pt")


@dataclass
class _Pickles:
    """The same of a checkpoint's pickles. Memory-mapped, so tensors that are not used are not read."""

    files: dict[str, str]
    path_of: Callable[[str], Path]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensor(name).shape)

    def tensor(self, name: str) -> Tensor:
        path = self.path_of(self.files[name])
        tensor = read_pickle(path).get(name)
        if not isinstance(tensor, Tensor):
            raise VectorFileError(f"{path} has no tensor {name!r}.")
        return tensor


def _open_weights(place: _Place, where: str, allow_pickle: bool) -> _Safetensors | _Pickles:
    folder, fetch = place.folder, place.fetch

    def path_of(file: str) -> Path:
        path = fetch(file)
        if path is None:
            raise DataNotFoundError(f"{where} lacks {file}, which its index names.")
        return path

    index = folder / f"{_SAFETENSORS}.index.json"  # of an older save, beside a whole file: as transformers
    if index.is_file() and not (folder / _SAFETENSORS).is_file():
        return _Safetensors(read_weight_map(index), path_of)
    if fetch(_SAFETENSORS) is not None:
        weights = _Safetensors({}, path_of)
        weights.files = dict.fromkeys(weights.names(_SAFETENSORS), _SAFETENSORS)
        return weights
    index = folder / f"{_PICKLE}.index.json"
    if allow_pickle:
        if index.is_file() and not (folder / _PICKLE).is_file():
            return _Pickles(read_weight_map(index), path_of)
        if (single := fetch(_PICKLE)) is not None:
            tensors = read_pickle(single)
            return _Pickles({name: _PICKLE for name in tensors if isinstance(name, str)}, path_of)
    elif place.commit is not None or index.is_file() or (folder / _PICKLE).is_file():
        raise InvalidArgumentError(
            f"{where} has no {_SAFETENSORS}. A pickle ({_PICKLE}) is read only with allow_pickle=True: give "
            "that if you trust its author, or a revision= with safetensors (often 'refs/pr/<number>')."
        )
    raise DataNotFoundError(f"{where} has neither {_SAFETENSORS} nor {_PICKLE}.")


def read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a pickle of tensors alone. Raises `VectorFileError` for anything else."""
    with reading(f"{path}, as a pickle of tensors alone,"):
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the format before torch 1.6 cannot be memory-mapped
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(tensors, dict):
        raise VectorFileError(f"{path} holds a {type(tensors).__name__}, expected tensors by name.")
    return tensors


def read_weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor, from an index. Raises `VectorFileError` for files that are not beside it."""
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise VectorFileError(f'{index} has no "weight_map", the file of each tensor by its name.')
    for tensor, file in files.items():
        if not isinstance(file, str) or file in ("", "..") or Path(file).name != file or "\\" in file:
            raise VectorFileError(f"{index} puts {tensor!r} into {file!r}, which is no file beside it.")
    return files


def _read_json(path: Path, where: str) -> dict[str, Any]:
    if not path.is_file():
        raise DataNotFoundError(
            f"{where} has no {path.name}: expected the folder or Hub id of a saved model."
        )
    return read_json(path)
