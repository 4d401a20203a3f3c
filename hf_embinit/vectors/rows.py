"""`RowCollector`: keeps the rows that were asked for while a file is read. n rows kept, D width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_CHUNK_BYTES = 16 << 20
"""Rows of a whole file are collected in chunks of this size; joining them needs one chunk more memory."""


class RowCollector:
    """Rows by the UTF-8 bytes of their token: those asked for, or all. The first row of a token wins."""

    def __init__(self, tokens: Sequence[str] | None):
        self.takes_all = tokens is None
        self.slots: dict[bytes, int] = {}
        for token in tokens or ():
            self.slots.setdefault(token.encode("utf-8", "backslashreplace"), len(self.slots))
        self.found = np.zeros(len(self.slots), dtype=bool)
        self.duplicates = 0
        self._dim = 0
        self._rows_per_chunk = 1
        self._chunks: list[np.ndarray] = []

    def start(self, dim: int) -> None:
        """Fixes the width D of the rows."""
        self._dim = dim
        self._rows_per_chunk = max(1, _CHUNK_BYTES // (4 * dim))
        if not self.takes_all:  # pages of rows that are never found are never touched
            self._chunks = [np.empty((len(self.slots), dim), dtype=np.float32)]

    def add(self, token: bytes, row: np.ndarray) -> None:
        """Keeps a copy of `row` `[D]` if its token is wanted and new."""
        slot = self.slots.get(token)
        if self.takes_all:
            if slot is not None:
                self.duplicates += 1
                return
            slot = self.slots[token] = len(self.slots)
            chunk, place = divmod(slot, self._rows_per_chunk)
            if chunk == len(self._chunks):
                self._chunks.append(np.empty((self._rows_per_chunk, self._dim), dtype=np.float32))
            self._chunks[chunk][place] = row
        elif slot is not None:
            if self.found[slot]:
                self.duplicates += 1
                return
            self.found[slot] = True
            self._chunks[0][slot] = row

    def finish(self) -> tuple[list[str], Tensor, dict[str, Any]]:
        """Tokens, rows `[n, D]` and counts. Rows with NaN or infinity are left out, named in the counts."""
        matrix = self._joined()
        keep = self.found if not self.takes_all else np.ones(len(self.slots), dtype=bool)
        step = self._rows_per_chunk
        finite = np.concatenate(
            [np.isfinite(matrix[i : i + step]).all(axis=1) for i in range(0, len(matrix), step)]
            or [np.zeros(0, dtype=bool)]
        )
        tokens = [token.decode("utf-8", "backslashreplace") for token in self.slots]
        non_finite = [tokens[i] for i in np.flatnonzero(keep & ~finite)]
        kept = np.flatnonzero(keep & finite)
        for i in range(0, len(kept), step):  # in place: rows only move towards the front
            block = kept[i : i + step]
            if block[-1] != i + len(block) - 1:
                matrix[i : i + len(block)] = matrix[block]
        if len(kept) < len(matrix):
            matrix.resize((len(kept), self._dim), refcheck=False)
        counts = {
            "asked": None if self.takes_all else len(self.slots),
            "found": len(kept),
            "duplicates": self.duplicates,
            "non_finite": non_finite,
        }
        return [tokens[i] for i in kept], torch.from_numpy(matrix), counts

    def _joined(self) -> np.ndarray:
        if not self.takes_all:
            return self._chunks.pop()
        matrix = np.empty((len(self.slots), self._dim), dtype=np.float32)
        self._chunks.reverse()
        start = 0
        while self._chunks:  # each chunk is freed as soon as it is copied
            rows = self._chunks.pop()[: len(matrix) - start]
            matrix[start : start + len(rows)] = rows
            start += len(rows)
        return matrix
