"""Writes a checkpoint whose tables changed: the tables by blocks, every other byte as it is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from ..arguments import FilePath, Tokenizer, checked
from ..errors import InvalidArgumentError, RunFolderError
from ..files import shown, whole_folder
from .beside import copy_beside, folder_of
from .checkpoint import StoredCheckpoint, checkpoint_of
from .modules_beside import changed_modules
from .safetensors_files import INDEX, Shard, StoredTensor
from .stored_rows import BLOCK_BYTES, StoredRows

_ALONGSIDE = (".json", ".jsonl", ".txt", ".model", ".jinja", ".py", ".spm", ".tiktoken", ".bpe")
"""Endings of the files that a checkpoint needs beside its weights."""
_NOT_ALONGSIDE = (
    *("config.json", "generation_config.json", "trainer_state.json", "all_results.json"),
    *("results.json", "files.json", "arguments.json", "inputs.json", "matrix.json"),
)
"""Written anew, or of the run that the checkpoint is from: a changed checkpoint is no run."""
_PREDICTIONS = "_predictions.jsonl"
_OF_TOKENIZERS = ("tokenizer", "vocab", "merges", "special_tokens_map", "added_tokens", "chat_template")


@checked
def save_checkpoint(
    model: PreTrainedModel,
    folder: FilePath,
    tokenizer: Tokenizer | None = None,
    *,
    link: bool = False,
    beside: FilePath | None = None,
) -> None:
    """Saves model, config with its manifest, and tokenizer into a new folder: everything or nothing.

    A model of `open_checkpoint` is written from its files: the tensors that changed by blocks, all others
    byte for byte, in the same shards, and small files beside the weights are copied. Every other model is
    saved by its `save_pretrained`. The folder is there once all of it is written.

    Args:
        folder: must not exist, or be empty.
        tokenizer: saved with the model; where it is None, the tokenizer's files of an opened checkpoint are
            copied.
        link: makes hard links of files of weights that do not change, where source and target share a file
            system. Both folders then hold the same file: whoever writes into it changes both.

        beside: the folder or Hub id that a loaded model came from: what processors and sentence-transformers
            keep there and neither model nor tokenizer saves is copied. The last event of the manifest names a
            Hub id, this one or that of an opened checkpoint, as `base_model`.

    Raises:
        RunFolderError: a folder that is taken or cannot be written. Too little room on its disk is found
            before the first byte is written.
    """
    stored = checkpoint_of(model)
    if link and stored is None:
        raise InvalidArgumentError("link=True is for a model of open_checkpoint: a loaded one has no files")
    if stored is not None and not stored.is_whole:
        raise InvalidArgumentError(
            "the model was opened with tables_only=True, and its other weights are not here: leave that out"
        )
    if stored is not None:
        repo_id = stored.repo_id
    else:
        repo_id = None if beside is None or Path(beside).expanduser().exists() else str(beside)
    if repo_id is not None:
        _name_base_model(model, repo_id)
    if stored is not None:
        source: Path | None = stored.files.folder
    else:
        source = None if beside is None else folder_of(beside, model)
    modules = {} if source is None else changed_modules(source, model, tokenizer)
    with whole_folder(folder) as hidden:
        if stored is None:
            needed = sum(p.numel() * p.dtype.itemsize for p in model.parameters())
            _require_room(needed, hidden, "choose a folder on another disk")
            model.save_pretrained(hidden)
        else:
            _write(model, stored, hidden, link, tokenizer is None)
        if tokenizer is not None:
            tokenizer.save_pretrained(hidden)
        if source is not None:
            copy_beside(source, hidden, templates=tokenizer is None)
        for name, text in modules.items():
            (hidden / name).write_text(text)


def _name_base_model(model: PreTrainedModel, repo_id: str) -> None:
    """Has the last event of the manifest say which model of the Hub was changed."""
    *before, last = getattr(model.config, "embinit", None) or [None]
    if last is not None:
        model.config.embinit = [*before, {**last, "base_model": repo_id}]


@dataclass
class _Part:
    """One tensor of a new file: its header's entry, and what is written for it."""

    stored: StoredTensor
    """Of a tensor that the old files lack, one of its dtype, and its own name."""
    replacement: Tensor | Callable[[StoredRows], Iterable[Tensor]] | None
    """None for the bytes as they are; a function makes as many rows of the stored ones, by blocks."""
    added: bool = False
    """Whether the old files lack it."""

    @property
    def shape(self) -> list[int]:
        return list(self.replacement.shape if isinstance(self.replacement, Tensor) else self.stored.shape)

    @property
    def size(self) -> int:
        if not isinstance(self.replacement, Tensor):
            return self.stored.size
        return self.replacement.numel() * self.replacement.dtype.itemsize


