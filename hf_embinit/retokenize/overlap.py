"""Which old token each new one stands for: by its text, and for special tokens by their role."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..tokens import align
from .texts import TokenTexts

Match = Literal["canonical", "fuzzy", "exact"]
"""How texts are compared: `canonical` (equal bytes, and both or neither start a word), `fuzzy` (also in lower
case where that fails), `exact` (the tokenizers' own spelling)."""

SIBLINGS = {"bos": "cls", "cls": "bos", "eos": "sep", "sep": "eos"}
"""A role -> the one that does the same in models of another kind: begin and end of a text."""

_TURNS = (
    frozenset({"<|im_start|>", "<start_of_turn>", "<|start_header_id|>", "<|turn>", "[INST]"}),
    frozenset({"<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<turn|>", "[/INST]", "<|end|>"}),
)
"""Begins and ends of turns in chats, as Qwen, Gemma, Llama, Mistral and Phi spell them."""


def overlap_map(new: TokenTexts, old: TokenTexts, match: Match = "canonical") -> Tensor:
    """For each new token the old one that stands for the same, or -1: int64 `[V']`.

    Special tokens of either tokenizer match nothing: see `role_map`. Of equal old tokens the first counts.
    """
    known = ["" if i in old.special else token for i, token in enumerate(old.tokens)]
    if match == "exact":
        ids = {token: i for i, token in reversed(list(enumerate(known))) if token}
        found = [-1 if i in new.special else ids.get(token, -1) for i, token in enumerate(new.tokens)]
        return torch.tensor(found, dtype=torch.int64)
    rows = align(
        new.tokens,
        new.family,
        known,
        old.family,
        special=new.special,
        plain=new.added - new.special,
        lowercase_fallback=match == "fuzzy",
    )
    added = {old.tokens[i].strip(): i for i in sorted(old.added - old.special, reverse=True)}
    added.pop("", None)  # white space has been compared as it stands
    for i, text in enumerate(new.texts) if added else ():  # spelled as their text in every family
        if rows[i] < 0 and i not in new.special and text:
            rows[i] = added.get(text.strip(), -1) if new.forms[i].word_start is not False else -1
    return rows


def role_map(new: TokenTexts, old: TokenTexts) -> Tensor:
    """For each new special token the old one with its role, or -1: int64 `[V']`.

    By its first role among begin and end of a text that the old tokenizer has, be it under the sibling's
    name (`bos` and `cls`, `eos` and `sep`), else by the same spelling among its special and added tokens,
    else as the mark of a turn in chats, else by another role: GPT-2's end of a text is its unknown token,
    too. Never by its number.
    """
    rows = torch.full((len(new),), -1, dtype=torch.int64)
    specials = {old.tokens[i]: i for i in sorted(old.special | old.added, reverse=True)}
    roles_of: dict[int, list[str]] = {}
    for role, i in new.roles.items():
        roles_of.setdefault(i, []).append(role)
    for i in new.special:
        roles = roles_of.get(i, [])
        names = [name for role in roles if role in SIBLINGS for name in (role, SIBLINGS[role])]
        found = [old.roles[name] for name in names if name in old.roles]
        if new.tokens[i] in specials:
            found.append(specials[new.tokens[i]])
        for turn in _TURNS:
            if new.tokens[i] in turn:
                found += [specials[token] for token in sorted(turn & specials.keys())]
        found += [old.roles[role] for role in roles if role in old.roles]
        if found:
            rows[i] = found[0]
    return rows
