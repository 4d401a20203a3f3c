"""Static embeddings, a table and its tokenizer, as Model2Vec and sentence-transformers save them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor

from ..errors import VectorFileError
from ..foreign import read_json

MODULES = "modules.json"
"""The file of sentence-transformers that names the modules of a model and the folder of each."""
MODEL2VEC = "embeddings"
"""The tensor that Model2Vec keeps its rows in."""


def first_module(folder: Path) -> tuple[str, bool]:
    """The folder of the first module in `modules.json`, `""` for `folder` itself, and whether it is a static
    embedding, which has no `config.json`.

    Raises `VectorFileError` for a file that is damaged or names a place outside of the folder."""
    file = folder / MODULES
    listed = read_json(file, list) if file.is_file() else []
    if not listed:
        return "", False
    first = listed[0] if isinstance(listed[0], dict) else {}
    path, kind = first.get("path", ""), str(first.get("type", ""))
    if not isinstance(path, str) or Path(path).is_absolute() or ".." in path or "\\" in path:
        raise VectorFileError(f"{file} puts the first module into {path!r}, which is no folder beside it.")
    return "/".join(Path(path).parts), kind.rpartition(".")[2] == "StaticEmbedding"


def is_static_embedding(folder: Path) -> bool:
    """Whether a folder holds static embeddings, as far as its `modules.json` can be read."""
    try:
        return first_module(folder)[1]
    except VectorFileError:
        return False


def row_of_each_token(
    rows: Tensor, names: Iterable[str], tensor_of: Callable[[str], Tensor], where: str
) -> Tensor:
    """`[V, D]`: what Model2Vec averages, `rows[mapping] * weights`, of those two that a checkpoint has.

    A smaller vocabulary of rows has a `mapping` `[V]` of ids to rows, and `weights` `[V]` are kept apart from
    it. Raises `VectorFileError` unless they fit."""
    for name in ("mapping", "weights"):
        if name not in names:
            continue
        values = tensor_of(name)
        if name == "mapping":
            if values.ndim != 1 or values.is_floating_point() or not _inside(values, len(rows)):
                raise VectorFileError(
                    f"mapping of {where} is {values.dtype} {list(values.shape)}, expected one of its "
                    f"{len(rows)} rows for each token."
                )
            rows = rows[values.long()]
        elif values.shape != rows.shape[:1]:
            raise VectorFileError(
                f"weights of {where} are {values.dtype} {list(values.shape)}, expected one for each of its "
                f"{len(rows)} tokens."
            )
        else:
            rows = rows.float() * values.float()[:, None]
    return rows


def _inside(ids: Tensor, count: int) -> bool:
    return ids.numel() == 0 or (0 <= int(ids.min()) <= int(ids.max()) < count)
