"""`load_vectors`, the one entry to all sources of vectors, and the names of the papers' sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from ..arguments import FilePath, checked
from ..errors import DataNotFoundError, InvalidArgumentError
from ..tokens import TokenFamily
from .checkpoints import read_embedding_table
from .files import read_vectors
from .gguf_format import is_gguf, read_gguf_table
from .pretrained_vectors import PretrainedVectors
from .streams import split_member

SOURCES = {
    "glove": "glove.840B.300d",
    "bert": "google-bert/bert-base-uncased",
    "mbert": "google-bert/bert-base-multilingual-cased",
    "t5": "google-t5/t5-small",
    "mt5": "google/mt5-base",
}
"""The checkpoints of Kim et al. 2024, identified by their Table 2. `glove` is a file, not on the Hub."""

_GLOVE = "https://nlp.stanford.edu/projects/glove"
_GLOVE_HELP = (
    "The vectors 'glove' are a file that is not on the Hub: give vectors= (--vectors) the path of "
    f"glove.840B.300d.zip from {_GLOVE} (English), of another file of word "
    "vectors, or of vectors trained with hf_embinit.vectors.train_glove."
)
_FILE_ENDINGS = (".txt", ".vec", ".bin", ".gz", ".zip", ".glove", ".w2v", ".safetensors", ".gguf")


@checked
def load_vectors(
    spec: PretrainedVectors | FilePath,
    *,
    tokens: Sequence[str] | None = None,
    family: TokenFamily | None = None,
    revision: str | None = None,
    table: str | None = None,
    allow_pickle: bool = False,
) -> PretrainedVectors:
    """Vectors from `PretrainedVectors` (as they are), a name in `SOURCES`, a file, a folder or a Hub id.

    A file is one of vectors or, in the format GGUF, of a model, whose input table is dequantised (the package
    gguf reads it). A folder that is called like a source is given as `./bert`, or as a `Path`. `tokens` are
    those that will be looked up: of a file of vectors only their rows are read. The table of a checkpoint is
    read whole, since its tokens may be spelled in another way. `family` overrides how the source spells its
    tokens. `revision`, `table` and `allow_pickle` are for checkpoints, as in `read_embedding_table`; `table`
    is for GGUF files, too.

    Raises `DataNotFoundError`, which says what to do, when there is nothing called `spec`.
    """
    if isinstance(spec, PretrainedVectors):
        _refuse(f"{spec.name!r} are vectors in memory", revision=revision, table=table)
        return spec if family is None else replace(spec, family=family)
    check_source(spec)
    name = str(spec)
    path = Path(name).expanduser()
    file = split_member(path)[0]
    named = isinstance(spec, str) and name in SOURCES
    if path.is_dir() and not named:
        vectors = read_embedding_table(path, revision=revision, table=table, allow_pickle=allow_pickle)
    elif file.is_file():
        _refuse(f"{name!r} is a file", revision=revision)
        if not is_gguf(file):
            _refuse(f"{name!r} is a file of vectors, which has one table", table=table)
            return read_vectors(path, tokens, family=family or "words")
        vectors = read_gguf_table(file, table)
    else:
        vectors = read_embedding_table(
            SOURCES.get(name, name), revision=revision, table=table, allow_pickle=allow_pickle
        )
    if family is not None:
        vectors.family = family
    return vectors


@checked
def check_source(spec: FilePath) -> None:
    """Raises `DataNotFoundError` for a path at which there are no vectors; reads nothing.

    A name that may be a Hub id passes: whether it is there, only the Hub knows.
    """
    name = str(spec)
    path = Path(name).expanduser()
    file = split_member(path)[0]
    if isinstance(spec, str) and name in SOURCES:
        if name == "glove":
            raise DataNotFoundError(_GLOVE_HELP)
    elif file.is_file():
        if file.suffix == ".safetensors":
            raise DataNotFoundError(f"vectors={name!r} is a file of weights: give its folder.")
    elif not path.is_dir() and _looks_like_path(spec, name):
        way_out = f" GloVe's are at {_GLOVE}" if "glove" in file.name else " Give the path of one"
        raise DataNotFoundError(f"vectors={name!r} is no file or folder here.{way_out}.")


def _refuse(what: str, **options: str | None) -> None:
    """Raises `InvalidArgumentError` for options that were given, and have no meaning for what is read."""
    for name, value in options.items():
        if value is not None:
            raise InvalidArgumentError(f"{name}={value!r} was given, but {what}: leave it out")


def _looks_like_path(spec: str | PathLike[str], name: str) -> bool:
    """Whether `spec` cannot be a Hub id, which is `name` or `owner/name`."""
    return (
        not isinstance(spec, str)
        or name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or "\\" in name
        or ":" in name
        or name.lower().endswith(_FILE_ENDINGS)
    )
