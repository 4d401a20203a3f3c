"""DeepSeek V4 picks experts by token: they go where the token goes, in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import architectures
from builders.retokenizing import word_tokenizer
from builders.tiny_models import spread
from safetensors.torch import load_file
from transformers import AutoTokenizer

import hf_embinit
from hf_embinit.tables import EmbeddingTables


def by_token(model: Any) -> list[torch.Tensor]:
    """The experts of every token, one tensor a layer."""
    found = [tensor for name, tensor in model.named_buffers() if name.endswith("tid2eid")]
    assert found
    return found


def saved(folder: Path) -> tuple[Any, Any]:
    """A model whose experts of token `i` are digits of `i` in base 4, and its tokenizer, in `folder`."""
    model = architectures.build("DeepseekV4ForCausalLM")
    spread(model)
    rows = EmbeddingTables(model).vocab_size()
    for shift, experts in enumerate(by_token(model)):
        ids = torch.arange(rows) + shift
        experts.copy_(torch.stack([ids % 4, ids // 4 % 4], 1)[:, : experts.shape[1]])
    words = word_tokenizer([f"w{i}" for i in range(rows - 4)])
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return model, words


def grow(model: Any, words: Any) -> list[int]:
    hf_embinit.expand_vocabulary(model, words, ["zyxomma", "qorvex"], "mean_cov", prefixes=())
    size = len(words) - 2
    return [*range(size), 0, 1]


def shrink(model: Any, words: Any) -> list[int]:
    return hf_embinit.prune_vocabulary(model, words, [f"w{i}" for i in range(0, 200, 7)]).old_ids


def of_equal_size(model: Any, words: Any) -> list[int]:
    return shuffled(model, words, len(words))


def smaller(model: Any, words: Any) -> list[int]:
    return shuffled(model, words, 90)


def shuffled(model: Any, words: Any, size: int) -> list[int]:
    names = [f"w{i}" for i in reversed(range(len(words) - 4))][: size - 4]
    hf_embinit.replace_tokenizer(model, words, word_tokenizer(names))
    return [*range(4), *words.convert_tokens_to_ids(names)]


@pytest.mark.parametrize("change", [grow, shrink, of_equal_size, smaller])
def test_they_follow_their_token(change: Callable[[Any, Any], list[int]], tmp_path: Path) -> None:
    model, words = saved(tmp_path / "model")
    before = [experts.clone() for experts in by_token(model)]
    origins = torch.tensor(change(model, words))
    for experts, were in zip(by_token(model), before, strict=True):
        assert torch.equal(experts, were[origins])

    opened = hf_embinit.open_checkpoint(tmp_path / "model")
    change(opened, AutoTokenizer.from_pretrained(tmp_path / "model"))
    hf_embinit.save_checkpoint(opened, tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    written = [tensor for name, tensor in stored.items() if name.endswith("tid2eid")]
    assert all(torch.equal(experts, were[origins]) for experts, were in zip(written, before, strict=True))
