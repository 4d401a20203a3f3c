"""Loads a model as the class it was saved as, and writes folders that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataNotFoundError, InvalidArgumentError, RunFolderError
from .command import flag

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


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
        help="read a checkpoint that has no safetensors from its .bin files, which can run code",
    )


def load_model(args: Namespace, *, config_only: bool = False) -> PreTrainedModel:
    """The model as the first class in its config's `architectures`, head included.

    With `config_only` the class draws it anew from `--seed`.
    """
    import torch
    from transformers import AutoConfig

    from ..hub import load_pretrained

    code = {"trust_remote_code": args.trust_remote_code}
    config = load_pretrained(AutoConfig, args.model, f"model {args.model!r}", **code)
    found = _class_of(config)
    if not config_only:
        safe = None if args.allow_pickle else True
        return load_pretrained(found, args.model, f"model {args.model!r}", use_safetensors=safe, **code)
    with torch.random.fork_rng():
        torch.manual_seed(args.seed)  # classes draw from the global state
        if hasattr(found, "from_config"):
            return found.from_config(config, **code)
        return found._from_config(config)


def _class_of(config: PreTrainedConfig) -> Any:
    """The model class of transformers, or an Auto class for a registered or remote one."""
    import transformers

    name = next(iter(config.architectures or ()), None)
    if name is None:
        raise InvalidArgumentError(
            'the config.json names no model class: add one, such as "architectures": ["GPT2LMHeadModel"]'
        )
    remote = {reference.split(".")[-1]: auto for auto, reference in _remote_classes(config).items()}
    if hasattr(transformers, name) and name not in remote:
        return getattr(transformers, name)
    for auto in sorted(a for a in dir(transformers) if a.startswith("AutoModel")):
        mapping = getattr(getattr(transformers, auto), "_model_mapping", {})
        if type(config) in mapping and getattr(mapping[type(config)], "__name__", None) == name:
            return getattr(transformers, auto)
    if name in remote:
        return getattr(transformers, remote[name])
    raise InvalidArgumentError(
        f"the config names the model class {name}, which this transformers ({transformers.__version__}) "
        f"does not have"
    )


def _remote_classes(config: PreTrainedConfig) -> dict[str, str]:
    auto_map = getattr(config, "auto_map", None) or {}
    return {k: v for k, v in auto_map.items() if k.startswith("AutoModel") and isinstance(v, str)}


def load_tokenizer(args: Namespace, *, required: bool = True) -> Any:
    """The tokenizer of `--tokenizer`, else the model's own; None if it has none and none is `required`."""
    from ..hub import load_pretrained_tokenizer

    source = args.tokenizer or args.model
    what = (
        f"--tokenizer {source!r}" if args.tokenizer else f"the tokenizer of {source!r} (or give --tokenizer)"
    )
    try:
        return load_pretrained_tokenizer(source, what, trust_remote_code=args.trust_remote_code)
    except DataNotFoundError:
        if required or args.tokenizer:
            raise
        return None


def check_output(folder: str | os.PathLike[str]) -> None:
    """Raises `RunFolderError` for a folder that is not empty, before any work."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        kind = "is not empty" if path.is_dir() else "is a file"
        raise RunFolderError(f"--output_dir {folder} {kind}: choose another folder, or delete it")


@contextmanager
def whole_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A hidden folder beside `folder` to write into, which is renamed to `folder` at the end.

    After an error neither exists. Raises `RunFolderError` when `folder` is taken or cannot be written.
    """
    check_output(folder)
    path = Path(folder).absolute()
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden.mkdir()
        yield hidden
        check_output(folder)
        if path.exists():
            path.rmdir()
        hidden.rename(path)
    except OSError as error:
        raise RunFolderError(f"--output_dir {folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


_BESIDE = (
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
    *("chat_template.json", "modules.json", "config_sentence_transformers.json"),
    *("sentence_bert_config.json", "1_Pooling/config.json", "2_Normalize/config.json"),
)
"""What processors and sentence-transformers keep beside a model, and neither model nor tokenizer saves."""


def save_checkpoint(
    folder: str | os.PathLike[str], model: PreTrainedModel, tokenizer: Any, source: str | None = None
) -> None:
    """Saves model, config with its manifest, and tokenizer: everything or nothing.

    What processors and sentence-transformers keep beside them comes along from `source`.
    """
    with whole_folder(folder) as hidden:
        model.save_pretrained(hidden)
        if tokenizer is not None:
            tokenizer.save_pretrained(hidden)
        for name in _BESIDE if source is not None and Path(source).is_dir() else ():
            there, here = Path(source or "", name), hidden / name
            if there.is_file() and not here.exists():
                here.parent.mkdir(exist_ok=True)
                shutil.copyfile(there, here)
