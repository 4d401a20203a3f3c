"""Models whose parts are sharded or offloaded: their tables are those of a whole model, to the bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from builders import ROOT
from builders.command_line import OFFLINE
from builders.tiny_models import V, llama
from transformers import AutoModelForCausalLM

from hf_embinit import patch
from hf_embinit.errors import UnsupportedModelError

PROCESS = """
import sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from builders.tiny_models import V, llama
from hf_embinit import patch
from hf_embinit.errors import UnsupportedModelError

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
torch.manual_seed(0)
whole, model = llama(), llama()
model.load_state_dict(whole.state_dict())
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
torch.manual_seed(rank)  # rows depend on seed, table and size alone
for each in (whole, model):
    patch(each, "mean_cov").resize_token_embeddings(V + 5)
tables = ("model.embed_tokens.weight", "lm_head.weight")
assert all(torch.equal(whole.get_parameter(t), model.get_parameter(t)) for t in tables)

fully_shard(model, mesh=mesh)
ids = torch.arange(V - 3, V + 5)[None]
for each in (whole, model):
    optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
    each(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
for name in tables:
    gathered = model.get_parameter(name).full_tensor()
    assert gathered.shape == (V + 5, 16)
    torch.testing.assert_close(gathered, whole.get_parameter(name))
try:
    patch(model)
except UnsupportedModelError as error:
    assert "sharded over a device mesh" in str(error) and "hf-embinit expand MODEL" in str(error), error
else:
    raise AssertionError("a sharded table was taken")
dist.destroy_process_group()
"""


def test_every_process_makes_the_same_rows_and_training_goes_on(tmp_path: Path) -> None:
    path = f"{ROOT}:{ROOT / 'tests'}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(tmp_path / "store")],
            env={**OFFLINE, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, problem = process.communicate(timeout=240)
        assert process.returncode == 0, problem[-3000:]


def test_a_body_on_the_disk_stays_there(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "m")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    places = {f"model.{name}": "cpu" for name, _ in plain.model.named_children()} | {"lm_head": "cpu"}

    def offloaded(**other: str) -> torch.nn.Module:
        return AutoModelForCausalLM.from_pretrained(
            tmp_path / "m", device_map={**places, **other}, offload_folder=tmp_path / "o"
        )

    model = offloaded(**{"model.layers": "disk"})
    for each in (plain, model):
        patch(each, "mean_cov").resize_token_embeddings(V + 5)
    ids = torch.arange(V - 3, V + 5)[None]
    assert model.model.layers[0].mlp.up_proj.weight.is_meta
    assert torch.equal(model(ids).logits, plain(ids).logits)
    with pytest.raises(UnsupportedModelError, match=r"offloaded to the disk.*hf-embinit expand MODEL"):
        patch(offloaded(**{"model.embed_tokens": "disk"})).resize_token_embeddings(V + 5)
