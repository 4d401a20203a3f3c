"""The vocabulary beside an adapter, as files: `embinit.json`, `embinit.safetensors`, and a hint to PEFT."""

from __future__ import annotations

import json
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import DataNotFoundError, InvalidArgumentError
from ..foreign import read_json, reading
from ..hub import checkpoint_file
from ..manifest import row_ids, side_of
from ..tables import Side

MANIFEST, ROWS = "embinit.json", "embinit.safetensors"
HINT = "load_with_hf_embinit_load_adapter"
"""A key of `adapter_config.json` that PEFT does not know: it names it in a warning when it loads one."""

_GROWTH = ("expand_vocabulary", "resize")


def grown_ids(events: Iterable[dict[str, Any]]) -> dict[Side, set[int]]:
    """Ids that came with a resize or an expansion, or were filled by one, by side: where a later pruning put
    them, and none from before another tokenizer, whose ids are others."""
    found: dict[Side, set[int]] = {}
    for event in events:
        if event["event"] == "replace_tokenizer":
            found = {}
        elif event["event"] == "prune_vocabulary":
            side, moved = side_of(event), enumerate(event.get("old_ids") or ())
            found[side] = {new for new, old in moved if old in found.get(side, ())}
        if event["event"] not in _GROWTH:
            continue
        ids = found.setdefault(side_of(event), set())
        ids.update(range(*event["rows"]), (event.get("tokens") or {}).values())
        for table in event.get("tables", ()):
            ids.update(row_ids(table["rows"]))
    return {side: ids for side, ids in found.items() if ids}


def rows_told(events: Iterable[dict[str, Any]], side: Side) -> int | None:
    """How many rows a side has by its events; None where they do not tell."""
    rows: int | None = None
    for event in events:
        if event["event"] == "replace_tokenizer":
            rows = None  # of all sides together
        elif event["event"] in (*_GROWTH, "prune_vocabulary") and side_of(event) == side:
            rows = event["rows"][1]
    return rows


def sizes_at(events: list[Any], of_base: list[Any], name: str) -> dict[Side, int]:
    """Rows that a base with the events `of_base` must have, by side, to be grown by the rest of `events`."""
    if events[: len(of_base)] != of_base:
        raise InvalidArgumentError(
            f"base has a history of its own (config.embinit), which {name} does not continue: give the "
            f"checkpoint that the adapter was made on"
        )
    sizes: dict[Side, int] = {}
    later = events[len(of_base) :]
    grown = grown_ids(later)
    for event in later:
        side = side_of(event)
        if event["event"] == "repair" and {*event["rows"]} <= grown.get(side, set()):
            continue  # rows that come with the adapter
        shrunk = event["event"] in _GROWTH and event["rows"][1] < sizes.get(side, event["rows"][0])
        if event["event"] not in _GROWTH or shrunk:
            raise InvalidArgumentError(
                f"the model of {name} was changed by {event['event']!r} after its checkpoint: save that "
                f"model and give it as base"
            )
        sizes.setdefault(side, event["rows"][0])
    return sizes


def read_vocabulary(
    adapter: str | PathLike[str], revision: str | None, subfolder: str | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The manifest beside an adapter and its rows, checked. Raises `DataNotFoundError` where a file is not
    there, `InvalidArgumentError` for a damaged one and for those of an earlier adapter."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    where = f"{adapter}/{subfolder}" if subfolder else adapter
    way_out = "Save it with its vocabulary: hf_embinit.save_vocabulary(model, folder)."
    files: list[Path] = []
    for name in (MANIFEST, ROWS):
        path = checkpoint_file(adapter, name, revision, subfolder)
        if path is None and files:
            raise InvalidArgumentError(f"{where} has {MANIFEST} and no {name}: it is not complete")
        if path is None:
            raise DataNotFoundError(f"{where} has no {name}: this adapter came without its rows. {way_out}")
        files.append(path)
    config = checkpoint_file(adapter, "adapter_config.json", revision, subfolder)
    if config is None:
        raise DataNotFoundError(f"{where} has no adapter_config.json: give an adapter that PEFT has saved")
    if HINT not in read_json(config, error=InvalidArgumentError):
        raise InvalidArgumentError(
            f"{files[0]} is not of the adapter beside it, which was saved later and without it: remove it if "
            f"that adapter's model has not grown, else call hf_embinit.save_vocabulary(model, folder) again"
        )
    weights = [
        checkpoint_file(adapter, f"adapter_model.{ending}", revision, subfolder)
        for ending in ("safetensors", "bin")
    ]
    if not any(weights):
        raise DataNotFoundError(
            f"{where} has no adapter_model.safetensors: give an adapter that PEFT has saved"
        )
    if weights[0] is not None:
        with reading(weights[0], InvalidArgumentError), safe_open(weights[0], "pt"):
            pass
    try:
        manifest = json.loads(files[0].read_text(encoding="utf-8"))
        for side in manifest["sides"].values():
            if not isinstance(side["rows"], int) or not all(isinstance(i, int) for i in side["ids"]):
                raise ValueError("sizes and ids are no numbers")
        grown_ids(manifest["events"])
        return {k: manifest[k] for k in ("events", "sides", "tables", "tied")}, load_file(files[1])
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise InvalidArgumentError(
            f"{files[0]} and {ROWS} cannot be read ({error}): save them again"
        ) from error


def leave_hint(folder: Path, hidden: Path) -> None:
    """Writes an adapter's configuration of `folder` into `hidden`, with `HINT` in it; nothing without one."""
    config = folder / "adapter_config.json"
    if config.is_file():
        text = "the vocabulary grew: hf_embinit.load_adapter(base, folder) grows the base model alike"
        stored = json.loads(config.read_text(encoding="utf-8")) | {HINT: text}
        (hidden / config.name).write_text(json.dumps(stored, indent=2, sort_keys=True), encoding="utf-8")
