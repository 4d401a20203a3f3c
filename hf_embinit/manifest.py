"""`config.embinit`: the list of events that say how every row of a checkpoint was initialised.

It is plain JSON inside the config, so `save_pretrained`, `push_to_hub` and `from_pretrained` carry it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PretrainedConfig

from .arguments import FilePath, checked
from .errors import DataNotFoundError, InvalidArgumentError, VectorFileError, VocabularyWarning
from .foreign import read_json
from .hub import hub_file
from .tokens import vocabulary

_COUNTS = ("types", "types_found", "tokens", "tokens_found")
_WAY_OUT = "Give the folder or the Hub id of a saved model."


def record_event(config: PretrainedConfig, event: str, **fields: Any) -> dict[str, Any]:
    """Appends one event (`"initialize"`, `"resize"`, ...) to `config.embinit` and returns it as stored.

    Tensors and numpy numbers become numbers and lists, paths become strings. Raises `InvalidArgumentError`
    when `config.embinit` exists but is no list.
    """
    config.embinit = events_with(config, event, **fields)
    return config.embinit[-1]


def events_with(config: PretrainedConfig, event: str, **fields: Any) -> list[dict[str, Any]]:
    """The value of `config.embinit` with one more event. Changes nothing; raises as `record_event`.

    It is a new list: configs that were copied shallowly share the old one.
    """
    events = getattr(config, "embinit", None)
    if events is not None and not isinstance(events, list):
        raise InvalidArgumentError(
            f"config.embinit is {type(events).__name__}, expected the list of its events"
        )
    return [*(events or []), {"event": event, **plain_json(fields), "version": package_version()}]


def row_ids(rows: Sequence[Any]) -> list[int]:
    """The ids in the `rows` of an event: `[first, one past the last]`, several such spans, or single ids.

    Single ids are an older form, for rows that are not contiguous.
    """
    if len(rows) == 2 and not isinstance(rows[0], (list, tuple)):
        return list(range(*rows))
    return [i for one in rows for i in (range(*one) if isinstance(one, (list, tuple)) else [one])]


@checked
def read_manifest(
    source: nn.Module | PretrainedConfig | FilePath, *, revision: str | None = None
) -> list[dict[str, Any]]:
    """The events of a checkpoint (folder or Hub id), a config or a model, oldest first; may be empty.

    Of a folder `config.json` alone is read: the model class need not be known. Of a module around a model,
    such as `DataParallel`, the model's config. `revision` is a branch, tag or commit of a Hub repository.
    Raises `DataNotFoundError` without `config.json`, `VectorFileError` for a damaged one, and
    `InvalidArgumentError` for a module that holds no model or several, and for a `revision` of what is not on
    the Hub.
    """
    config = _held_config(source) if isinstance(source, nn.Module) else source
    if not isinstance(config, (str, PathLike)):
        _require_hub(revision, f"<{type(source).__name__}>")
        return _events(getattr(config, "embinit", None), f"config.embinit of {type(source).__name__}")
    path = Path(config)
    if path.is_file() and path.suffix != ".json":
        raise DataNotFoundError(f"{path} is a file: give the folder that it is in")
    file = path if path.is_file() else path / "config.json"
    if path.exists():
        _require_hub(revision, path)
    if not file.is_file():
        if path.exists():
            raise DataNotFoundError(f"{path} has no config.json: expected the folder of a saved model")
        fetched = hub_file(str(config), "config.json", revision=revision, way_out=_WAY_OUT)
        if fetched is None:
            raise DataNotFoundError(f"{config} has no config.json on the Hub. {_WAY_OUT}")
        file = fetched
    return _events(read_json(file).get("embinit"), f'"embinit" in {file}')


def _held_config(module: nn.Module) -> Any:
    """The config of a model, or of the one model inside a module."""
    own = getattr(module, "config", None)
    if own is not None:
        return own
    found = {id(config): config for child in module.children() for config in _configs(child)}
    if len(found) != 1:
        what = "several models: give one of them" if found else "no model with a config"
        raise InvalidArgumentError(f"source=<{type(module).__name__}> holds {what}")
    return next(iter(found.values()))


def _configs(module: nn.Module) -> Iterator[PretrainedConfig]:
    """Configs of the outermost models in a module."""
    config = getattr(module, "config", None)
    if isinstance(config, PretrainedConfig):
        yield config
        return
    for child in module.children():
        yield from _configs(child)


def _require_hub(revision: str | None, source: object) -> None:
    if revision is not None:
        raise InvalidArgumentError(
            f"revision={revision!r} is for a Hub id, but source={source} is none: leave it out"
        )


def side_of(event: dict[str, Any]) -> Any:
    """Whose rows an event made: `shared`, or `source` or `target` of a model with two vocabularies."""
    sides = [table["side"] for table in event.get("tables") or () if "side" in table]
    return event.get("side") or (sides[0] if sides else "shared")


def warn_of_another_tokenizer(model: nn.Module, tokenizer: Any, side: str = "shared") -> None:
    """Warns when tokens that were added to a side of a model, by its manifest, are not where they were."""
    named: dict[int, str] = {}
    for event in read_manifest(model):
        if event.get("event") in ("prune_vocabulary", "replace_tokenizer"):
            named = {}  # all ids are others from there on
        if side_of(event) == side:
            named.update({i: token for token, i in (event.get("tokens") or {}).items()})
    if not named or tokenizer is None:
        return
    tokens = vocabulary(tokenizer)
    lost = [i for i, token in named.items() if i >= len(tokens) or tokens[i] != token]
    if lost:
        warnings.warn(
            f"the tokenizer has changed since the model was expanded: id {lost[0]} should be "
            f"{named[lost[0]]!r}, and {len(lost)} of {len(named)} added tokens are not where they were",
            VocabularyWarning,
            stacklevel=4,
        )


def _events(value: Any, where: str) -> list[dict[str, Any]]:
    """The list of events that `where` holds, copied."""
    if value is None:
        return []
    if not isinstance(value, (list, tuple)) or not all(map(_is_event, value)):
        raise VectorFileError(f"{where} is no list of events: it was not written by this package.")
    return [dict(event) for event in value]


def _is_row_or_span(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) == 2 and all(type(row) is int for row in value)
    return type(value) is int


def _is_event(value: Any) -> bool:
    """Whether a value has the form of an event: tables are objects, rows, counts and ids are numbers."""
    if not isinstance(value, dict) or not isinstance(value.get("event"), str):
        return False
    if value["event"] in ("resize", "expand_vocabulary"):
        rows = value.get("rows")
        if not isinstance(rows, (list, tuple)) or len(rows) != 2 or not all(type(n) is int for n in rows):
            return False
    tables, tokens = value.get("tables") or [], value.get("tokens") or {}
    if not isinstance(tables, (list, tuple)) or not isinstance(tokens, dict):
        return False
    if not isinstance(value.get("options") or {}, dict):
        return False
    if any(type(index) is not int for index in tokens.values()):
        return False
    for table in tables:
        if not isinstance(table, dict):
            return False
        rows = table.get("rows") or []
        counts = table.get("coverage") or {}
        if not isinstance(rows, (list, tuple)) or not all(map(_is_row_or_span, rows)):
            return False
        if not isinstance(counts, dict) or not isinstance(table.get("source") or {}, dict):
            return False
        if any(not isinstance(counts.get(key) or 0, int) for key in _COUNTS):
            return False
        if any(counts.get(of) and counts.get(f"{of}_found") is None for of in ("types", "tokens")):
            return False
    return True


def package_version() -> str:
    """Version of the installed package, `unknown` when it runs from a bare checkout."""
    try:
        return version("hf-embinit")
    except PackageNotFoundError:
        return "unknown"


def plain_json(value: Any) -> Any:
    """`value` as JSON holds it."""
    if isinstance(value, dict):
        return {str(k): plain_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [plain_json(v) for v in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if hasattr(value, "tolist"):
        return plain_json(value.tolist())
    return str(value)
