"""What changes beside tables and configurations when a model gets another tokenizer."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..errors import UnsupportedModelError
from ..retokenize import TokenTexts
from ..tables import EmbeddingTables, Side
from .id_fields import chat_templates, find_skipped_words


class Following:
    """What changes beside tables and configurations: padding rows, the tokenizer, what holds the model."""

    def __init__(
        self,
        holder: Any,
        tables: EmbeddingTables,
        texts: dict[Side, TokenTexts],
        old: Any,
        new: Any,
        notes: list[str],
    ):
        """`texts` are the new tokens by side; `notes` gets what the new tokenizer takes over."""
        self.new = new
        self.padding = [
            (place.module, texts[table.side].roles.get("pad"))
            for table in tables.input_tables
            for place in table.tied.locations
            if getattr(place.module, "padding_idx", None) is not None
        ]
        self.settings = _settings(old, new, next(iter(texts.values())), notes)
        self.place = _place_of_tokenizer(holder, tables.model)
        self.tables = tables

    def write(self) -> None:
        """Changes all of it."""
        for module, pad in self.padding:
            module.padding_idx = pad  # type: ignore[assignment]
        for name, value in self.settings.items():
            setattr(self.new, name, value)
        if self.place is not None:
            setattr(*self.place, self.new)
        find_skipped_words(self.tables, self.new)


def _place_of_tokenizer(holder: Any, model: PreTrainedModel) -> tuple[Any, str] | None:
    """Where what holds a model keeps its tokenizer, tried by putting it there again; None without one."""
    held = getattr(holder, "tokenizer", None)
    if held is None or isinstance(holder, PreTrainedModel):
        return None
    places = [(holder, "tokenizer")]
    if isinstance(holder, nn.Sequential):  # sentence-transformers 6: that of the processor beside the model
        around = [one for one in holder.modules() if any(part is model for part in one.modules())]
        beside = [one for one in around if one is not model and getattr(one, "tokenizer", None) is not None]
        held = beside[-1].tokenizer
        places += [(getattr(beside[-1], "processor", None), "tokenizer"), (beside[-1], "processor")]
    for place, name in places:
        if getattr(place, name, None) is held:
            with contextlib.suppress(AttributeError):
                setattr(place, name, held)
                return place, name
    raise UnsupportedModelError(
        f"the tokenizer of {type(holder).__name__} cannot be set: give the model in it, and put the new "
        f"tokenizer into it yourself"
    )


def _settings(old: Any, new: Any, texts: TokenTexts, notes: list[str]) -> dict[str, Any]:
    """What the new tokenizer takes over from the old one, where it says nothing itself."""
    found: dict[str, Any] = {}
    template = getattr(old, "chat_template", None)
    if template and not getattr(new, "chat_template", None):
        text = " ".join(chat_templates(old))
        named = sorted(str(t) for t in old.added_tokens_decoder.values() if str(t) in text)
        lacking = [token for token in named if token not in texts.ids]
        if lacking:
            notes.append(f"the chat template was not taken over: the new tokenizer has no {lacking[0]!r}")
        else:
            found["chat_template"] = template
    if new.model_max_length > 10**9 and old.model_max_length < 10**9:
        found["model_max_length"] = old.model_max_length
    if "padding_side" not in getattr(new, "init_kwargs", {}) and old.padding_side != new.padding_side:
        found["padding_side"] = old.padding_side
    notes += [f"{name} of the old tokenizer was taken over" for name in found]
    return found
