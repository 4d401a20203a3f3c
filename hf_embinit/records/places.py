"""Removes the folders of this machine from what is published: of a local path only the last part stays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EmbinitError
from ..tasks import find_folder

if TYPE_CHECKING:
    from .record import RunRecord

_PLACES = re.compile(r"(output|data|logging)_dir|resume_from_checkpoint|\w+_file")
"""Arguments that are always local paths."""
_SECRETS = re.compile(r"(\w+_)?(api_key|password|secret)|((hub|hf|access|auth)_)?token")
"""Arguments that open an account."""
_ROOTED = re.compile(r"file:|(~|\.{1,2})?[/\\]|[A-Za-z]:[/\\]|~$", re.IGNORECASE)
_IN_A_TEXT = re.compile(
    r"""(?<![\w:/\\.~<-])(?:(?:file:/*|~)?/[^\s/"'`<>]+|[A-Za-z]:[/\\]+[^\s/\\"'`<>]+)"""
    r"""(?:[/\\]+[^\s/\\"'`<>\])},;]+)+""",
    re.IGNORECASE,
)
"""A path from a root on, of two parts or more, inside a longer text; no part of an address of the web."""
_INSIDE = re.compile(
    r"\S+/\S+/\S+|\S+/\S+\.(txt|vec|zip|gz|bz2|xz|bin|pt|jsonl?|csv|tsv|parquet|safetensors)"
)
"""Texts that are no Hub id, which has one slash and is no file."""


def public_record(record: RunRecord) -> RunRecord:
    """The record without the folders of this machine, and without keys and passwords."""
    values = shorten(record.to_dict())
    arguments = {
        key: _last_part(value) if _PLACES.fullmatch(key) and isinstance(value, str) else value
        for key, value in values["arguments"].items()
        if not _SECRETS.fullmatch(key)
    }
    return type(record)(**{**values, "arguments": arguments})


def is_local_data(dataset: str, data_dir: str | None = None) -> bool:
    """Whether the data of a run are a local folder or file, even if the Hub has some of that name."""
    if _is_local(dataset):
        return True
    if "/" not in dataset or data_dir is not None:
        return "/" in dataset
    with suppress(EmbinitError):  # a wrong HF_EMBINIT_DATA
        return find_folder(dataset, None) is not None
    return False


def without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the folders of this machine; its tokens are not changed."""
    told = dict(settings)
    for key in told:
        if key in ("_name_or_path", "name_or_path") or key.endswith("_file"):
            told[key] = shorten(told[key])
    if isinstance(told.get("embinit"), list):
        told["embinit"] = shorten(told["embinit"])
    return told


def shorten(value: Any) -> Any:
    """`value` with every local path, a string or in one, reduced to its last part."""
    if isinstance(value, str):
        if _is_local(value):
            return _last_part(value)
        return _IN_A_TEXT.sub(lambda found: _last_part(found[0]), value)
    if isinstance(value, Mapping):
        return {key: shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shorten(item) for item in value]
    return value


def _is_local(text: str) -> bool:
    """Whether a text is a local path and not a Hub id, a name or a token."""
    if len(text) < 3:
        return False
    if _ROOTED.match(text):
        return True
    if "\n" in text or "://" in text:
        return False
    if _INSIDE.fullmatch(text):
        return True
    try:
        return ("/" in text or "\\" in text) and Path(text).exists()
    except OSError:  # too long for a path
        return False


def _last_part(text: str) -> str:
    return re.split(r"[/\\]", text.rstrip("/\\"))[-1]
