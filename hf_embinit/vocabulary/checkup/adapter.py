"""Checks of an adapter's folder: whether it is whole, fits its base, and can be loaded by a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ...errors import EmbinitError
from ...foreign import read_json
from ...hub import load_pretrained
from ...manifest import read_manifest
from ...tables import StoredTensor, read_shard
from ...vectors import read_pickle
from ..adapter_files import MANIFEST, ROWS, sizes_at
from .finding import SHOWN, Finding

WEIGHTS, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
"""The files that PEFT reads an adapter from: one of them."""
_TABLES = ("embed_tokens", "lm_head", "wte", "word_embeddings", "shared", "embed_in", "embed_out")
_TRAINED_ROWS = "trainable_tokens_delta"
"""What PEFT calls the rows of `trainable_token_indices`."""


@dataclass
class AdapterCase:
    """An adapter and what is known of its base."""

    name: str
    base: str
    base_rows: int | None
    """None where the base cannot be had."""
    base_events: list[Any]
    manifest: dict[str, Any] | None
    """What `save_vocabulary` wrote beside the adapter."""
    stored_rows: dict[str, int]
    """Whole tables that are saved with it -> their rows."""
    trained: list[int]
    """Ids whose rows it trains."""
    highest: int
    """The highest id of the tokenizer beside it; -1 without one."""
    tensors: dict[str, Tensor | StoredTensor]
    """What was trained, by name."""
    has_weights: bool
    """Whether the adapter itself is there, and not its configuration alone."""
    is_unread: bool
    """Whether its weights are a pickle, and stay unread."""
    has_rows: bool
    """Whether the rows that go with `manifest` are there."""


def adapter_case(folder: Path, tokenizer: Any, allow_pickle: bool) -> AdapterCase:
    """Reads an adapter's folder. Raises `EmbinitError` for files that are damaged."""
    config = read_json(folder / "adapter_config.json")
    has_weights, has_pickle = (folder / WEIGHTS).is_file(), (folder / PICKLE).is_file()
    tensors: dict[str, Tensor | StoredTensor] = {}
    if has_weights:
        tensors.update((tensor.name, tensor) for tensor in read_shard(folder / WEIGHTS).tensors)
    elif has_pickle and allow_pickle:
        tensors.update((k, v) for k, v in read_pickle(folder / PICKLE).items() if isinstance(v, Tensor))
    base = str(config.get("base_model_name_or_path") or "")
    rows, events = None, []
    try:
        from transformers import AutoConfig

        found = load_pretrained(AutoConfig, base, f"the base {base!r}")
        rows = vars(found.get_text_config()).get("vocab_size")
        events = read_manifest(found)
    except EmbinitError:
        pass
    tokens = config.get("trainable_token_indices") or {}
    groups = list(tokens.values()) if isinstance(tokens, dict) else [tokens]
    return AdapterCase(
        name=str(folder),
        base=base,
        base_rows=rows,
        base_events=events,
        manifest=read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else None,
        stored_rows={
            name: tensor.shape[0]
            for name, tensor in tensors.items()
            if len(tensor.shape) == 2 and name.endswith(".weight") and name.split(".")[-2] in _TABLES
        },
        trained=sorted({i for group in groups for i in group if isinstance(i, int)}),
        highest=max(tokenizer.get_vocab().values(), default=-1) if tokenizer is not None else -1,
        tensors=tensors,
        has_weights=has_weights or has_pickle,
        is_unread=has_pickle and not has_weights and not allow_pickle,
        has_rows=(folder / ROWS).is_file(),
    )


def weights_are_missing(case: AdapterCase) -> Iterator[Finding]:
    """The configuration came without the tensors that were trained."""
    if not case.has_weights:
        yield Finding(
            "error",
            "adapter_weights_missing",
            f"{case.name} has an adapter_config.json, but neither {WEIGHTS} nor {PICKLE}",
            "Copy them from where the adapter was trained, or save it again: model.save_pretrained(folder)",
        )


def weights_are_a_pickle(case: AdapterCase) -> Iterator[Finding]:
    """Nothing is known of weights that stay unread."""
    if case.is_unread:
        yield Finding(
            "note",
            "adapter_unread",
            f"the weights of {case.name} are a pickle, {PICKLE}, which can run code: they were not read",
            "If you trust its author, give allow_pickle=True (hf-embinit doctor --allow_pickle)",
        )


