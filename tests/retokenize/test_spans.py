from __future__ import annotations

import pytest
import torch
from builders.retokenizing import context_of
from builders.tiny_tokenizers import texts, tokenizer

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.retokenize import Step, TokenTexts, get_initializer
from hf_embinit.retokenize.spans import span_counts
from hf_embinit.vectors import train_glove

FAMILIES = ("byte_level", "sentencepiece_bpe", "wordpiece", "unigram")
TEXT = ["A man and  a dog ☃ run.", "naïve dogs\trun, ☃☃ ", " ", "", "two dogs"]


def by_hand(new: TokenTexts, old: TokenTexts, text: str) -> dict[tuple[int, int], float]:
    """Entries of one text, a character at a time."""

    def covered(tokens: TokenTexts) -> list[tuple[int, set[int]]]:
        encoding = tokens.tokenizer._tokenizer.encode(text, add_special_tokens=False)
        places = [{p for p in range(*span) if not text[p].isspace()} for span in encoding.offsets]
        return list(zip(encoding.ids, places, strict=True))

    found: dict[tuple[int, int], float] = {}
    for i, mine in covered(new):
        under = [j for j, theirs in covered(old) if mine & theirs and j != old.tokenizer.unk_token_id]
        for j in under:
            found[i, j] = found.get((i, j), 0.0) + 1 / len(under)
    return found


@pytest.mark.parametrize("new", FAMILIES)
@pytest.mark.parametrize("old", FAMILIES)
def test_counts_are_those_of_the_characters(new: str, old: str) -> None:
    there, here = TokenTexts(tokenizer(new, 400)), TokenTexts(tokenizer(old, 330))
    block = [*TEXT, *texts()[:20]]
    expected: dict[tuple[int, int], float] = {}
    for text in block:
        for key, value in by_hand(there, here, text).items():
            expected[key] = expected.get(key, 0.0) + value
    ((ids, of, counts),) = span_counts(there, here, block)
    made = dict(zip(zip(ids.tolist(), of.tolist(), strict=True), counts.tolist(), strict=True))
    assert made == pytest.approx(expected) and len(made) > 100


def test_rows_weigh_splits_by_how_often_they_are_seen() -> None:
    new, old = tokenizer("byte_level", 600), tokenizer("byte_level", 300)
    context = context_of(new, old, texts=list(texts()))
    made = get_initializer("align").fn(context)
    sums = torch.zeros(made.shape[0]).index_add_(0, made.new_ids, made.values)
    filled = made.step == Step.METHOD
    assert filled.sum() > 200 and torch.allclose(sums[filled], torch.ones(int(filled.sum())))
    assert torch.equal(made.step == Step.OVERLAP, context.overlap >= 0)
    word = max(filled.nonzero().flatten().tolist(), key=lambda i: len(context.new.tokens[i]))
    pieces = old(context.new.texts[word])["input_ids"]
    assert len(pieces) > 1 and {w.id for w in made.row(word)} == set(pieces)


def test_truncation_and_padding_of_a_tokenizer_stay_and_do_not_count() -> None:
    plain, cut = tokenizer("wordpiece"), tokenizer("wordpiece")
    cut._tokenizer.enable_truncation(max_length=2)
    cut._tokenizer.enable_padding(length=64)
    old = TokenTexts(tokenizer("byte_level"))
    results = [span_counts(TokenTexts(t), old, texts()[:30])[0] for t in (plain, cut)]
    assert all((a == b).all() for a, b in zip(*results, strict=True))
    assert cut._tokenizer.truncation["max_length"] == 2 and cut._tokenizer.padding["length"] == 64


@pytest.mark.needs("transformers>=5.6")  # the vanilla models' tokenizer
def test_what_cannot_be_laid_over_each_other_is_refused() -> None:
    from hf_embinit.models import VanillaTransformerTokenizer

    new, align = tokenizer("byte_level"), get_initializer("align").fn
    slow = VanillaTransformerTokenizer.build(["a dog"] * 2, tokenizer=tokenizer("wordpiece"))
    with pytest.raises(InvalidArgumentError, match="VanillaTransformerTokenizer does not say"):
        align(context_of(new, slow, texts=["a dog"]))
    for nothing in ([], [""], ["", ""]):
        with pytest.raises(InvalidArgumentError, match="texts= has no text"):
            align(context_of(new, tokenizer("wordpiece"), texts=nothing))
    with pytest.raises(InvalidArgumentError, match="init 'align' needs texts="):
        align(context_of(new, tokenizer("wordpiece")))


def test_what_the_old_tokenizer_cannot_read_is_no_source() -> None:
    old, new = tokenizer("wordpiece", 330), tokenizer("byte_level", 400)
    made = get_initializer("align").fn(context_of(new, old, texts=[*texts(), "☃ dogs ☃"]))
    assert not (made.indices == old.unk_token_id).any() and (made.step == Step.METHOD).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_half_a_character_is_named(family: str) -> None:
    tokens, text = TokenTexts(tokenizer(family)), "a dog \ud83d"
    for read in (lambda: tokens.split(["a cat", text]), lambda: span_counts(tokens, tokens, ["a cat", text])):
        with pytest.raises(InvalidArgumentError, match=r"half a character \(a surrogate\) stands alone"):
            read()
    with pytest.raises(InvalidArgumentError, match="half a character"):
        train_glove([["a", "dog", "\ud83d"]] * 9, dim=2)
