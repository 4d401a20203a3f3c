"""The exception types that users of hf_embinit may catch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .display import printable


class EmbinitError(Exception):
    """Base of every error that hf_embinit raises on purpose.

    Its message is one line that a terminal can show, whatever the names in it hold.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class InvalidArgumentError(EmbinitError, ValueError):
    """An argument or flag has a value that cannot work."""


class UnknownNameError(EmbinitError, KeyError):
    """A name that is in no registry; the message suggests the nearest ones, and where options belong."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        known = sorted(known)
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f" Did you mean: {', '.join(close)}?" if close else ""
        stem, colon, option = name.partition(":")
        if colon and stem in known:  # as recipes take it
            option = option.partition(",")[0] or "name=value"
            hint = f" Give {stem!r} its options apart, as arguments or by --option {option}."
        self.message = f"Unknown {kind} {name!r}.{hint} Available: {', '.join(known) or 'none'}."
        super().__init__(self.message)

    def __str__(self) -> str:  # KeyError would print the repr
        return printable(self.message)


class VectorFileError(EmbinitError, ValueError):
    """A file of vectors or of a checkpoint is malformed; the message names it, and the line of a text."""


class UnsupportedModelError(EmbinitError, TypeError):
    """The model keeps its embeddings in a form that cannot be handled; nothing was changed."""


class DataNotFoundError(EmbinitError, FileNotFoundError):
    """Data is neither on disk nor reachable; the message says how to provide it."""


class NoSafetensorsError(DataNotFoundError):
    """A checkpoint has no safetensors; it may have a pickle."""


class FileWriteError(EmbinitError, OSError):
    """A file cannot be written: disk, permission or path; the message says which and what to do."""


class RunFolderError(EmbinitError, RuntimeError):
    """A run folder cannot be used as asked (finished already, or damaged)."""


class PublishError(EmbinitError, RuntimeError):
    """The Hub did not take a publication; the message says why and what the repository is like now."""


class VocabularyWarning(UserWarning):
    """Something noteworthy about new tokens: duplicates, known tokens, equal rows."""
