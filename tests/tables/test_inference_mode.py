"""`torch.inference_mode()`: tables changed inside it can be trained; those made there are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from builders.tiny_tokenizers import model, tokenizer

import hf_embinit
from hf_embinit.errors import UnsupportedModelError

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "expand": lambda m, t: hf_embinit.expand_vocabulary(m, t, [" qorvex"], prefixes=()),
    "prune": lambda m, t: hf_embinit.prune_vocabulary(m, t, ["Ġthe"]),
    "replace": lambda m, t: hf_embinit.replace_tokenizer(m, t, tokenizer("byte_level", 300)),
    "initialize": lambda m, t: hf_embinit.initialize(m, "xavier"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])  # tied and not
def test_what_is_changed_inside_can_be_trained(kind: str, call: str) -> None:
    t = tokenizer("byte_level")
    m, other = (model(kind, len(t)) for _ in range(2))
    with torch.inference_mode():
        CALLS[call](m, copy.deepcopy(t))
    CALLS[call](other, copy.deepcopy(t))
    for (name, inside), outside in zip(m.named_parameters(), other.parameters(), strict=True):
        assert not inside.is_inference() and torch.equal(inside, outside), name
    ids = torch.tensor([[1, 2, 3]])
    m(input_ids=ids, labels=ids).loss.backward()
    assert m.get_input_embeddings().weight.grad.abs().sum() > 0


@pytest.mark.parametrize("call", CALLS)
def test_what_was_made_inside_is_refused_untouched(call: str) -> None:
    t = tokenizer("byte_level")
    with torch.inference_mode():
        m = model("gpt2", len(t))
    before = {name: value.clone() for name, value in m.state_dict().items()}
    with pytest.raises(UnsupportedModelError, match=r"wte.weight was made inside torch.inference_mode\(\)"):
        CALLS[call](m, t)
    assert len(t) == m.config.vocab_size
    assert all(torch.equal(value, before[name]) for name, value in m.state_dict().items())
