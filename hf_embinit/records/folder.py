"""The rules of a run folder: finished runs are never overwritten, unfinished ones resumed only on demand."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RunFolderError
from ..foreign import read_json
from .checkpoints import START_NAME, checkpoint_folders, obstacle
from .files import RESULTS_NAME
from .lock import LOCK_NAME, check_lock, lock_folder, unlock_folder
from .record import is_finished, to_plain, write_json

logger = logging.getLogger(__name__)

ARGUMENTS_NAME = "arguments.json"
_OF_A_START = (START_NAME, "figures")
"""Folders that a run fills before its first step."""
INPUTS_NAME = "inputs.json"
_OVERWRITTEN = ("README.md", "*config.json", "tokenizer*", "*.safetensors", "*.bin")
"""What a run saves at its end, by patterns."""
_made: dict[Path, list[Path]] = {}
"""Run folder of this process -> the folders that were made for it, from the inside out."""


@dataclass(frozen=True)
class RunState:
    """The folder of a run, and the checkpoint that it starts from."""

    folder: Path
    checkpoint: str | None
    """Argument for `trainer.train(resume_from_checkpoint=...)`; None starts at step 0."""


def prepare_run_folder(
    output_dir: str | os.PathLike[str],
    resume: bool | str | None = None,
    arguments: Mapping[str, Any] | None = None,
    *,
    is_main_process: bool = True,
) -> RunState:
    """Creates and locks `output_dir` for a run, or says in one sentence why it cannot be used.

    `resume` is `--resume_from_checkpoint`: None or False starts afresh; True (or "true", "last") goes on
    from the last intact checkpoint in `output_dir`, from step 0 when there is none; any other text is a
    checkpoint folder. `arguments`, kept in `arguments.json`, are the flags that must stay when a run goes
    on. The main process holds the lock until it ends or calls `unlock_folder`, and removes what a killed
    run left incomplete (temporary files, damaged checkpoints). Every process of a run may call this and
    gets the same answer.

    Raises `RunFolderError` when the folder holds a finished run, when another run uses it, when it holds a
    model that is of no run, when it holds checkpoints and `resume` was not given, when the checkpoint asked
    for is missing or damaged, or when `arguments` differ from the interrupted run's.
    """
    folder = Path(output_dir)
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"--output_dir {folder} is a file, not a folder")
    if is_main_process:
        check_lock(folder)  # a run that is alive is not to be gone on with
    checkpoint = _start_from(folder, resume, arguments)
    if is_main_process:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:  # of a file system that has no new folders
            raise RunFolderError(f"--output_dir {folder} cannot be made") from None
        lock_folder(folder)
        try:
            checkpoint = _start_from(folder, resume, arguments)  # another run may have come in between
        except RunFolderError:
            unlock_folder(folder)
            raise
        _made[folder] = made
        _remove_partial_writes(folder)
        if checkpoint is None and (folder / ARGUMENTS_NAME).is_file():
            for name in _OF_A_START:  # a run that ended before its first checkpoint: no part of this one
                shutil.rmtree(folder / name, ignore_errors=True)
        if arguments is not None:
            write_json(folder / ARGUMENTS_NAME, arguments)
    return RunState(folder, None if checkpoint is None else str(checkpoint))


def keep_inputs(folder: Path, digests: Mapping[str, str], checkpoint: str | None = None) -> None:
    """Keeps the digests of what a run reads, by its name, in `inputs.json`.

    Raises `RunFolderError` when a run that goes on from `checkpoint` began with others.
    """
    begun = folder if checkpoint is None else Path(checkpoint).absolute().parent
    if checkpoint is not None and (begun / INPUTS_NAME).is_file():
        before = read_json(begun / INPUTS_NAME, error=RunFolderError)
        for name in sorted(before.keys() | digests.keys()):
            if before.get(name) != digests.get(name):
                raise RunFolderError(
                    f"{name!r} of this command is not what the interrupted run in {begun} began with: its "
                    "files have changed since; bring them back, or start in another --output_dir"
                )
    write_json(folder / INPUTS_NAME, digests)


def remove_empty_runs() -> None:
    """Removes the run folders of this process in which no run began, with the folders made on the way.

    That is the end of a program that fails between `prepare_run_folder` and training.
    """
    for folder, made in _made.items():
        if not folder.is_dir() or {path.name for path in folder.iterdir()} - {ARGUMENTS_NAME, LOCK_NAME}:
            continue
        unlock_folder(folder)
        (folder / ARGUMENTS_NAME).unlink(missing_ok=True)
        with suppress(OSError):  # what someone else has put something into stays
            for path in made:
                path.rmdir()
    _made.clear()


def _start_from(folder: Path, resume: bool | str | None, arguments: Mapping[str, Any] | None) -> Path | None:
    """The checkpoint to go on from, None for step 0; raises `RunFolderError` as `prepare_run_folder` does."""
    if is_finished(folder):
        raise RunFolderError(
            f"--output_dir {folder} holds a finished run ({RESULTS_NAME}). "
            "Choose another folder, or delete this one to run again."
        )
    theirs = sorted({file.name for pattern in _OVERWRITTEN for file in folder.glob(pattern)})
    if theirs and not (folder / ARGUMENTS_NAME).exists():
        raise RunFolderError(
            f"--output_dir {folder} holds {theirs[0]}, and no run of a recipe: it would be overwritten. "
            "Choose another folder."
        )
    wanted = _resume_wanted(resume)
    checkpoints = list_checkpoints(folder)
    if checkpoints and wanted is None:
        raise RunFolderError(
            f"--output_dir {folder} holds an unfinished run (last checkpoint: {checkpoints[-1].name}). "
            "Go on with --resume_from_checkpoint true, or choose another folder."
        )
    checkpoint: Path | None = None
    if wanted == "last":
        checkpoint = checkpoints[-1] if checkpoints else None
        if checkpoint is None:
            logger.warning("No complete checkpoint in %s: starting from step 0.", folder)
    elif wanted is not None:
        checkpoint = Path(wanted)
        why = obstacle(checkpoint) if checkpoint.is_dir() else "there is no such folder"
        if why is not None:
            known = ", ".join(c.name for c in checkpoints) or "none"
            raise RunFolderError(
                f"--resume_from_checkpoint {wanted} is not a complete checkpoint: {why}. "
                f"Complete ones in {folder}: {known}."
            )
    if checkpoint is not None and arguments is not None:
        _check_same_arguments(folder, arguments, required=checkpoint.absolute().parent == folder.absolute())
    return checkpoint


def _resume_wanted(resume: bool | str | None) -> str | None:
    """None, "last" or a path, from the value of `--resume_from_checkpoint`."""
    if resume is None or resume is False or str(resume).lower() in ("", "false", "no", "none", "0"):
        return None
    if resume is True or str(resume).lower() in ("true", "yes", "last", "1"):
        return "last"
    return str(resume)


def list_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """The `checkpoint-<step>` folders in `folder` that a run can go on from, by step."""
    return [c for c in checkpoint_folders(Path(folder)) if obstacle(c) is None]


def _check_same_arguments(folder: Path, arguments: Mapping[str, Any], required: bool) -> None:
    try:
        before = read_json(folder / ARGUMENTS_NAME, error=RunFolderError)
    except RunFolderError as error:
        if not required:
            return  # the checkpoint is of another folder
        raise RunFolderError(
            f"{error} It tells whether this command goes on with the run in {folder}: put it back, or choose "
            f"another --output_dir."
        ) from None
    now = to_plain(dict(arguments))
    for name in sorted(set(before) & set(now)):  # another version has other flags
        if before[name] != now[name]:
            raise RunFolderError(
                f"--{name} is {now.get(name)!r}, but the interrupted run in {folder} had "
                f"{before.get(name)!r}. Resume with the same value, or choose another --output_dir."
            )


def _remove_partial_writes(folder: Path) -> None:
    for temporary in folder.glob(".*.json.*.tmp"):
        logger.info("Removing %s, left by an interrupted run.", temporary)
        temporary.unlink(missing_ok=True)
    for checkpoint in checkpoint_folders(folder):
        why = obstacle(checkpoint)
        if why is not None:
            logger.warning("Removing %s: %s.", checkpoint, why)
            shutil.rmtree(checkpoint, ignore_errors=True)
