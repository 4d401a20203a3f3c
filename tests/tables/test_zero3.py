"""Models that DeepSpeed's ZeRO-3 has partitioned: their tables are those of a whole model, to the bit."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import ROOT
from builders.command_line import OFFLINE
from builders.tiny_models import V, bart, bert, gpt2, llama, marian, mobilebert, t5
from safetensors.torch import load_file

from hf_embinit import initialize, patch
from hf_embinit.errors import UnsupportedModelError

PROCESS = """
import os, sys, torch, torch.distributed as dist

rank, folder, port = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, DS_ACCELERATOR="cpu")
import deepspeed
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # would be compiled, and is for speed alone
deepspeed.init_distributed("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

from builders.tiny_models import V, bert, llama, word_tokenizer
from transformers import AutoModelForCausalLM
from transformers.integrations import HfDeepSpeedConfig
from hf_embinit import expand_vocabulary, initialize, patch, patched, replace_tokenizer, train_new_rows_only
from hf_embinit import read_manifest
from hf_embinit.errors import InvalidArgumentError, UnsupportedModelError
from hf_embinit.tables import EmbeddingTables

config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    "zero_allow_untested_optimizer": True,
    "gradient_clipping": 1.0,
}
ids = torch.arange(V - 3, V + 5)[None]


def gathered(parameter):
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def same(whole, model, close=False):
    for name, parameter in whole.named_parameters():
        values = gathered(model.get_parameter(name))
        if close:
            torch.testing.assert_close(values, parameter, msg=lambda why: f"{name}: {why}")
        else:
            assert torch.equal(values, parameter), name


def refused(change, words, kind=UnsupportedModelError):
    try:
        change()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def pair(make, **options):
    torch.manual_seed(0)
    whole = make(**options)
    if rank == 0:
        whole.save_pretrained(f"{folder}/m")
    dist.barrier()
    zero = HfDeepSpeedConfig(config)
    model = type(whole).from_pretrained(f"{folder}/m").eval()
    dist.barrier()
    torch.manual_seed(rank)  # rows depend on seed, table and size alone
    return whole, model, zero


for make, options in ((llama, {}), (llama, {"tie_word_embeddings": True}), (bert, {})):
    whole, model, zero = pair(make, **options)
    before = dict(model.named_parameters())
    assert all(parameter.shape == (0,) for parameter in before.values())
    for each in (whole, model):
        patch(each, "mean_cov").resize_token_embeddings(V + 5)
    same(whole, model)
    told = [str(initialize(each, "xavier", seed=3)) for each in (whole, model)]
    same(whole, model)
    assert told[0] == told[1]
    for each, prefixes in ((whole, ()), (model, None)):
        expand_vocabulary(each, word_tokenizer(V + 5), ["Frodo"], "mean_cov", prefixes=prefixes)
    same(whole, model)
    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        for each in (whole, model):
            initialize(each, "xavier", seed=4)
            patch(each, "mean_cov").resize_token_embeddings(V + 9)
        assert model.get_input_embeddings().weight.shape == whole.get_input_embeddings().weight.shape
    same(whole, model)
    for name, parameter in model.named_parameters():
        assert parameter is before[name] and parameter.shape == (0,), name
    assert model.get_input_embeddings().num_embeddings == V + 9
    asked = lambda: expand_vocabulary(model, word_tokenizer(V + 9), ["Sam"], prefixes="generated")
    refused(asked, "runs in its engine alone", InvalidArgumentError)
    refused(lambda: train_new_rows_only(model, [V]), "peft_config_for_new_tokens")
    if options:
        other = lambda: replace_tokenizer(model, word_tokenizer(V + 9), word_tokenizer(V), untie=True)
        refused(other, "sharded by ZeRO-3: untie it before that")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for each in (whole, engine):
        loss = each(input_ids=ids, labels=ids).loss
        each.backward(loss) if each is engine else loss.backward()
    engine.step()
    torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
    torch.optim.SGD(whole.parameters(), lr=0.1).step()
    same(whole, model, close=True)

    table = EmbeddingTables(engine).input_tables[0]
    assert torch.equal(EmbeddingTables(engine).read(table), gathered(table.parameter))
    refused(lambda: initialize(engine, "xavier"), "hf-embinit expand MODEL")
    refused(lambda: patch(model).resize_token_embeddings(V + 12), "hf-embinit expand MODEL")
    for each in (model, whole):
        state = engine._zero3_consolidated_16bit_state_dict() if each is model else None
        if rank == 0:
            each.save_pretrained(f"{folder}/{make.__name__}{len(options)}{each is whole}", state_dict=state)
    engine.destroy()

