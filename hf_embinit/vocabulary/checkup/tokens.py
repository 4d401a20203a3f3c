"""Checks of the tokenizer alone, and of where its tokens lie among all ids."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ..id_fields import ends_at_highest_id, id_before_times
from .case import Case
from .finding import SHOWN, Finding

_TIME = re.compile(r"<\|(\d+\.\d\d)\|>")
_TEXTS = ("The quick brown fox.", "Überall ☃ 42\n")
_STEP = 0.02
"""Seconds between two of Whisper's timestamps."""


def swallowed_tokens(case: Case) -> Iterator[Finding]:
    """Added tokens that no text gives, since normalisation or another token takes them."""
    tokenizer = case.tokenizer
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    added = {str(token): i for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    texts = ["a {} b", "a{}"]  # one that starts with a blank follows a word
    lost = [
        token
        for token, i in added.items()
        if not any(i in tokenizer(t.format(token), add_special_tokens=False)["input_ids"] for t in texts)
    ]
    if lost:
        yield Finding(
            "warning",
            "added_token_swallowed",
            f"{len(lost)} added tokens are not found in a text: {', '.join(map(repr, lost[:SHOWN]))}",
            "Add them with normalized=False, or without single_word=True",
        )


def split_markers(case: Case) -> Iterator[Finding]:
    """Added tokens that a conversation, as the chat template writes it, has and its ids have not."""
    tokenizer = case.tokenizer
    added = {str(token): i for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    if not added or not getattr(tokenizer, "chat_template", None):
        return
    turns = [{"role": role, "content": "a"} for role in ("user", "assistant")]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    except Exception:  # of a template that asks for other roles, or of a package that is not here
        return
    longest_first = sorted(added, key=len, reverse=True)
    written = Counter(re.findall("|".join(map(re.escape, longest_first)), text))
    split = [token for token in added if ids.count(added[token]) < written[token]]
    if split:
        yield Finding(
            "warning",
            "chat_token_split",
            f"{len(split)} added tokens are split into pieces where the chat template writes them: "
            f"{', '.join(map(repr, split[:SHOWN]))}",
            "Add them with normalized=False, so that they are found behind a letter, too",
        )


def splits_after_saving(case: Case) -> Iterator[Finding]:
    """Texts that are split otherwise once the tokenizer was saved and loaded."""
    tokenizer = case.tokenizer
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    texts = [*(f"a {t} b" for t in getattr(tokenizer, "added_tokens_decoder", {}).values()), *_TEXTS]
    with tempfile.TemporaryDirectory() as folder:
        try:
            tokenizer.save_pretrained(folder)
            again = type(tokenizer).from_pretrained(folder)
            changed = [t for t in texts if again(t)["input_ids"] != tokenizer(t)["input_ids"]]
        except Exception as error:  # whatever a tokenizer's own code does
            changed = [f"saving it fails: {error}"]
    if changed:
        yield Finding(
            "error",
            "splits_differently_after_saving",
            f"the tokenizer splits differently once saved and loaded: {changed[0]!r}",
            "Save it from the class it was loaded as",
        )


def loaded_otherwise(own: tuple[Path, Any]) -> Iterator[Finding]:
    """Texts that transformers splits otherwise than the file `tokenizer.json` of a folder: some classes build
    normaliser and pre-tokenizer anew when they are loaded. `own` is the folder and its loaded tokenizer."""
    folder, tokenizer = own
    file = folder / "tokenizer.json"
    if not file.is_file() or not getattr(tokenizer, "is_fast", False):
        return
    backend = Tokenizer.from_file(str(file))
    backend.no_truncation()
    backend.no_padding()
    texts = [*(f"a {t} b" for t in tokenizer.added_tokens_decoder.values()), *_TEXTS]
    for text in texts:
        here = tokenizer(text, add_special_tokens=False)["input_ids"]
        if here != backend.encode(text, add_special_tokens=False).ids:
            yield Finding(
                "error",
                "splits_differently_after_saving",
                f"{type(tokenizer).__name__} splits {text!r} otherwise than the {file.name} it was saved to",
                "Set tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json",
            )
            return


def timestamps(case: Case) -> Iterator[Finding]:
    """Whisper reads each id behind `no_timestamps_token_id` as a time, a step of 0.02 s an id."""
    last = id_before_times(case.model)
    if last is None or case.names is None:
        return
    for i, token in sorted(case.names.items()):
        time = _TIME.fullmatch(token)
        expected = (i - last - 1) * _STEP
        if i > last and (time is None or abs(float(time[1]) - expected) > _STEP / 2):
            yield Finding(
                "error",
                "timestamps_order",
                f"id {i} ({token!r}) lies behind no_timestamps_token_id {last}, so that it is read as the "
                f"time {expected:.2f} s",
                "Give tokens ids before it: expand_vocabulary(..., slots=[...]), --slots ID",
            )
            return


def pooled_tokens(case: Case) -> Iterator[Finding]:
    """CLIP's old checkpoints, and OWL-ViT, pool a text at its highest id, which has to be its end."""
    eos = getattr(case.tokenizer, "eos_token_id", None)
    names = case.names or {}
    behind = [] if eos is None else [i for i in sorted(names) if i > eos]
    for name, settable in ends_at_highest_id(case.model) if behind else ():
        module = f"model.{name}".rstrip(".")
        why = ", since its eos_token_id is 2" if settable else ""
        yield Finding(
            "error",
            "pooled_at_another_token",
            f"{module} pools a text at its highest id{why}: at one of the {len(behind)} ids behind {eos}, "
            f"the end, where there is one ({names[behind[0]]!r})",
            f"Set {module}.eos_token_id and {module}.config.eos_token_id to {eos}, and save it"
            if settable
            else "Give tokens ids before it: expand_vocabulary(..., slots=[...]), --slots ID",
        )


CHECKS = [swallowed_tokens, split_markers, splits_after_saving, timestamps, pooled_tokens]
