"""`config.embinit`: the list of events that say how every row of a checkpoint was initialised.

It is plain JSON inside the config, so `save_pretrained`, `push_to_hub` and `from_pretrained` carry it.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from .errors import DataNotFoundError, InvalidArgumentError
from .hub_access import hub_file

_WAY_OUT = "Give the folder or the Hub id of a saved model."


def record_event(config: PreTrainedConfig, event: str, **fields: Any) -> dict[str, Any]:
    """Appends one event (`"initialize"`, `"resize"`, ...) to `config.embinit` and gives it back as stored.

    The fields are made JSON: tensors and numpy numbers become numbers and lists, paths become strings. Raises
    `InvalidArgumentError` when `config.embinit` is there already but is no list.
    """
    entry = {"event": event, **_plain(fields), "version": package_version()}
    events = getattr(config, "embinit", None)
    if events is not None and not isinstance(events, list):
        raise InvalidArgumentError(
            f"config.embinit is {type(events).__name__}, expected the list of its events"
        )
    config.embinit = [
        *(events or []),
        entry,
    ]  # a new list: configs that were copied shallowly share the old one
    return entry


def read_manifest(source: Any, *, revision: str | None = None) -> list[dict[str, Any]]:
    """The events of a checkpoint (folder or Hub id), a config or a model, oldest first; may be empty.

    Reads `config.json` alone: the model class need not be known. `revision` is a branch, tag or commit of a
    Hub repository. Raises `DataNotFoundError` without one.
    """
    config = getattr(source, "config", source)
    if not isinstance(config, (str, PathLike)):
        return [dict(event) for event in getattr(config, "embinit", None) or []]
    path = Path(config)
    file = path if path.is_file() else path / "config.json"
    if not file.is_file():
        if path.exists():
            raise DataNotFoundError(f"{path} has no config.json: expected the folder of a saved model")
        found = hub_file(str(config), "config.json", revision=revision, way_out=_WAY_OUT)
        if found is None:
            raise DataNotFoundError(f"{config} has no config.json on the Hub. {_WAY_OUT}")
        file = found
    return json.loads(file.read_text(encoding="utf-8")).get("embinit") or []


def package_version() -> str:
    """Version of the installed package, `unknown` when it runs from a bare checkout."""
    try:
        return version("hf-embinit")
    except PackageNotFoundError:
        return "unknown"


def _plain(value: Any) -> Any:
    """`value` as JSON holds it."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return str(value)