# a model that is built: transformers initialises what ZeRO-3 has partitioned after all else
whole, zero = llama(), HfDeepSpeedConfig(config)
with patched("xavier"):
    model = AutoModelForCausalLM.from_config(whole.config)
assert read_manifest(model) == []
told = [str(initialize(each, "xavier")).splitlines()[0] for each in (whole, model)]
table = model.get_input_embeddings().weight
assert told[0] == told[1] and torch.equal(gathered(table), whole.get_input_embeddings().weight)
dist.destroy_process_group()
"""


class ZeROOrderedDict(dict):
    """What DeepSpeed's engine puts into modules."""


def partition(parameters: Iterable[Any]) -> None:
    """Does to parameters what ZeRO-3 does to them, in one process."""
    for parameter in parameters:
        parameter.ds_id, parameter.ds_shape, parameter.ds_tensor = 0, parameter.shape, parameter.data
        parameter.ds_status = SimpleNamespace(name="NOT_AVAILABLE")
        parameter.convert_to_zero_parameters = partition
        parameter.data = torch.empty(0)


@contextmanager
def gathered(parameters: Iterable[Any]) -> Iterator[None]:
    for parameter in parameters:
        parameter.data = parameter.ds_tensor
    yield
    for parameter in parameters:
        parameter.data = torch.empty(0)


@pytest.mark.parametrize("make", [bert, gpt2, bart, marian, mobilebert, t5, llama])
def test_placeholders_without_rows_grow_as_their_parameters_would(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero = SimpleNamespace(zero=SimpleNamespace(GatheredParameters=gathered))
    monkeypatch.setitem(sys.modules, "deepspeed", zero)
    whole, model = make(), make()
    model.load_state_dict(whole.state_dict())
    partition(model.parameters())
    told = []
    for each in (whole, model):
        told.append(str(initialize(each, "xavier")))
        patch(each, "mean_cov").resize_token_embeddings(V + 5)
    assert told[0] == told[1]
    for (name, parameter), other in zip(whole.named_parameters(), model.parameters(), strict=True):
        assert other.shape == (0,) and torch.equal(parameter, other.ds_tensor), name
    sizes = [[getattr(m, "num_embeddings", None) for m in each.modules()] for each in (whole, model)]
    assert sizes[0] == sizes[1] and model.config.vocab_size == V + 5
    for module in model.modules():
        module._parameters = ZeROOrderedDict(module._parameters)
    for change in (lambda: initialize(model, "xavier"), lambda: model.resize_token_embeddings(V + 9)):
        with pytest.raises(UnsupportedModelError, match=r"DeepSpeed's engine.*hf-embinit expand MODEL"):
            change()


@pytest.mark.skipif(not importlib.util.find_spec("deepspeed"), reason="DeepSpeed is not installed")
def test_zero3_makes_the_rows_of_a_whole_model_and_its_engine_trains_them(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROCESS, str(rank), str(tmp_path), str(port)],
            env={**OFFLINE, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, problem = process.communicate(timeout=400)
        assert process.returncode == 0, problem[-3000:]
    for name in ("llama0", "llama1", "bert0"):
        saved, whole = (load_file(tmp_path / f"{name}{w}" / "model.safetensors") for w in (False, True))
        same = saved.keys() & whole.keys()  # transformers gives some of BERT's tensors their old names
        assert {tensor.shape[0] for key, tensor in whole.items() if key in same} >= {V + 9}
        for key in same:
            torch.testing.assert_close(saved[key], whole[key])
        assert json.loads((tmp_path / f"{name}False" / "config.json").read_text())["vocab_size"] == V + 9
