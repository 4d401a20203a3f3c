"""A table changes its rows while something holds a graph of the old one: said, since training would fail."""

from __future__ import annotations

import warnings

import pytest
import torch
from builders.tiny_tokenizers import model, tokenizer
from torch import nn

import hf_embinit
from hf_embinit.errors import VocabularyWarning


def grow(model_, words):
    hf_embinit.expand_vocabulary(model_, words, ["zyxomma"], prefixes=())


def prune(model_, words):
    hf_embinit.prune_vocabulary(model_, words, list(range(40)))


@pytest.mark.parametrize("dropped", [True, False])
@pytest.mark.parametrize("change", [grow, prune])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_an_output_that_is_kept_through_a_change_is_said(kind, change, dropped):
    model_, words = model(kind, 500), tokenizer("byte_level", 500)
    ids = torch.tensor([[3, 4, 5]])
    kept = model_(ids).logits
    with pytest.warns(VocabularyWarning, match="still holds its graph, and the next backward"):
        change(model_, words)
    if dropped:
        del kept
        model_(ids, labels=ids).loss.backward()
    else:  # as the warning says
        with pytest.raises(RuntimeError, match="invalid gradient"):
            model_(ids, labels=ids).loss.backward()


@pytest.mark.parametrize("keep", ["nothing", "no graph", "hooks", "optimizer"])
def test_what_harms_no_training_is_not_warned_of(keep):
    model_, words = model("llama", 500), tokenizer("byte_level", 500)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        kept = [model_(ids).logits]
    if keep == "hooks":
        kept += [p.register_post_accumulate_grad_hook(lambda p: None) for p in model_.parameters()]
    if keep == "optimizer":
        kept.append(torch.optim.AdamW(model_.parameters()))
        model_(ids, labels=ids).loss.backward()
        kept[-1].step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grow(model_, words)
    model_(ids, labels=ids).loss.backward()


def test_a_model_inside_ddp_is_said_to_be_wrapped_too_early(tmp_path):
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model_, words = model("llama", 500), tokenizer("byte_level", 500)
        ddp = nn.parallel.DistributedDataParallel(model_)
        with pytest.warns(
            VocabularyWarning, match="DistributedDataParallel.*the wrapper before the model is wrapped anew"
        ):
            grow(ddp, words)
        del ddp
        ids = torch.tensor([[3, 4, 5]])
        nn.parallel.DistributedDataParallel(model_)(ids, labels=ids).loss.backward()
    finally:
        dist.destroy_process_group()