@dataclass
class _Plan:
    """One file to write."""

    shard: Shard
    parts: list[_Part]
    header: bytes
    unchanged: bool
    linked: bool = False

    @property
    def size(self) -> int:
        """Bytes of the new file."""
        return self.shard.size if self.unchanged else len(self.header) + sum(part.size for part in self.parts)


def _write(
    model: PreTrainedModel, stored: StoredCheckpoint, folder: Path, link: bool, with_tokenizer: bool
) -> None:
    source = stored.files.folder
    untied = _untied(stored, model)
    plans = [_plan(shard, stored, model, untied) for shard in stored.files.shards]
    if link:
        for plan in plans:
            plan.linked = plan.unchanged and _linked(plan.shard.path, folder / plan.shard.path.name)
    alongside = [path for path in sorted(source.iterdir()) if _goes_along(path, with_tokenizer)]
    needed = sum(plan.size for plan in plans if not plan.linked) + sum(p.stat().st_size for p in alongside)
    _require_room(needed, folder, "choose a folder on another disk, or --link untouched files")
    with logging.tqdm(total=needed, unit="B", unit_scale=True, desc="Writing", disable=None) as bar:
        for plan in plans:
            if not plan.linked:
                _write_shard(plan, folder / plan.shard.path.name, bar.update)
        for path in alongside:
            shutil.copyfile(path, folder / path.name)
            bar.update(path.stat().st_size)
    if stored.files.index is not None:
        _write_index(stored.files.index, plans, folder / INDEX)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


def _require_room(needed: int, folder: Path, way_out: str) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RunFolderError(
            f"the disk of {shown(folder.parent)} has {_size(free)} left, but the checkpoint needs "
            f"{_size(needed)}: {way_out}"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.2f} MiB"


def _plan(shard: Shard, stored: StoredCheckpoint, model: PreTrainedModel, untied: list[_Part]) -> _Plan:
    parts: list[_Part] = []
    for tensor in shard.tensors:
        place, source = stored.places.get(tensor.name), stored.repeated.get(tensor.name)
        if source is None or model.get_parameter(place or "") is not model.get_parameter(source):
            change = stored.changes.get(place or "") or _replacement(tensor, place, model)
            parts.append(_Part(tensor, change))
    for part in untied:
        if part.stored.path == shard.path:
            _insert(parts, part)
    header: dict[str, Any] = {} if shard.metadata is None else {"__metadata__": shard.metadata}
    at = 0
    for part in parts:
        entry = {"dtype": part.stored.dtype, "shape": part.shape, "data_offsets": [at, at + part.size]}
        header[part.stored.name] = entry
        at += part.size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    unchanged = len(parts) == len(shard.tensors) and all(part.replacement is None for part in parts)
    return _Plan(shard, parts, len(text).to_bytes(8, "little") + text, unchanged)


def _replacement(tensor: StoredTensor, place: str | None, model: PreTrainedModel) -> Tensor | None:
    """What the model has in the place of a tensor of the files, None where it is that tensor still."""
    if place is None:
        return None
    now = model.get_parameter_or_buffer(place).detach()
    if now.is_meta:
        return None
    if isinstance(now, StoredRows):
        return None if now.file == tensor and now.is_as_stored else now
    before = tensor.read()
    return None if now.shape == before.shape and torch.equal(_bytes(now), _bytes(before)) else now


def _untied(stored: StoredCheckpoint, model: PreTrainedModel) -> list[_Part]:
    """What the files lack since it was tied; it stands in the file of what it was tied to."""
    known = set(stored.places.values())
    written = {id(model.get_parameter_or_buffer(place)) for place in known}
    found = []
    for place, like in stored.held.items():
        now = model.get_parameter_or_buffer(place)
        if place not in known and id(now) not in written:
            written.add(id(now))
            found.append(_Part(replace(like, name=place), now.detach(), added=True))
    return found


