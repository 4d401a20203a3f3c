"""`PretrainedVectors`: tokens, their rows, and where both came from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..arguments import check_fields, checked
from ..errors import InvalidArgumentError
from ..tokens import TokenFamily


@dataclass
class PretrainedVectors:
    """Rows of a pre-trained table with their tokens and their source."""

    tokens: list[str]
    """The token of each row, in the spelling of `family`."""
    matrix: Tensor
    """`[n, D]` float32 on the CPU: a tensor that is so already is kept, not copied."""
    name: str
    """File name, folder or Hub id that the rows were read from."""
    family: TokenFamily = "words"
    revision: str | None = None
    """Commit of the Hub repository, when the source is one."""
    digest: str | None = None
    """`sha256:...` of the tokens and rows held here (see `rows_digest`): no source is hashed as a whole."""
    report: dict[str, Any] = field(default_factory=dict)
    """What the reader counted: rows in the file, duplicates, skipped lines, header, and so on."""
    provenance: dict[str, Any] | None = None
    """What the vectors were trained on, and how, as JSON; None when it is unknown."""

    def __post_init__(self) -> None:
        check_fields(self)
        shape = tuple(self.matrix.shape)
        if len(shape) != 2 or shape[0] != len(self.tokens) or not self.matrix.is_floating_point():
            raise InvalidArgumentError(
                f"{len(self.tokens)} tokens but a matrix of {self.matrix.dtype} of shape {shape}: expected a "
                f"row of floating-point numbers for each token"
            )
        _require_values(self.matrix)
        given = self.matrix.detach().cpu()
        self.matrix = given.to(torch.float32)
        if given.dtype == torch.float64:
            beyond = (given.isfinite() & ~self.matrix.isfinite()).any(dim=1).nonzero()
            if len(beyond):
                raise InvalidArgumentError(
                    f"{self.name}: values of {len(beyond)} rows are beyond float32, such as those of "
                    f"{self.tokens[int(beyond[0])]!r}: leave these rows out or divide the whole matrix"
                )

    @property
    def dim(self) -> int:
        """Width D of the rows."""
        return self.matrix.shape[1]

    @property
    def source(self) -> dict[str, Any]:
        """What a manifest says of the vectors: name, revision, digest and, when known, provenance."""
        source: dict[str, Any] = {"name": self.name, "revision": self.revision, "digest": self.digest}
        return source if self.provenance is None else {**source, "provenance": self.provenance}

    def __len__(self) -> int:
        return len(self.tokens)


def _require_values(matrix: Tensor) -> None:
    if matrix.is_meta or matrix.layout != torch.strided:
        what = "is on the meta device" if matrix.is_meta else "is sparse"
        raise InvalidArgumentError(f"matrix {what}: give one that has all its values (matrix.to_dense())")


@checked
def rows_digest(tokens: Sequence[str], matrix: Tensor) -> str:
    """`sha256:...` of the token strings (UTF-8, each followed by a newline) and then the float32 rows.

    Equal rows in equal order have equal digests, in whatever format they are stored. Raises
    `InvalidArgumentError` for a matrix on the meta device or a sparse one.
    """
    _require_values(matrix)
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(token.encode("utf-8", "backslashreplace") + b"\n")
    digest.update(matrix.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return f"sha256:{digest.hexdigest()}"
