"""Helper spaces: a vector for each token of a vocabulary, from what is known beside the model.

`Space` is the vectors of both vocabularies in one space, or of the new one alone; a token that has none is
a row of zeros.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..arguments import FilePath, check
from ..errors import DataNotFoundError, InvalidArgumentError
from ..hub import load_pretrained, load_pretrained_tokenizer
from ..measures import check_values, mean_pooled
from ..tokens import align
from ..vectors import PretrainedVectors, has_tokenizer, is_fasttext, load_vectors, train_glove
from .context import RetokenizeContext
from .texts import TokenTexts

logger = logging.getLogger(__name__)

Words = Literal["mean", "rank"]
"""How the words that hold a token count: alike, or by 1 / rank in the file, most frequent first."""


def has_vector(space: Tensor) -> Tensor:
    """Whether each row of a space `[V, D]` is a vector and not the zeros that stand for none: bool `[V]`."""
    return space.abs().sum(1) > 0


def loaded(spec: Any, **options: Any) -> PretrainedVectors:
    """`load_vectors(spec)`, without rows that have NaN or infinite entries, of which a warning tells."""
    check("vectors", spec, PretrainedVectors | FilePath)
    vectors = load_vectors(spec, **options)
    finite = torch.isfinite(vectors.matrix).all(1)
    if bool(finite.all()):
        return vectors
    kept = finite.nonzero().flatten().tolist()
    logger.warning(
        "vectors=%r: %d of %d rows have NaN or infinite entries and count as none",
        vectors.name, len(vectors) - len(kept), len(vectors),
    )  # fmt: skip
    return replace(vectors, tokens=[vectors.tokens[i] for i in kept], matrix=vectors.matrix[kept])


class Anchors(NamedTuple):
    """Tokens of both vocabularies that have a vector, and the tokens to make that have one: int64 ids."""

    new: Tensor
    old: Tensor
    wanted: Tensor


def anchors_in(context: RetokenizeContext, method: str, space: Tensor, old: Tensor | None = None) -> Anchors:
    """Who has a vector in `space` `[V', D]` of the new tokens, and in `old` `[V, D]` where that is given.

    Raises `InvalidArgumentError` where there is no anchor.
    """
    there = has_vector(space)
    new_ids, old_ids = context.anchors()
    kept = there[new_ids] if old is None else there[new_ids] & has_vector(old)[old_ids]
    if not bool(kept.any()):
        shared = len(new_ids)
        why = (
            "have no token in common" if shared == 0 else f"share {shared} tokens, none of which has a vector"
        )
        raise InvalidArgumentError(
            f"init {method!r}: the tokenizers {why}; use trans_tokenizer with parallel text, or fvt"
        )
    context.report["anchors"] = int(kept.sum())
    wanted = context.without_source()
    return Anchors(new_ids[kept], old_ids[kept], wanted[there[wanted]])


def token_vectors(tokens: TokenTexts, vectors: PretrainedVectors) -> Tensor:
    """The vector of each token, `[V, D]`; zeros where there is none.

    Vectors of tokens (as trained on a tokenized text, told by a mark such as `Ġ` or `##` on tokens of both)
    are found by their spelling, vectors of words and of other tokenizers by what the tokens stand for.
    """
    marked = {token for token in tokens.tokens if token.startswith(("Ġ", "▁", "##")) and len(token) > 2}
    # one row in a hundred: word2vec's "###" (digits) is a token of BERT's, and no word of a tokenized text
    if vectors.family == "words" and 100 * sum(t in marked for t in vectors.tokens) > len(vectors):
        row_of = _first_rows(vectors)
        rows = torch.tensor([row_of.get(token, -1) if token else -1 for token in tokens.tokens])
    else:
        rows = align(
            tokens.tokens,
            tokens.family,
            vectors.tokens,
            vectors.family,
            special=tokens.special,
            plain=tokens.added - tokens.special,
            lowercase_fallback=vectors.family == "words",
        )
    made = torch.zeros(len(tokens), vectors.dim, dtype=torch.float32)
    made[rows >= 0] = vectors.matrix[rows[rows >= 0]]
    return made


def subword_vectors(tokens: TokenTexts, spec: Any, words: Words = "mean") -> Tensor:
    """For each token the mean vector of the words that it is a piece of, `[V, D]`; zeros for none.

    A word is split as it stands at the start of a text and after a blank; a token counts once a word. `words`
    weighs them: alike (Liu et al. 2024, OFA) or by 1 / rank (Tran 2020, RAMEN).
    """
    vectors = loaded(spec)
    ids: list[int] = []
    rows: list[int] = []
    for spelled in (vectors.tokens, [f" {word}" for word in vectors.tokens]):
        for row, split in enumerate(tokens.split(spelled)):
            found = set(split) - tokens.special
            ids.extend(found)
            rows.extend([row] * len(found))
    key = np.unique(np.asarray(ids, dtype=np.int64) * len(vectors) + np.asarray(rows, dtype=np.int64))
    token, word = torch.from_numpy(key // len(vectors)), torch.from_numpy(key % len(vectors))
    weights = 1 / (word.float() + 1) if words == "rank" else torch.ones_like(word, dtype=torch.float32)
    made = torch.zeros(len(tokens), vectors.dim, dtype=torch.float32)
    total = torch.zeros(len(tokens), dtype=torch.float32)
    for part in torch.arange(len(token)).split(max(1, 2**24 // vectors.dim)):
        made.index_add_(0, token[part], vectors.matrix[word[part]] * weights[part, None])
        total.index_add_(0, token[part], weights[part])
    return made / total.clamp_min(1e-30)[:, None]


def _first_rows(vectors: PretrainedVectors) -> dict[str, int]:
    """Token -> row, the first of equal ones."""
    return {token: row for row, token in reversed(list(enumerate(vectors.tokens)))}


def _plain_texts(tokens: TokenTexts) -> list[str]:
    """The text of each token without blanks around it; empty for special tokens and for what is no text."""
    return ["" if i in tokens.special else (text or "").strip() for i, text in enumerate(tokens.texts)]


def word_space(tokens: TokenTexts, spec: Any, words: Words = "mean") -> Tensor:
    """Vectors of tokens from vectors of words, `[V, D]`: those of the token's text, from a fastText model
    those of its character n-grams; for tokens without one `subword_vectors`."""
    texts = _plain_texts(tokens)
    if isinstance(spec, (str, PathLike)) and is_fasttext(spec):
        vectors = loaded(spec, tokens=sorted({text for text in texts if text}))
    else:
        vectors = loaded(spec)  # sub-words are read off all of its words
    row_of = _first_rows(vectors)
    made = torch.zeros(len(tokens), vectors.dim, dtype=torch.float32)
    if vectors.report.get("format") == "fasttext":
        rows = torch.tensor([row_of.get(text, -1) if text else -1 for text in texts])
        made[rows >= 0] = vectors.matrix[rows[rows >= 0]]
        return made
    made = token_vectors(tokens, vectors)
    lacking = ~has_vector(made)
    made[lacking] = subword_vectors(tokens, vectors, words)[lacking]
    return made


def donor_space(context: RetokenizeContext, method: str) -> Tensor:
    """The donor's row of each new token, `[V', D]`; zeros where it has none.

    A donor is a folder or Hub id, `PretrainedVectors`, or a model in memory that has the new tokenizer.
    Raises `InvalidArgumentError` for a donor that lacks nine of ten tokens that are to be made.
    """
    donor = context.require("donor", method)
    if hasattr(donor, "get_input_embeddings"):
        table = donor.get_input_embeddings().weight.detach()
        check_values(table, f"donor={type(donor).__name__}")
        table = table.float().cpu()
        if len(table) < len(context.new):
            raise InvalidArgumentError(
                f"donor={type(donor).__name__} has {len(table)} rows for {len(context.new)} new tokens: "
                f"it was made with another tokenizer"
            )
        return _finite(table[: len(context.new)], context)
    check("donor", donor, PretrainedVectors | FilePath)
    try:
        vectors = load_vectors(donor)
    except DataNotFoundError as error:
        raise DataNotFoundError(str(error).replace("vectors=", "donor=", 1)) from error
    made = token_vectors(context.new, vectors)
    special = {token: row for row, token in enumerate(vectors.tokens)}
    for i in context.new.special:  # spelled alike, for they are no text
        if (row := special.get(context.new.tokens[i])) is not None:
            made[i] = vectors.matrix[row]
    wanted = context.without_source()
    found = int(has_vector(made)[wanted].sum())
    if found < 0.1 * len(wanted):
        raise InvalidArgumentError(
            f"donor={vectors.name!r} has {found} of the {len(wanted)} new tokens that the old tokenizer "
            f"lacks: it was made with another tokenizer"
        )
    return _finite(made, context)


def _finite(rows: Tensor, context: RetokenizeContext) -> Tensor:
    """Rows with NaN or infinite entries made zeros, which stand for none; the report counts them."""
    broken = ~torch.isfinite(rows).all(1)
    if bool(broken.any()):
        context.report["donor_rows_not_finite"] = int(broken.sum())
        rows = torch.where(broken[:, None], 0.0, rows)
    return rows


def encoder_space(tokens: TokenTexts, encoder: str | PathLike[str]) -> Tensor:
    """The mean last hidden state of an encoder for the text of each token, `[V, D]`; zeros for tokens that
    are no text. `encoder` is a folder or a Hub id. Raises `DataNotFoundError` for what has no model or no
    tokenizer."""
    from transformers import AutoModel

    name, flag = str(encoder), f"encoder={str(encoder)!r}"
    if Path(name).is_dir() and not has_tokenizer(name):  # AutoTokenizer would make one of no words
        raise DataNotFoundError(f"{flag} has no tokenizer")
    tokenizer = load_pretrained_tokenizer(name, flag)
    with torch.random.fork_rng(devices=[]):  # a part that the checkpoint lacks, such as a pooler, is drawn
        model = load_pretrained(AutoModel, name, flag).eval()
    texts = _plain_texts(tokens)
    places = [i for i, text in enumerate(texts) if text]
    made = torch.zeros(len(texts), model.config.hidden_size, dtype=torch.float32)
    made[places] = mean_pooled(model, tokenizer, [texts[i] for i in places], batch_size=256)
    return made


def own_space(context: RetokenizeContext, method: str, **settings: Any) -> Tensor:
    """Vectors of the new tokens, `[V', D]`: from `vectors=`, else GloVe trained on `texts=` as the new
    tokenizer splits them."""
    if context.vectors is not None:
        return token_vectors(context.new, loaded(context.vectors))
    if context.texts is None and context.parallel is None:
        raise InvalidArgumentError(
            f"init {method!r} needs vectors= (--vectors), a file of vectors of the new language, or texts= "
            f"(--texts), text in it to train some on"
        )
    if context.texts is None:
        context.require("texts", method)
    return glove_of_ids(
        context.new.split(list(context.texts or ())), len(context.new), context.seed, **settings
    )


def glove_of_ids(
    sentences: Iterable[Sequence[int]], size: int, seed: int, *, dim: int = 100, **settings: Any
) -> Tensor:
    """GloVe vectors of token ids, `[size, dim]`, zeros for ids that are too rare; see `train_glove`.

    Raises `InvalidArgumentError` for text without two tokens in a sentence, or without a frequent one."""
    named = [[str(i) for i in sentence] for sentence in sentences]
    given = {"window": 15, "x_max": 10.0, "epochs": 15, "min_count": 5, **settings}
    seen = Counter(token for sentence in named for token in sentence)
    if (most := max(seen.values(), default=0)) < given["min_count"]:
        raise InvalidArgumentError(
            f"texts= is too short: no token is in it more than {most} times, and vectors are trained of "
            f"tokens seen {given['min_count']} times; give more text"
        )
    vectors = train_glove(named, dim=dim, seed=seed, progress=False, name="tokens", **given)
    made = torch.zeros(size, dim, dtype=torch.float32)
    made[torch.tensor([int(token) for token in vectors.tokens])] = vectors.matrix
    return made


def procrustes(source: Tensor, target: Tensor) -> Tensor:
    """The orthogonal matrix `[D, D]` that takes the rows of `source` `[n, D]` nearest to those of `target`.

    Schoenemann 1966. `source @ procrustes(source, target)` is close to `target`.
    """
    left, _, right = torch.linalg.svd(source.double().T @ target.double())
    return (left @ right).to(source.dtype)


def dictionary_map(
    old: PretrainedVectors, new: PretrainedVectors, dictionary: Iterable[tuple[str, str]]
) -> tuple[Tensor, int]:
    """The orthogonal map `[D, D]` from the old language's vectors to the new one's, and how many pairs of
    words of the dictionary it is fitted to: as they are, in lower case and in title case.

    As in WECHSEL a pair counts as often as it arises from these: one in lower case four times.

    Raises `InvalidArgumentError` for vectors of two widths and when the vectors have no pair.
    """
    if old.dim != new.dim:
        raise InvalidArgumentError(
            f"vectors={old.name!r} and {new.name!r} are {old.dim} and {new.dim} wide: give two of one width"
        )
    old_row, new_row = _first_rows(old), _first_rows(new)
    pairs = [
        (old_row[a], new_row[b])
        for one, other in dictionary
        for a in (one, one.lower(), one.title())
        for b in (other, other.lower(), other.title())
        if a in old_row and b in new_row
    ]
    if not pairs:
        raise InvalidArgumentError(
            f"dictionary=: no pair of its words is in {old.name!r} and {new.name!r}; the old language comes "
            f"first"
        )
    rows = torch.tensor(pairs)
    return procrustes(old.matrix[rows[:, 0]], new.matrix[rows[:, 1]]), len(set(pairs))
