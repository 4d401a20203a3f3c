"""Models whose parts are sharded or offloaded: their tables are those of a whole model, to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from builders.forks import run_fork
from builders.tiny_models import V, llama, word_tokenizer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hf_embinit import expand_vocabulary, initialize, patch

PROCESS = """
import os, sys, warnings, torch, torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from builders.tiny_models import V, bert, llama, word_tokenizer
from hf_embinit import expand_vocabulary, initialize, load_adapter, patch, train_new_rows_only
from hf_embinit.errors import UnsupportedModelError
from hf_embinit.training.callbacks import changed_tensors, freeze_all_but_embeddings

warnings.simplefilter("ignore")
other = os.fork()
rank, folder = int(not other), sys.argv[1]
os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))  # what `tp_plan` reads
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
ids = torch.arange(V - 3, V + 5)[None]


def pair(make, **config):
    torch.manual_seed(0)
    whole, model = make(**config), make(**config)
    model.load_state_dict(whole.state_dict())
    torch.manual_seed(rank)  # rows depend on seed, table and size alone
    return whole, model


def same(whole, model, close=False, only=""):
    for part in model.modules():
        if hasattr(part, "reshard"):
            part.reshard()
    for name, parameter in whole.named_parameters():
        if only and name not in only:
            continue
        sharded = model.get_parameter(name)
        gathered = sharded.full_tensor() if isinstance(sharded, DTensor) else sharded
        if close:
            torch.testing.assert_close(gathered, parameter)
        else:
            assert torch.equal(gathered, parameter), name


