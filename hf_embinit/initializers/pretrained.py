"""Tables from pre-trained vectors: unchanged, standardized, shuffled, or random with their moments.

Four names a source (Kim et al. 2024, sections 3.2 to 3.4 and A.3): `<source>`, `<source>_xavier` (Eq. 1),
`<source>_shuffled`, `xavier_<source>` (Eq. 4). One mean and one sample standard deviation are taken over all
entries of the rows found. Tokens that the source lacks are drawn from the distribution that the initialiser
ends in: Xavier for `*_xavier`, a normal with the source's mean and standard deviation otherwise.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import Count, Share
from ..errors import InvalidArgumentError
from ..moments import ShuffleMode, shuffle, standardize, xavier_std
from ..tokens import align
from ..vectors import PretrainedVectors
from .context import InitContext
from .orthogonal import Turn, fixed_positions, orthogonal_rows
from .random import empty_rows, xavier_rows
from .registry import Needs, register_initializer

SOURCES = {
    "glove": "GloVe word vectors",
    "bert": "BERT's input embeddings",
    "mbert": "multilingual BERT's input embeddings",
    "t5": "T5's input embeddings",
    "mt5": "multilingual T5's input embeddings",
    "pretrained": "vectors=",
}
"""What each source prefix stands for in the registry's one-line summaries."""


@dataclass
class _Selected:
    """The rows of the source that the table's tokens were found at."""

    found: Tensor
    """`[R]` bool: which rows of the table the source has."""
    rows: Tensor
    """`[found, D]` float32, in table order."""
    mean: float
    std: float


def _select(context: InitContext, name: str) -> _Selected:
    vectors: PretrainedVectors = context.require("vectors", name)
    tokens: list[str] = context.require("tokens", name)
    if vectors.dim != context.embedding_dim:
        raise InvalidArgumentError(
            f"init {name!r}: the vectors of {vectors.name!r} have width {vectors.dim}, the model's "
            f"embeddings {context.embedding_dim}; build the model with embeddings of that width (as "
            f"--d_model {vectors.dim} of the recipes does) or give other vectors"
        )
    index = align(tokens, context.token_family, vectors.tokens, vectors.family, plain=context.added_rows)
    index[[row for row in context.special_rows if not _may_have(vectors, tokens[row])]] = -1
    if context.padding_row is not None:
        index[context.padding_row] = -1
    found = index >= 0
    count = int(found.sum())
    if context.existing is not None and not _looked_up(context, vectors):
        known = vectors.matrix[torch.isfinite(vectors.matrix).all(1)].double()
        if len(known):
            return _Selected(found, vectors.matrix[:0].float(), known.mean().item(), known.std().item())
    if count < (2 if context.existing is None else 1):
        raise InvalidArgumentError(
            f"init {name!r}: {vectors.name!r} has {count} of the {context.num_rows} tokens (first tokens: "
            f"{tokens[:5]}); are the vectors of this language and kind of token?"
        )
    rows = vectors.matrix[index[found]].float()
    if not bool(torch.isfinite(rows).all()):
        bad = tokens[int(found.nonzero()[~torch.isfinite(rows).all(1)][0])]
        raise InvalidArgumentError(
            f"init {name!r}: the row of token {bad!r} in {vectors.name!r} is not finite"
        )
    context.report["found"] = found
    return _Selected(found, rows, rows.double().mean().item(), rows.double().std().item())


def _looked_up(context: InitContext, vectors: PretrainedVectors) -> bool:
    """Whether any of the rows is of a token with a text that the vectors may have: padding has none."""
    special = context.special_rows
    return any(
        token for i, token in enumerate(context.tokens or ()) if i not in special or _may_have(vectors, token)
    )


def _may_have(vectors: PretrainedVectors, special: str) -> bool:
    """Whether vectors may have a special token's row: a word list's "<s>" or "[CLS]" is another thing."""
    return vectors.family != "words" or special in vectors.report.get("special_tokens", ())


def _place(context: InitContext, selected: _Selected, rows: Tensor, missing: Tensor) -> Tensor:
    table = empty_rows(context, context.shape)
    table[selected.found] = rows
    table[~selected.found] = missing
    return table


def _normal(context: InitContext, selected: _Selected) -> Tensor:
    missing = empty_rows(context, (context.num_rows - len(selected.rows), context.embedding_dim))
    return missing.normal_(selected.mean, selected.std, generator=context.generator)


