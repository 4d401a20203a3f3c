from __future__ import annotations

import pytest
from builders.tiny_tokenizers import tokenizer

from hf_embinit.retokenize import TokenTexts, overlap_map, role_map


@pytest.mark.parametrize("new", ["byte_level", "sentencepiece_bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize("old", ["byte_level", "sentencepiece_bpe", "wordpiece", "unigram"])
def test_tokens_that_match_are_the_same_text_at_the_same_place_of_a_word(new: str, old: str) -> None:
    there, here = TokenTexts(tokenizer(new, 400)), TokenTexts(tokenizer(old, 600))
    found = overlap_map(there, here)
    assert (found >= 0).sum() > 100
    for i, j in enumerate(found.tolist()):
        if j < 0:
            continue
        a, b = there.forms[i], here.forms[j]
        assert a.bytes == b.bytes and (a.word_start == b.word_start or None in (a.word_start, b.word_start))
        assert i not in there.special and j not in here.special


def test_a_tokenizer_overlaps_with_itself_one_to_one() -> None:
    same = TokenTexts(tokenizer("byte_level"))
    found = overlap_map(same, same)
    assert all(j == i or i in same.special for i, j in enumerate(found.tolist()))
    assert [role_map(same, same)[i] for i in sorted(same.special)] == sorted(same.special)


def test_exact_is_the_spelling_and_fuzzy_forgives_case() -> None:
    there, here = TokenTexts(tokenizer("byte_level", 400)), TokenTexts(tokenizer("wordpiece", 400))
    upper, lower = there.ids["B"], there.ids["Ġdog"]
    assert overlap_map(there, here)[upper] == -1
    assert overlap_map(there, here, "fuzzy")[upper] == here.ids["##b"]
    assert overlap_map(there, here, "exact")[lower] == -1
    assert overlap_map(there, here)[lower] == here.ids["dog"]


def test_added_tokens_are_words_in_every_family() -> None:
    old, new = tokenizer("byte_level", 400), tokenizer("sentencepiece_bpe", 400)
    old.add_tokens(["Aragorn"])
    new.add_tokens(["Aragorn", "dog"])
    there, here = TokenTexts(new), TokenTexts(old)
    found = overlap_map(there, here)
    assert found[there.ids["Aragorn"]] == here.ids["Aragorn"]
    assert found[there.ids["dog"]] == here.ids["Ġdog"]


def test_special_tokens_are_found_by_role_and_never_by_number() -> None:
    bert, gpt = TokenTexts(tokenizer("wordpiece")), TokenTexts(tokenizer("byte_level"))
    llama = TokenTexts(tokenizer("sentencepiece_bpe"))
    assert role_map(llama, bert)[[llama.roles[r] for r in ("bos", "eos", "unk")]].tolist() == [
        bert.roles[r] for r in ("cls", "sep", "unk")
    ]
    assert bert.roles["pad"] == 0 and role_map(bert, llama)[0] == -1  # llama has no padding token
    assert role_map(gpt, llama)[gpt.roles["bos"]] == llama.roles["bos"]  # one token is bos and eos
    assert role_map(llama, gpt)[llama.roles["eos"]] == gpt.roles["eos"]


def test_a_token_of_many_roles_begins_a_text_first() -> None:
    """GPT-2's one special token is its unknown token, too, and most who train it make it pad."""
    words, bert = tokenizer("byte_level"), TokenTexts(tokenizer("wordpiece"))
    for role in ("unk_token", "pad_token"):
        setattr(words, role, "<|endoftext|>")
        gpt = TokenTexts(words)
        assert role_map(gpt, bert)[gpt.roles[role.removesuffix("_token")]] == bert.roles["cls"]
    llama = tokenizer("sentencepiece_bpe")
    llama.pad_token = "<unk>"
    unknown = TokenTexts(llama).roles["unk"]
    assert role_map(TokenTexts(llama), bert)[unknown] == bert.roles["unk"]


def test_a_special_token_is_the_old_tokenizers_added_one_of_the_same_spelling() -> None:
    old, new = tokenizer("byte_level", 400), tokenizer("unigram", 400)
    old.add_tokens(["<image>"])
    new.add_special_tokens({"additional_special_tokens": ["<image>"]})
    there, here = TokenTexts(new), TokenTexts(old)
    assert "<image>" not in [here.tokens[i] for i in here.special]
    assert role_map(there, here)[there.ids["<image>"]] == here.ids["<image>"]


def test_marks_of_turns_match_across_chat_formats() -> None:
    old, new = tokenizer("byte_level"), tokenizer("sentencepiece_bpe")
    old.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<tool>"]})
    new.add_special_tokens({"additional_special_tokens": ["<tool>", "<start_of_turn>", "<end_of_turn>"]})
    here, there = TokenTexts(old), TokenTexts(new)
    found = role_map(there, here)
    for token, expected in {
        "<tool>": "<tool>",
        "<start_of_turn>": "<|im_start|>",
        "<end_of_turn>": "<|im_end|>",
    }.items():
        assert found[there.ids[token]] == here.ids[expected]