def train(*models):
    for each in models:
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        each(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


# a sharded body
whole, model = pair(llama)
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
for each in (whole, model):
    patch(each, "mean_cov").resize_token_embeddings(V + 5)
same(whole, model)
fully_shard(model, mesh=mesh)
train(whole, model)
same(whole, model, close=True)

# sharded tables, alone, tied and with biases
for make, config in ((llama, {}), (llama, {"tie_word_embeddings": True}), (bert, {})):
    whole, model = pair(make, **config)
    if make is llama and not config:
        fully_shard(model.lm_head, mesh=mesh)
    fully_shard(model, mesh=mesh)
    before = dict(model.named_parameters())
    model(input_ids=ids[:, :3])  # leaves gathered copies in the places of the shards
    for each in (whole, model):
        patch(each, "mean_cov").resize_token_embeddings(V + 5)
    same(whole, model)
    assert all(before[name] is parameter for name, parameter in model.named_parameters())
    train(whole, model)
    same(whole, model, close=True)
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            parameter.copy_(model.get_parameter(name).full_tensor())
    told = [str(initialize(each, "xavier", seed=3)) for each in (whole, model)]
    same(whole, model)
    assert told[0] == told[1]
    for each in (whole, model):
        expand_vocabulary(each, word_tokenizer(V + 5), ["Frodo"], "mean_cov", prefixes=())
    same(whole, model)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        model.save_pretrained(f"{folder}/{make.__name__}{len(config)}", state_dict=state)
        whole.save_pretrained(f"{folder}/{make.__name__}{len(config)}-whole")

# new rows alone, with a body that is frozen or trains, tied and not: momentum and decay move no other row
for config, freeze_rest in (({}, True), ({"tie_word_embeddings": True}, False)):
    whole, model = pair(llama, **config)
    for each in (whole, model):
        expand_vocabulary(each, word_tokenizer(V), ["Frodo", "Sam"], "mean_cov", prefixes=())
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(input_ids=ids[:, :3])  # makes the gathered parameters, which all train
    before = {name: parameter.clone() for name, parameter in whole.named_parameters()}
    for each in (whole, model):
        with train_new_rows_only(each, [V, V + 1], freeze_rest=freeze_rest):
            trained = [parameter for parameter in each.parameters() if parameter.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=0.1, weight_decay=0.5)
            for _ in range(3):
                optimizer.zero_grad()
                each(input_ids=ids[:, :5], labels=ids[:, :5]).loss.backward()
                torch.nn.utils.clip_grad_norm_(trained, 0.1)
                optimizer.step()
    same(whole, model, close=True)
    gathered = model.get_parameter("model.embed_tokens.weight").full_tensor()
    first = before["model.embed_tokens.weight"]
    assert torch.equal(gathered[:V], first[:V]) and not torch.equal(gathered[V:], first[V:])

# an adapter, saved as trainers do: every process gathers its weights, and one saves
from peft import get_peft_model
from hf_embinit import peft_config_for_new_tokens, save_vocabulary
for rows_alone in (False, True):
    _, model = pair(llama)
    expand_vocabulary(model, word_tokenizer(V), ["Frodo", "Sam"], "mean_cov", prefixes=())
    rows = model.lm_head.weight[V:].detach().clone()
    config = peft_config_for_new_tokens(model, [V, V + 1], target_modules=["q_proj"])
    adapted = model if rows_alone else get_peft_model(model, config)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(adapted, mesh=mesh)
    if rows_alone:  # what the configuration would save by then are rows that train
        model.peft_config = {"default": config}
        with warnings.catch_warnings(record=True):
            alone = train_new_rows_only(model, [V, V + 1])
    else:
        adapted(input_ids=ids[:, :5], labels=ids[:, :5]).loss.backward()
        torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.1).step()
    state = get_model_state_dict(adapted, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    place = f"{folder}/adapter{rows_alone}"
    if rank == 0:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            config.save_pretrained(place) if rows_alone else adapted.save_pretrained(place, state_dict=state)
        told = [str(one.message) for one in told if "called in every process" in str(one.message)]
        assert len(told) == rows_alone and os.path.exists(f"{place}/embinit.json") != rows_alone, told
    dist.barrier()
    assert save_vocabulary(model, place)
    dist.barrier()
    assert torch.equal(load_file(f"{place}/embinit.safetensors")["lm_head.weight"], rows)
    if rows_alone:
        alone.remove()
    if rank == 0 and not rows_alone:
        base, _ = pair(llama)
        head = load_adapter(base, place).get_base_model().lm_head
        assert torch.equal(head.original_module.weight[V:], rows)

# the input embeddings alone
_, model = pair(llama, vocab_size=V + 5)
frozen = freeze_all_but_embeddings(model)
fully_shard(model, mesh=mesh)
train(model)
assert changed_tensors(model, frozen) == [] and "lm_head.weight" in frozen
with torch.no_grad():
    model.lm_head.weight.to_local().zero_()
assert changed_tensors(model, frozen) == ["lm_head.weight"]

# a wrapper whose FSDP2 keeps the parameters, which the model inside cannot know of
whole, model = pair(llama)
wrapper = fully_shard(torch.nn.Sequential(model), mesh=mesh)
for change in (lambda: initialize(model, "xavier"), lambda: patch(model).resize_token_embeddings(V + 5)):
    try:
        change()
    except UnsupportedModelError as error:
        assert "give the outermost module" in str(error), error
    else:
        raise AssertionError("FSDP2 was not told")
told = [str(initialize(each, "xavier")) for each in (whole, wrapper)]
for each in (whole, wrapper):
    expand_vocabulary(each, word_tokenizer(V), ["Frodo"], "mean_cov", prefixes=())
same(whole, model)

# tensor parallelism
whole, model = pair(llama, vocab_size=V + 1)  # transformers 5.16 wants rows that the processes divide
if rank == 0:
    whole.save_pretrained(f"{folder}/m")
dist.barrier()
model = type(whole).from_pretrained(f"{folder}/m", tp_plan="auto", device_mesh=mesh).eval()
if model.lm_head.weight.shape == whole.lm_head.weight.shape:
    for each in (whole, model):
        patch(each, "mean_cov").resize_token_embeddings(V + 5)
    tables = ("model.embed_tokens.weight", "lm_head.weight")  # in 5.6 a process has parts of the others
    same(whole, model, only=tables)
    train(whole, model)
    same(whole, model, close=True, only=tables)
else:
    try:
        patch(model)
    except UnsupportedModelError as error:
        assert "hf-embinit expand MODEL" in str(error), error
    else:
        raise AssertionError("a part of a table was taken for a table")
dist.destroy_process_group()
if other:
    assert os.waitpid(other, 0)[1] == 0
"""


def test_every_process_makes_the_same_rows_and_training_goes_on(tmp_path: Path) -> None:
    run_fork(PROCESS, str(tmp_path))
    for name in ("llama0", "llama1", "bert0"):
        saved, whole = (load_file(tmp_path / f / "model.safetensors") for f in (name, f"{name}-whole"))
        assert all(torch.equal(saved[key], tensor) for key, tensor in whole.items())
        assert json.loads((tmp_path / name / "config.json").read_text())["vocab_size"] == V + 6


@pytest.mark.needs("transformers>=5.16")  # 5.6 gives accelerate no model that is on the disk as a whole
@pytest.mark.parametrize("tie", [False, True])
def test_what_is_on_the_disk_grows_as_in_memory(tie: bool, tmp_path: Path) -> None:
    llama(tie_word_embeddings=tie).save_pretrained(tmp_path / "m")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    ids = torch.arange(V - 3, V + 6)[None]
    for place in ("model.layers", "lm_head", ""):
        parts = [f"model.{name}" for name, _ in plain.model.named_children()]
        places = dict.fromkeys((*parts, "lm_head"), "cpu") if place else {}
        places |= {"model.embed_tokens": "disk"} if tie and place == "lm_head" else {}
        plain, model = (
            AutoModelForCausalLM.from_pretrained(tmp_path / "m", device_map=device_map, offload_folder=folder)
            for device_map, folder in ((None, None), ({**places, place: "disk"}, tmp_path / "o"))
        )
        for each in (plain, model):
            patch(each, "mean_cov").resize_token_embeddings(V + 5)
            expand_vocabulary(each, word_tokenizer(V + 5), ["Frodo"], prefixes=())
        assert model.model.layers[0].mlp.up_proj.weight.is_meta == (place != "lm_head")
        assert model.lm_head.weight.is_meta == (place != "model.layers")
        assert torch.equal(model(ids).logits, plain(ids).logits)
        model.save_pretrained(tmp_path / "s")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "s")
        assert torch.equal(again(ids).logits, plain(ids).logits)
        assert (again.lm_head.weight is again.model.embed_tokens.weight) == tie
    told = [str(initialize(each, "xavier", seed=3)) for each in (plain, model)]
    assert told[0] == told[1] and torch.equal(model(ids).logits, plain(ids).logits)
