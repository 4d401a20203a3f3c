"""Opens a checkpoint in its files, or loads it, as the class that it was saved as."""

from __future__ import annotations

import contextlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataNotFoundError, InvalidArgumentError, NoSafetensorsError, UnsupportedModelError
from ..foreign import NO_LINES, RECORDS, no_text, read_record, split_columns, text_columns, text_of
from .command import flag

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def add_model_flags(parser: ArgumentParser, *, required: bool = True) -> None:
    """Adds the model and the flags that `load_model` and `load_tokenizer` read."""
    parser.add_argument("model", nargs=None if required else "?", help="folder or Hub id of a checkpoint")
    flag(parser, "tokenizer", help="folder or Hub id of the tokenizer (default: the model's)")
    flag(parser, "seed", type=int, default=0, help="of everything that is drawn (default: 0)")
    flag(
        parser,
        "trust_remote_code",
        action="store_true",
        help="run the Python code that comes with the checkpoint, if any",
    )
    flag(
        parser,
        "allow_pickle",
        action="store_true",
        help="read a checkpoint that has no safetensors from its .bin files: pickles, which torch reads with "
        "weights_only=True",
    )


def load_model(args: Namespace, *, config_only: bool = False) -> PreTrainedModel:
    """The model as the first class in its config's `architectures`, head included.

    Its files are checked against their index and the config before, which transformers does in part. With
    `config_only` the class draws it anew from `--seed`.
    """
    import torch
    from transformers import AutoConfig

    from ..hub import load_pretrained, model_class
    from ..tables import open_checkpoint

    code = {"trust_remote_code": args.trust_remote_code}
    config = load_pretrained(AutoConfig, args.model, f"model {args.model!r}", **code)
    found = model_class(config)
    if not config_only:
        with contextlib.suppress(NoSafetensorsError, UnsupportedModelError):
            open_checkpoint(args.model, **code)
        safe = None if args.allow_pickle else True
        return load_pretrained(found, args.model, f"model {args.model!r}", use_safetensors=safe, **code)
    with torch.random.fork_rng():
        torch.manual_seed(args.seed)  # classes draw from the global state
        if hasattr(found, "from_config"):
            return found.from_config(config, **code)
        return found._from_config(config)


def open_model(args: Namespace, *, tables_only: bool = False) -> PreTrainedModel:
    """The model opened in its safetensors, where nothing but its tables is read (and fetched from the Hub
    with `tables_only`); loaded with `--allow_pickle` where it has none."""
    from ..tables import open_checkpoint

    try:
        code = args.trust_remote_code
        return open_checkpoint(args.model, trust_remote_code=code, tables_only=tables_only)
    except NoSafetensorsError as error:
        if args.allow_pickle:
            return load_model(args)
        raise DataNotFoundError(
            f"{error} (only safetensors are read; a pickle with --allow_pickle)"
        ) from None


def add_output_flag(parser: ArgumentParser, kind: str = "changed", *, required: bool = True) -> None:
    """`--output_dir`, of the commands that write a checkpoint of some `kind`."""
    flag(
        parser,
        "output_dir",
        required=required,
        metavar="FOLDER",
        help=f"folder for the {kind} checkpoint; must not exist, or be empty",
    )


def add_data_flags(parser: ArgumentParser) -> None:
    """What methods for another tokenizer read, beside vectors."""
    flag(parser, "parallel", metavar="FILE", help="pairs of sentences: columns with a tab between, or .jsonl")
    flag(parser, "dictionary", metavar="FILE", help="pairs of words, in the same form")
    flag(
        parser,
        "texts",
        nargs="+",
        metavar="FILE",
        help="text of the new tokens' language, by lines; of a .jsonl the only text of each line, or "
        "FILE:COLUMN",
    )
    flag(parser, "donor", help="folder or Hub id of a model that has the new tokens already")


def read_data(args: Namespace) -> dict[str, Any]:
    """The flags of `add_data_flags` as `replace_tokenizer` takes them."""
    texts = None if args.texts is None else list(lines_of(args.texts, "texts"))
    names = ("parallel", "dictionary", "donor")
    return {"texts": texts, **{name: getattr(args, name) for name in names}}


def lines_of(files: list[str], name: str) -> Iterator[str]:
    """The lines of text files that were given as `--name`, with their ends as they are, or the texts in a
    column of `.jsonl` files."""
    for file in files:
        path, column = split_columns(file, 1)
        records = path.suffix in RECORDS
        if path.suffix in NO_LINES:
            raise InvalidArgumentError(
                f"--{name} {file} is no text file: write its texts to a .txt, one a line, or to a .jsonl, "
                f"which is read as --{name} FILE.jsonl:COLUMN"
            )
        try:
            with open(path if records else file, encoding="utf-8-sig", newline="") as lines:
                yield from _texts_of(lines, file, name, column) if records else lines
        except (OSError, UnicodeDecodeError) as error:
            raise DataNotFoundError(f"--{name} {file} {no_text(error)}") from error


def _texts_of(lines: Iterable[str], file: str, name: str, column: tuple[str, ...] | None) -> Iterator[str]:
    """The texts in a column of lines with an object each: that which was named, else the only one."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"--{name} {file}, line {number}"
            record = read_record(line, where)
            column = column or text_columns(record, 1, where, f"name it, as in --{name} {file}:COLUMN")
            yield f"{text_of(record, column[0], where)}\n"


def add_link_flag(parser: ArgumentParser) -> None:
    """`--link`, of the commands that write a checkpoint from its files."""
    flag(
        parser,
        "link",
        action="store_true",
        help="make hard links of files of weights that do not change, instead of copies, where both folders "
        "are on one file system",
    )


def load_tokenizer(args: Namespace, *, required: bool = True, other: tuple[str, str] | None = None) -> Any:
    """The tokenizer of `--tokenizer`, else the model's own; None if it has none and none is `required`.

    Or an `other` one: the argument that names it, and its folder or Hub id. Raises an `EmbinitError` for a
    damaged one.
    """
    from ..hub import load_pretrained_tokenizer
    from ..records import tokenizer_names

    if other is not None:
        name, source = other
        return load_pretrained_tokenizer(
            source, f"{name} {source!r}", trust_remote_code=args.trust_remote_code
        )
    source = args.tokenizer or args.model
    what = (
        f"--tokenizer {source!r}" if args.tokenizer else f"the tokenizer of {source!r} (or give --tokenizer)"
    )
    try:
        return load_pretrained_tokenizer(source, what, trust_remote_code=args.trust_remote_code)
    except DataNotFoundError:
        if required or args.tokenizer or tokenizer_names(Path(source)):
            raise
        return None