def _insert(parts: list[_Part], new: _Part) -> None:
    """Puts a tensor where the safetensors library would: by name, among those of its dtype."""
    alike = [i for i, part in enumerate(parts) if part.stored.dtype == new.stored.dtype]
    before = [i for i in alike if parts[i].stored.name < new.stored.name]
    parts.insert(before[-1] + 1 if before else alike[0], new)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _linked(source: Path, target: Path) -> bool:
    """Whether a hard link could be made."""
    with contextlib.suppress(OSError):
        os.link(source.resolve(), target)
        return True
    return False


def _goes_along(path: Path, with_tokenizer: bool) -> bool:
    name = path.name
    if not path.is_file() or name in _NOT_ALONGSIDE or name.endswith((".index.json", _PREDICTIONS)):
        return False
    if name.startswith(_OF_TOKENIZERS) or path.suffix in (".model", ".spm", ".tiktoken", ".bpe"):
        return with_tokenizer
    return path.suffix in _ALONGSIDE or name.startswith(("LICENSE", "NOTICE"))


def _write_shard(plan: _Plan, target: Path, done: Callable[[int], object]) -> None:
    with plan.shard.path.open("rb", buffering=0) as source, target.open("wb", buffering=0) as file:
        if plan.unchanged:
            _copy(source, 0, plan.shard.size, file, done)
            return
        file.write(plan.header)
        done(len(plan.header))
        for start, end, part in _spans(plan.parts):
            if part is None:
                _copy(source, start, end - start, file, done)
                continue
            for block in _blocks(part):
                _write_all(file, memoryview(_bytes(block).numpy().data))
                done(block.numel() * block.dtype.itemsize)


def _spans(parts: list[_Part]) -> Iterator[tuple[int, int, _Part | None]]:
    """What to write in turn: bytes of the old file, neighbours as one, or a part in their place."""
    start = end = 0
    for part in parts:
        if part.replacement is None and part.stored.start == end:
            end = part.stored.end
            continue
        if end > start:
            yield start, end, None
        start = end = part.stored.end
        if part.replacement is None:
            start = part.stored.start
        else:
            yield 0, 0, part
    if end > start:
        yield start, end, None


def _blocks(part: _Part) -> Iterator[Tensor]:
    if isinstance(part.replacement, StoredRows):
        yield from part.replacement.blocks()
    elif isinstance(part.replacement, Tensor):
        yield part.replacement
    elif part.replacement is not None:
        yield from part.replacement(StoredRows(part.stored))


def _write_all(file: BinaryIO, view: memoryview) -> None:
    while view:
        view = view[file.write(view) :]


def _copy(source: BinaryIO, start: int, count: int, target: BinaryIO, done: Callable[[int], object]) -> None:
    """Copies bytes to the end of `target`, inside the kernel where it can."""
    at, end = start, start + count
    while at < end:
        size = min(end - at, 4 * BLOCK_BYTES)
        try:
            copied = os.copy_file_range(source.fileno(), target.fileno(), size, offset_src=at)
        except (AttributeError, OSError):  # not Linux, or two file systems that do not know each other
            copied = 0
        if not copied:
            source.seek(at)
            data = source.read(min(size, BLOCK_BYTES))
            if not data:
                raise RunFolderError(f"{source.name} has become shorter while it was copied")
            _write_all(target, memoryview(data))
            copied = len(data)
        at += copied
        done(copied)


def _write_index(index: dict[str, Any], plans: list[_Plan], path: Path) -> None:
    """The old index with the new sizes, as `save_pretrained` writes one."""
    parts = [(plan, part) for plan in plans for part in plan.parts]
    told = index.get("metadata")
    metadata = dict(told) if isinstance(told, dict) else {}
    if "total_size" in metadata:
        metadata["total_size"] = sum(part.size for _, part in parts)
    if isinstance(metadata.get("total_parameters"), int):
        new = sum(_numel(part.shape) - (0 if part.added else _numel(part.stored.shape)) for _, part in parts)
        metadata["total_parameters"] += new
    weight_map = {part.stored.name: plan.shard.path.name for plan, part in parts}
    made = {**index, "metadata": metadata, "weight_map": weight_map}
    path.write_text(json.dumps(made, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _numel(shape: Any) -> int:
    return int(torch.Size(shape).numel())
