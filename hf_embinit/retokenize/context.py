"""`RetokenizeContext`: what a method may read, and `Recipe`: what it gives back.

A method is an initialiser of purpose `tokenizer`, a function from a context to the coefficients of the new
rows, or to a recipe that has more to say:

    @register_initializer("fvt", summary=..., reference=..., purpose="tokenizer")
    def fvt(context: RetokenizeContext) -> Coefficients: ...

It makes the rows that it can and leaves the others without weights. Special tokens are copied by their role
whatever it gives for them; rows that nothing made go down the chain: pieces, then a draw (see `complete`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..initializers import required
from .coefficients import Coefficients, Step
from .texts import TokenTexts


class Groups(NamedTuple):
    """Which old rows a drawn row has the mean and standard deviation of. -1 stands for all of them."""

    new: Tensor
    """The group of each new token, `[V']`."""
    old: Tensor
    """The group of each old token, `[V]`."""


@dataclass(frozen=True)
class Recipe:
    """How the rows of every table are made."""

    input: Coefficients
    """Of tables that ids are looked up in, and of output tables that are tied to them."""
    output: Coefficients
    """Of untied output tables, and of all output biases."""
    groups: Groups | None = None

    @classmethod
    def of(cls, made: Coefficients | Recipe) -> Recipe:
        """A recipe of what a method returned: coefficients alone are for inputs and outputs."""
        return made if isinstance(made, Recipe) else cls(made, made)

    def part_of(self, role: str, ids: Tensor) -> tuple[Coefficients, Groups | None]:
        """Coefficients and groups of the new `ids` `[R]` alone, for tables of a role; ids beyond the tokens
        are the mean."""
        part = self.output if role == "output" else self.input
        known = part.shape[0]
        part = part.padded(max(known, int(ids.max()) + 1)).taken(ids)
        if self.groups is None:
            return part, None
        groups = self.groups.new[ids.clamp_max(known - 1)]
        return part, Groups(torch.where(ids < known, groups, -1), self.groups.old)


@dataclass
class RetokenizeContext:
    """A request for the rows of a new vocabulary, `V'` tokens, from those of the old one, `V`."""

    new: TokenTexts
    old: TokenTexts
    num_old: int
    """V: rows of the old vocabulary, at least the old tokenizer's tokens; coefficients have as many columns.
    """
    input_table: Tensor
    """The old input table `[V, D]`, detached, in its own dtype; rows may lie in a file."""
    overlap: Tensor
    """For each new token the old one that stands for the same, or -1, as for special ones: int64 `[V']`."""
    copied: Tensor
    """For each new special token the old one with its role, or -1: int64 `[V']`."""
    generator: torch.Generator
    """The only source of randomness."""
    seed: int = 0
    vectors: Any = None
    """Vectors of a helper space: `PretrainedVectors`, a file, a folder or a Hub id."""
    texts: Iterable[str] | None = None
    """Text of the new tokenizer's language, read as often as needed."""
    parallel: Any = None
    """Text in both languages: pairs of the old and the new one."""
    dictionary: Any = None
    """Pairs of words of the old and the new language."""
    donor: Any = None
    """A model that has the new tokenizer already, with that tokenizer."""
    report: dict[str, Any] = field(default_factory=dict)
    """Entries for the report, added by the method."""

    @property
    def shape(self) -> tuple[int, int]:
        """`(V', V)`."""
        return len(self.new), self.num_old

    def overlap_copies(self) -> Coefficients:
        """A copy for each token that both vocabularies have; nothing for the others."""
        return Coefficients.copies(self.overlap, self.num_old, Step.OVERLAP)

    def role_copies(self) -> Coefficients:
        """A copy for each special token whose role the old tokenizer has; nothing for the others."""
        return Coefficients.copies(self.copied, self.num_old, Step.COPIED)

    def without_source(self) -> Tensor:
        """Ids of new tokens that are neither in the overlap nor special tokens, ascending: int64."""
        none = (self.overlap < 0) & (self.copied < 0)
        named = torch.tensor([bool(token) for token in self.new.tokens])
        named[sorted(self.new.special)] = False
        return (none & named).nonzero().flatten()

    def anchors(self) -> tuple[Tensor, Tensor]:
        """Tokens of both vocabularies, as (new ids, old ids), ascending by the new ones: int64 `[U]`."""
        new = (self.overlap >= 0).nonzero().flatten()
        return new, self.overlap[new]

    def require(self, name: str, method: str) -> Any:
        """The field `name`, or `InvalidArgumentError` saying which argument provides it."""
        return required(getattr(self, name), _PROVIDED_BY[name], method)


_PROVIDED_BY = {
    "vectors": "vectors= (--vectors): a file of vectors, a checkpoint folder or a Hub id",
    "texts": "texts= (--texts): text of the new tokenizer's language",
    "parallel": "parallel= (--parallel): a file of pairs of sentences",
    "dictionary": "dictionary= (--dictionary): a file of pairs of words",
    "donor": "donor= (--donor): a model with the new tokenizer",
}