def weights_are_broken(case: AdapterCase) -> Iterator[Finding]:
    """Tensors that are not finite, and trained rows of tokens that are zero."""
    broken: list[str] = []
    for name, there in case.tensors.items():
        if isinstance(there, StoredTensor) and not there.is_plain:
            continue
        tensor = there.read() if isinstance(there, StoredTensor) else there
        if not tensor.isfinite().all():
            broken.append(name)
        elif name.endswith(_TRAINED_ROWS) and (zero := int((tensor == 0).all(-1).sum())):
            yield Finding(
                "warning",
                "rows_of_zeros",
                f"{zero} of {len(tensor)} rows of tokens in {name} of {case.name} are zero",
                "Fill new rows before they are trained: hf_embinit.patch(model), or expand_vocabulary",
            )
    if broken:
        named = ", ".join(broken[:SHOWN]) + (" ..." if len(broken) > SHOWN else "")
        yield Finding(
            "error",
            "adapter_not_finite",
            f"{len(broken)} of {len(case.tensors)} tensors of {case.name} have NaN or infinite entries: "
            f"{named}",
            "Its training diverged: take an earlier checkpoint, or train again with a lower learning rate",
        )


def vocabulary_is_incomplete(case: AdapterCase) -> Iterator[Finding]:
    """One of the two files of a grown vocabulary came without the other."""
    if (case.manifest is not None) != case.has_rows:
        there, missing = (ROWS, MANIFEST) if case.has_rows else (MANIFEST, ROWS)
        yield Finding(
            "error",
            "adapter_vocabulary_incomplete",
            f"{case.name} has {there} without {missing}, so that load_adapter cannot grow its base",
            f"Copy {missing} from where the adapter was saved, or save both again: "
            f"hf_embinit.save_vocabulary(model, folder)",
        )


def base_is_missing(case: AdapterCase) -> Iterator[Finding]:
    """The base is neither on disk nor reachable."""
    if case.base_rows is None:
        yield Finding(
            "note",
            "adapter_base_unknown",
            f"the base {case.base!r} of {case.name} cannot be read, so that sizes are not compared",
            "Set base_model_name_or_path in adapter_config.json to its folder or Hub id",
        )


def base_has_another_size(case: AdapterCase) -> Iterator[Finding]:
    """The adapter was trained on another number of rows than its base has."""
    if case.base_rows is None:
        return
    if case.manifest is not None:
        try:
            sizes = sizes_at(case.manifest["events"], case.base_events, case.name)
        except EmbinitError as error:
            yield Finding("error", "adapter_base_size", str(error), "load_adapter refuses this base")
            return
        expected = next(iter(sizes.values()), None)
        if expected is not None and expected != case.base_rows:
            yield Finding(
                "error",
                "adapter_base_size",
                f"{case.name} grew a model of {expected} rows, but its base {case.base} has {case.base_rows}",
                "Give the base that it was trained on",
            )
        return
    needed = {*case.stored_rows.values(), *(i + 1 for i in case.trained[-1:])}
    wrong = [n for n in case.stored_rows.values() if n != case.base_rows]
    if wrong or any(n > case.base_rows for n in needed):
        yield Finding(
            "error",
            "adapter_base_size",
            f"{case.name} was trained on {max(wrong or needed)} rows, but its base {case.base} has "
            f"{case.base_rows}",
            "Resize the base before loading; save_vocabulary(model, folder) lets load_adapter do it",
        )


def tokenizer_is_too_large(case: AdapterCase) -> Iterator[Finding]:
    """The tokenizer beside the adapter has ids without rows."""
    sides = (case.manifest or {}).get("sides", {})
    rows = max([case.base_rows or 0, *(side["rows"] for side in sides.values()), *case.stored_rows.values()])
    if case.base_rows is not None and case.highest >= rows:
        yield Finding(
            "error",
            "ids_beyond_rows",
            f"the tokenizer has ids up to {case.highest}, but there are {rows} rows with {case.name}: "
            f"{case.highest + 1 - rows} too few",
            "Save the adapter with its vocabulary: hf_embinit.save_vocabulary(model, folder)",
        )


def servers_leave_rows_out(case: AdapterCase) -> Iterator[Finding]:
    """vLLM serves adapters on the vocabulary of their base alone."""
    if case.manifest is not None or case.trained or case.stored_rows:
        yield Finding(
            "note",
            "adapter_not_served",
            f"{case.name} holds rows of tokens, which vLLM does not load with an adapter",
            "Merge it for serving: hf-embinit merge",
        )


CHECKS = [
    weights_are_missing,
    weights_are_a_pickle,
    weights_are_broken,
    vocabulary_is_incomplete,
    base_is_missing,
    base_has_another_size,
    tokenizer_is_too_large,
    servers_leave_rows_out,
]
