"""Two small tokenizers of words and what a method of another tokenizer is asked with them."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_embinit.retokenize import Coefficients, RetokenizeContext, TokenTexts, overlap_map, role_map

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def word_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of these words, after four special tokens."""
    vocabulary = {word: i for i, word in enumerate([*SPECIALS, *words])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    roles: dict[str, Any] = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


def word_pieces(*tokens: str) -> PreTrainedTokenizerFast:
    """The same of word pieces, for text that is split as BERT does."""
    tokenizer = word_tokenizer([*tokens])
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def context_of(new: Any, old: Any, table: torch.Tensor | None = None, **given: Any) -> RetokenizeContext:
    """A request for rows of the tokenizer `new` from those of `old`, drawn unless `table` has them."""
    there, here = TokenTexts(new), TokenTexts(old)
    if table is None:
        table = torch.randn(len(here), 16, generator=torch.Generator().manual_seed(5))
    seed = given.pop("seed", 0)
    return RetokenizeContext(
        new=there,
        old=here,
        num_old=len(table),
        input_table=table,
        overlap=overlap_map(there, here),
        copied=role_map(there, here),
        generator=torch.Generator().manual_seed(seed),
        seed=seed,
        **given,
    )


def dense(coefficients: Coefficients) -> torch.Tensor:
    """The weights `[V', V]` as a float64 matrix."""
    made = torch.zeros(coefficients.shape, dtype=torch.float64)
    made[coefficients.new_ids, coefficients.indices] = coefficients.values.double()
    return made


Pairs = list[tuple[str, str]]


def bilingual(words: int = 40, sentences: int = 400, seed: int = 0) -> tuple[list[str], list[str], Pairs]:
    """Words of two languages, the i-th of one the translation of the i-th of the other, and sentences with
    their translations in another order of words."""
    draw = torch.Generator().manual_seed(seed)
    old, new = [f"en{i}" for i in range(words)], [f"de{i}" for i in range(words)]
    pairs = []
    for _ in range(sentences):
        length = int(torch.randint(3, 8, (), generator=draw))
        said = torch.randint(words, (length,), generator=draw)
        order = said[torch.randperm(length, generator=draw)]
        pairs.append((" ".join(old[i] for i in said), " ".join(new[i] for i in order)))
    return old, new, pairs


def parity_tokenizers(pieces: bool = True) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """The new and the old tokenizer that other packages were compared on: half of the old words are in the
    new vocabulary. With `pieces` more than 100 tokens have a mark, by which FOCUS tells the family."""
    inside = [f"##{a}{b}" for a in "cdefghijklm" for b in "abcdefghijk"]
    letters = [*"abcdefghijklm0123456789", *(f"##{c}" for c in "abcdefghijklm0123456789")]
    old = [*letters, *(f"a{i}" for i in range(60)), *inside[:110]]
    new = [*letters, *(f"b{i}" for i in range(40)), *(f"a{i}" for i in range(0, 60, 2)), "cab", *inside[8:]]
    kept = [[token for token in tokens if pieces or "##" not in token] for tokens in (new, old)]
    return word_tokenizer(kept[0]), word_tokenizer(kept[1])