def _to_xavier(context: InitContext, name: str, rows: Tensor, per_dimension: bool = False) -> Tensor:
    """Eq. 1, whose errors name the initialiser and the source."""
    std = xavier_std(context.num_embeddings, context.embedding_dim)
    try:
        return standardize(rows, 0.0, std, per_dimension=per_dimension)
    except InvalidArgumentError as error:
        source = context.require("vectors", name).name
        raise InvalidArgumentError(f"init {name!r}: the rows found in {source!r}: {error}") from error


def _defaults(source: str) -> dict[str, str]:
    return {} if source == "pretrained" else {"vectors": source}


def _register(source: str, description: str) -> None:
    needs: tuple[Needs, ...] = ("vectors", "tokens")
    register = functools.partial(register_initializer, needs=needs, defaults=_defaults(source))

    @register(
        source, summary=f"{description}, as they are", reference="Kim et al. 2024, sections 3.2 and 3.3"
    )
    def plain(context: InitContext) -> Tensor:
        """The source's rows unchanged."""
        selected = _select(context, source)
        return _place(context, selected, selected.rows, _normal(context, selected))

    @register(
        f"{source}_xavier",
        summary=f"{description}, standardized to Xavier's mean and sd",
        reference="Kim et al. 2024, Eq. 1",
    )
    def to_xavier(context: InitContext, *, per_dimension: bool = False) -> Tensor:
        """The source's rows with mean 0 and sd sqrt(2 / (N + D)), by column with `per_dimension`."""
        selected = _select(context, f"{source}_xavier")
        rows = selected.rows
        if len(rows):
            rows = _to_xavier(context, f"{source}_xavier", rows, per_dimension)
        return _place(context, selected, rows, xavier_rows(context, context.num_rows - len(rows)))

    @register(
        f"{source}_shuffled",
        summary=f"{description}, entries permuted",
        reference="Kim et al. 2024, section 3.4",
    )
    def shuffled(context: InitContext, *, mode: ShuffleMode = "elements") -> Tensor:
        """The source's values without their meaning; `mode` is `elements`, `rows` or `rows_and_columns`."""
        selected = _select(context, f"{source}_shuffled")
        rows = selected.rows
        if len(rows):
            rows = shuffle(rows, mode, generator=context.generator)
        return _place(context, selected, rows, _normal(context, selected))

    @register(
        f"xavier_{source}",
        summary=f"a Xavier draw moved to the mean and sd of {description}",
        reference="Kim et al. 2024, Eq. 4",
    )
    def from_xavier(context: InitContext) -> Tensor:
        """Random rows with the source's mean and sample standard deviation, exactly, but for the padding row,
        which is zero."""
        selected = _select(context, f"xavier_{source}")
        rows = xavier_rows(context)
        counted = torch.ones(context.num_rows, dtype=torch.bool)
        if context.padding_row is not None:
            counted[context.padding_row] = False
        rows[counted] = standardize(rows[counted], selected.mean, selected.std)
        return rows


def _register_orthogonal(source: str, description: str) -> None:
    @register_initializer(
        f"{source}_orthogonal",
        summary=f"{description}, standardized to Xavier's and turned out of the positions' way",
        reference="this package, for the open problem of Kim et al. 2024, section 8",
        needs=("vectors", "tokens", "positions"),
        defaults=_defaults(source),
    )
    def to_orthogonal(
        context: InitContext,
        *,
        positions: Count = 64,
        energy: Share = 0.9999,
        empty: bool = True,
        turn: Turn = "least",
    ) -> Tensor:
        """The rows of `<source>_xavier`, turned such that the span of the first `positions` encodings (the
        dimensions that hold the share `energy` of their squared length) gets the table's `least` energetic
        directions, and taken out of that span; `empty=False` only turns. `turn="most"`, `"random"` and
        `"none"` are controls."""
        name = f"{source}_orthogonal"
        model = fixed_positions(context, name, positions)
        selected = _select(context, name)
        rows = _to_xavier(context, name, selected.rows.double())
        found, missing = orthogonal_rows(context, rows, model, energy=energy, empty=empty, turn=turn)
        return _place(context, selected, found, missing)


for _source, _description in SOURCES.items():
    _register(_source, _description)
    _register_orthogonal(_source, _description)
