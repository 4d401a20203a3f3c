"""The ids in configurations, modules and the tokenizer of a model that gets another vocabulary."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig, PretrainedConfig

from ..errors import InvalidArgumentError, UnsupportedModelError
from ..retokenize import SIBLINGS, TokenTexts
from ..tables import EmbeddingTables
from .id_fields import (
    IdField,
    id_fields,
    named_by_number,
    refuse_moved_meanings,
    remake,
)

_ROLE = re.compile(r"^(bos|eos|pad|unk|sep|cls|mask)_(token_id|index)$")
START = "decoder_start_token_id"
_OF_TARGET = re.compile(r"^(decoder_|forced_|suppress|begin_suppress|bad_words|force_words|sequence_bias)")
_SET_WHERE_MISSING = ("bos", "eos", "pad")


class MovedIds:
    """What every field with token ids will hold, worked out before anything is changed.

    Raises `UnsupportedModelError` for a model whose code reads ids by their number, `InvalidArgumentError`
    for a token that a configuration names and the new tokenizer lacks.
    """

    def __init__(
        self,
        tables: EmbeddingTables,
        rows: int,
        old: TokenTexts,
        new: TokenTexts,
        new_id: Mapping[int, int],
        target: MovedIds | None = None,
    ):
        """`new_id` maps old ids to new ones; `target` is the same for the vocabulary of a model's output."""
        self.tables, self.model = tables, tables.model
        self.rows, self.old, self.new, self.new_id = rows, old, new, new_id
        self.target = target
        self._refuse_numbers()
        self.fields = [(field, self._moved(field)) for field in id_fields(tables, rows)]
        self.fields += self._missing()

    def write(self) -> None:
        """Puts the new ids in their places."""
        for field, value in self.fields:
            setattr(field.holder, field.name, value)
        for module in self.model.modules():
            config: Any = getattr(module, "config", None)
            if isinstance(getattr(config, "vocab_list", None), (list, tuple)):  # ESM's tokens by id
                config.vocab_list = list(self.new.tokens)
        remake(self.model, dict(enumerate(self.new.tokens)))

    def _refuse_numbers(self) -> None:
        by_number = named_by_number(self.model, self.old.tokenizer)
        eos = self.new.roles.get("eos")
        if by_number and not (by_number == {max(by_number)} and eos == len(self.new) - 1):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} finds tokens by their number (such as {max(by_number)}), so it "
                f"works with its own tokenizer alone"
            )
        configured = {f.value for f in id_fields(self.tables, self.rows) if f.name == "pad_token_id"}
        moved = {
            pad: self.new.roles.get("pad", -1)
            for pad in {self.old.roles.get("pad"), *configured}
            if isinstance(pad, int)
        }
        way_out = "give the new tokenizer's padding token the same id"
        refuse_moved_meanings(self.tables, self.rows, moved, way_out)

    def _missing(self) -> list[tuple[IdField, Any]]:
        """Roles that configurations leave open because the old tokenizer had none."""
        found = []
        holders = [self.model.config.get_text_config(), getattr(self.model, "generation_config", None)]
        for holder in holders:
            for role in (
                _SET_WHERE_MISSING if isinstance(holder, (PretrainedConfig, GenerationConfig)) else ()
            ):
                name = f"{role}_token_id"
                there = role in self.new.roles and role not in self.old.roles
                if there and name in vars(holder) and vars(holder)[name] is None:
                    found.append((IdField(holder, name), self.new.roles[role]))
        return found

    def _moved(self, field: IdField) -> Any:
        """The new value of a field."""
        name, value = field.name, field.value
        if self.target is not None and _OF_TARGET.match(name):
            return self.target._moved(field)
        match = _ROLE.match(name)
        if match and isinstance(value, int):
            role = match[1]
            if role in self.new.roles:
                return self.new.roles[role]
            shared = (
                list(self.old.roles.values()).count(value) > 1
            )  # GPT-2's begins and ends texts, and is unk
            if shared and SIBLINGS.get(role) in self.new.roles:
                return self.new.roles[SIBLINGS[role]]
            if value < 0 or value in self.new_id:
                return self.new_id.get(value, value)
            if SIBLINGS.get(role) in self.new.roles:
                return self.new.roles[SIBLINGS[role]]
            return self._none(field, role)
        if match and isinstance(value, (list, tuple)):
            ids = [self.new_id[i] for i in value if i in self.new_id]
            first = [self.new.roles[match[1]]] if match[1] in self.new.roles else []
            return list(dict.fromkeys([*first, *ids])) or None
        if name == START and isinstance(value, int) and value not in self.new_id:
            instead = start_instead(self.new)
            if instead is not None:
                return instead
        if isinstance(value, int):
            return self._required(field, value)
        whole = isinstance(value, Mapping) or name == "keep_only_token_ids"  # a shorter one means more
        if whole and not all(i in self.new_id for i in field.ids if i < self.rows):
            return self._required(field, min(i for i in field.ids if i not in self.new_id))
        return _kept(name, value, self.new_id) or (None if value else value)  # generate() takes no []

    def _none(self, field: IdField, role: str) -> None:
        """None, where the configuration takes it: some want a number, and training an encoder-decoder its
        padding."""
        if role == "pad" and getattr(field.holder, "is_encoder_decoder", False):
            raise InvalidArgumentError(
                f"an encoder-decoder shifts its labels by {type(field.holder).__name__}.{field.name}, and "
                f"the new tokenizer has no pad token: give it one with new_tokenizer.add_special_tokens"
            )
        try:
            setattr(copy.copy(field.holder), field.name, None)
        except Exception as error:
            raise InvalidArgumentError(
                f"{type(field.holder).__name__}.{field.name} has to be a number, and the new tokenizer has "
                f"no {role} token: give it one with new_tokenizer.add_special_tokens"
            ) from error

    def _required(self, field: IdField, value: int) -> Any:
        if value < 0 or value >= self.rows:
            return value
        if value in self.new_id:
            return self.new_id[value]
        if field.name.startswith("forced_"):
            return None
        token = self.old.tokens[value] if value < len(self.old) else ""
        raise InvalidArgumentError(
            f"{type(field.holder).__name__}.{field.name} is {value} ({token!r}), which the new tokenizer has "
            f"no token for: add it with new_tokenizer.add_special_tokens, or set the field to None"
        )


def start_instead(new: TokenTexts) -> int | None:
    """The token that a decoder starts from where the new tokenizer lacks the one it did."""
    return next((new.roles[role] for role in ("bos", "pad", "cls", "eos") if role in new.roles), None)


def _kept(name: str, value: Any, new_id: Mapping[int, int]) -> Any:
    """Lists of ids, and of lists of them, with new ids; entries that have none are left out."""
    if isinstance(value, Mapping):
        return {_one(k, new_id): _one(v, new_id) for k, v in value.items()}
    if name == "forced_decoder_ids":
        return [[place, new_id[i]] for place, i in value if i in new_id]
    if name == "sequence_bias":
        return [[_one(ids, new_id), bias] for ids, bias in value if all(i in new_id for i in ids)]
    return [_one(entry, new_id) for entry in value if _there(entry, new_id)]


def _there(entry: Any, new_id: Mapping[int, int]) -> bool:
    return all(_there(one, new_id) for one in entry) if isinstance(entry, (list, tuple)) else entry in new_id


def _one(entry: Any, new_id: Mapping[int, int]) -> Any:
    if isinstance(entry, (list, tuple)):
        return type(entry)(_one(one, new_id) for one in entry)
    return new_id.get(entry, entry) if isinstance(entry, int) and not isinstance(entry, bool) else entry
