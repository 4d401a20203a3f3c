"""Word embeddings shuffled, re-drawn, or taken from another model (Zhang 2021, section 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..arguments import FilePath, Pattern
from ..errors import InvalidArgumentError, UnsupportedModelError
from ..hub import load_pretrained_tokenizer
from ..measures import ENGLISH_LIKE, english_like
from ..tables import EmbeddingTables
from ..tokens import Side, TokenFamily, align, special_ids, token_family, vocabulary
from ..vectors import PretrainedVectors, read_embedding_table
from .registry import Operation, register_surgery
from .skeletons import fresh_model


@register_surgery(
    "clean_embeddings",
    summary="word embeddings re-drawn as a fresh model's are, all else as it is",
    reference="Zhang 2021, section 4",
)
def clean_embeddings(operation: Operation) -> dict[str, Any]:
    """Every input table, with the tied output; an untied output projection stays."""
    tables = EmbeddingTables(operation.model)
    fresh = EmbeddingTables(fresh_model(operation.model, operation.seed))
    drawn = {table.name: fresh.read(table) for table in fresh.input_tables}
    for table in tables.input_tables:
        tables.write(table, drawn[table.name])
    return {}


@register_surgery(
    "shuffled_embeddings",
    summary="rows of English-like tokens permuted among themselves, all others as they are",
    reference="Zhang 2021, section 4",
    needs_tokenizer=True,
    tables_alone=True,
)
def shuffled_embeddings(
    operation: Operation, *, pattern: Pattern = ENGLISH_LIKE, family: TokenFamily | None = None
) -> dict[str, Any]:
    """Special tokens keep their rows. The tied output follows; an untied output projection stays.

    `pattern` is matched against tokens in WordPiece's spelling, into which they are converted from `family`
    (by default the tokenizer's).
    """
    tables = EmbeddingTables(operation.model)
    generator = operation.generator()
    moves = []
    for table in tables.input_tables:
        side: Side = "target" if table.side == "target" else "source"
        tokens = vocabulary(operation.tokenizer, side)
        if len(tokens) > table.num_embeddings:
            raise InvalidArgumentError(
                f"the tokenizer has {len(tokens)} {side} tokens, but {table.name} has {table.num_embeddings} "
                f"rows: give the tokenizer that the model was built for"
            )
        spelling = family or token_family(operation.tokenizer)
        fixed = {*special_ids(operation.tokenizer, side), table.padding_index}
        flags = english_like(tokens, spelling, pattern=pattern)
        ids = torch.tensor([i for i, flag in enumerate(flags) if flag and i not in fixed], dtype=torch.long)
        if len(ids) < 2:
            raise InvalidArgumentError(
                f"pattern={pattern!r} matches {len(ids)} of {len(tokens)} {side} tokens (spelled as "
                f"{spelling}, such as {tokens[len(tokens) // 2]!r}): nothing to shuffle"
            )
        moves.append((table, ids, ids[torch.randperm(len(ids), generator=generator)]))
    for table, ids, sources in moves:
        tables.write(table, tables.take(table, sources), ids)
    return {"moved": {table.name: len(ids) for table, ids, _ in moves}}


@register_surgery(
    "donor_embeddings",
    summary="tokenizer and word embeddings of another model (donor=) put into this one",
    reference="Zhang 2021, section 4.3",
    brings_tokenizer=True,
    tables_alone=True,
)
def donor_embeddings(
    operation: Operation, *, donor: FilePath, projection: str | None = None
) -> dict[str, Any]:
    """The model reads the donor's ids afterwards: give it text by `AutoTokenizer.from_pretrained(donor)`.

    `donor` is a checkpoint's folder or Hub id. For a donor of another width name a `projection`:
    `least_squares` (an affine map learnt on the tokens that both vocabularies have; give `tokenizer=` for it)
    or `random` (orthonormal directions, scaled to keep the expected norm of a row). Special token ids in the
    configs are replaced; each entry of an output bias becomes its mean. Raises `UnsupportedModelError` for an
    untied output table and for two vocabularies.
    """
    model = operation.model
    tables = EmbeddingTables(model)
    if len(tables.own_tables) != 1 or tables.own_tables[0].role != "input":
        names = ", ".join(table.name for table in tables.own_tables)
        raise UnsupportedModelError(
            f"donor_embeddings puts in one table, but {type(model).__name__} has several ({names}): "
            "tie them first"
        )
    table = tables.own_tables[0]
    vectors = read_embedding_table(donor)
    tokenizer = load_pretrained_tokenizer(str(donor), f"donor={str(donor)!r}")
    tokens = vocabulary(tokenizer)
    row_of = {token: row for row, token in enumerate(vectors.tokens)}
    missing = [token for token in tokens if token and token not in row_of]
    if missing:
        raise InvalidArgumentError(
            f"donor={str(donor)!r}: its embeddings have no row for {len(missing)} tokens of its tokenizer, "
            f"such as {missing[0]!r}"
        )
    matrix = vectors.matrix
    finite = torch.isfinite(matrix).all(1)
    if not bool(finite.all()):
        bad = vectors.tokens[int((~finite).nonzero()[0])]
        raise InvalidArgumentError(f"donor={str(donor)!r}: the row of token {bad!r} is not finite")
    if vectors.dim != table.embedding_dim:
        matrix = _projected(operation, vectors, tables.read(table).cpu(), projection)
    elif projection is not None:
        raise InvalidArgumentError(
            f"projection={projection!r}: donor={str(donor)!r} has the model's width {vectors.dim} already"
        )
    rows = matrix.mean(0).repeat(len(tokens), 1)  # ids without a token get the mean row
    ids = [i for i, token in enumerate(tokens) if token]
    rows[ids] = matrix[[row_of[tokens[i]] for i in ids]]

    means = [
        (out, [float(bias.float().mean()) for bias in tables.biases(out)]) for out in tables.output_tables
    ]
    tables.resize(len(tokens))
    tables.write(table, rows)
    for output, values in means:
        tables.write_bias(output, values)
    padding = tokenizer.pad_token_id
    for location in table.tied.locations:
        if getattr(location.module, "padding_idx", None) is not None:
            location.module.padding_idx = padding
    _follow_special_ids(model, tokenizer, len(tokens))
    operation.tokenizer = tokenizer
    source = {"name": vectors.name, "revision": vectors.revision, "digest": vectors.digest}
    return {"source": source, "rows": len(tokens)}


def _projected(
    operation: Operation, vectors: PretrainedVectors, table: Tensor, projection: str | None
) -> Tensor:
    """The donor's rows `[n, width of the donor]` as `[n, D]`."""
    width = table.shape[1]
    if projection == "random":
        larger, smaller = max(vectors.dim, width), min(vectors.dim, width)
        q, _ = torch.linalg.qr(torch.randn(larger, smaller, generator=operation.generator()))
        if vectors.dim < width:
            return vectors.matrix @ q.T
        return vectors.matrix @ q * (vectors.dim / width) ** 0.5
    if projection == "least_squares":
        if operation.tokenizer is None:
            raise InvalidArgumentError(
                "projection='least_squares' learns from shared tokens: give tokenizer="
            )
        tokens = vocabulary(operation.tokenizer)
        pairs = align(tokens, token_family(operation.tokenizer), vectors.tokens, vectors.family)
        shared = (pairs >= 0).nonzero().flatten()
        if len(tokens) > len(table):
            raise InvalidArgumentError(
                f"projection='least_squares': tokenizer= has {len(tokens)} tokens and the table {len(table)} "
                f"rows: give the one that the model was trained with"
            )
        finite = torch.isfinite(table[shared]).all(1) & torch.isfinite(vectors.matrix[pairs[shared]]).all(1)
        shared = shared[finite]
        if len(shared) < 2:
            raise InvalidArgumentError(
                f"projection='least_squares': the tokenizers share {len(shared)} tokens, too few"
            )
        x, y = vectors.matrix[pairs[shared]].double(), table[shared].double()
        x_mean, y_mean = x.mean(0), y.mean(0)
        weight = torch.linalg.lstsq(x - x_mean, y - y_mean, driver="gelsd").solution
        return ((vectors.matrix.double() - x_mean) @ weight + y_mean).float()
    asked = "" if projection is None else f"; projection={projection!r} is neither"
    raise InvalidArgumentError(
        f"donor={vectors.name!r} has embeddings of width {vectors.dim}, the model {width}: give "
        f"projection='least_squares' or projection='random'{asked}"
    )


_ROLES = ("pad", "bos", "eos", "sep", "cls", "mask", "unk")


def _follow_special_ids(model: PreTrainedModel, tokenizer: Any, rows: int) -> None:
    """Puts the tokenizer's special ids into the configs.

    Others, such as the decoder's start, follow the special token that they were equal to."""
    for config in (model.config, getattr(model, "generation_config", None)):
        if config is None:
            continue
        follows: dict[int, int] = {}
        roles = {}
        for role in _ROLES:
            name = f"{role}_token_id"
            new = getattr(tokenizer, name, None)
            old = getattr(config, name, None)
            if old is None or new is None:
                continue
            roles[name] = new
            for index in old if isinstance(old, list) else [old]:
                follows.setdefault(index, new)
        for name, old in list(vars(config).items()):
            if name in roles:
                setattr(config, name, roles[name])
            elif name.endswith("_token_id") and old is not None:
                given: list[int] = old if isinstance(old, list) else [old]
                new_ids = dict.fromkeys(follows.get(index, index) for index in given)
                kept = [index for index in new_ids if index < rows]  # the donor has no others
                setattr(config, name, kept if isinstance(old, list) and kept else kept[0] if kept else None)
