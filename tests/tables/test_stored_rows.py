"""`StoredRows`: rows of a file are the rows of a tensor, and never in memory as a whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from builders import ROOT
from builders.tiny_models import llama
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from hf_embinit.tables import (
    EmbeddingTables,
    StoredRows,
    StoredTensor,
    open_checkpoint,
    read_checkpoint_files,
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredTensor, torch.Tensor]:
    rows = torch.randn(13, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    path = tmp_path_factory.mktemp("rows") / "model.safetensors"
    save_file({"before": torch.zeros(3), "rows": rows}, path)
    return read_checkpoint_files(path.parent).tensors["rows"], rows


INDICES = st.lists(st.integers(0, 12), min_size=1, max_size=20)


@given(first=INDICES, ids=st.sets(st.integers(0, 100), min_size=1), second=INDICES)
@settings(max_examples=60, deadline=None)
def test_rows_of_a_file_are_the_rows_of_a_tensor(stored, first, ids, second) -> None:
    file, tensor = stored
    lazy, real = StoredRows(file).take(torch.tensor(first)), tensor[first]
    places = torch.tensor(sorted({i % len(first) for i in ids}))
    new = torch.randn(len(places), 5)
    lazy, real = lazy.with_rows(new, places), real.index_copy(0, places, new.to(torch.bfloat16))
    chosen = torch.tensor([i % len(first) for i in second])
    lazy, real = (
        lazy.take(torch.cat([chosen, torch.tensor([-1])])),
        torch.cat([real[chosen], torch.zeros(1, 5).bfloat16()]),
    )
    assert torch.equal(lazy.whole(), real)
    assert torch.equal(torch.cat(list(lazy.blocks())), real)


def test_operations_on_rows_of_a_file(stored) -> None:
    file, real = stored
    lazy = StoredRows(file)
    some = torch.tensor([3, 3, 12, 0, 1, 2])
    assert isinstance(lazy[2:9], StoredRows) and isinstance(lazy[::3], StoredRows)
    assert all(isinstance(part, StoredRows) for part in lazy.split(4))
    for function in (
        lambda x: x[2:9].float(),
        lambda x: x[::3].double(),
        lambda x: x[some],
        lambda x: x[some > 2] if len(some) == len(x) else x[torch.arange(13) % 2 == 0],
        lambda x: x[:, torch.tensor([0, 4])],
        lambda x: x[4],
        lambda x: x.sum(dim=1, dtype=torch.float32),
        lambda x: torch.cat([part.float() for part in x.split(4)]),
        lambda x: x.index_select(0, some),
        lambda x: x.index_fill(0, torch.tensor([1, 5]), 0.0).float(),
        lambda x: (x == x[:1]).all(dim=1),
        lambda x: x.t() @ x,
        lambda x: x.float().norm(dim=1),
        lambda x: torch.ones(2, 13) @ x.float(),
    ):
        found = function(lazy)
        assert type(found) is torch.Tensor and torch.equal(found, function(real))
    with pytest.raises(TypeError, match="cannot be written in place"):
        lazy[2:4] = 0.0


MEMORY = """
import sys
from pathlib import Path
import torch, transformers
from hf_embinit.tables import EmbeddingTables, open_checkpoint, save_checkpoint
from hf_embinit.resize import resize
from hf_embinit.rows import RowRequest
def resident(key):
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) / 1024
model = open_checkpoint(sys.argv[1])
import hf_embinit.rows
before = resident("VmRSS")
tables = EmbeddingTables(model)
resize(tables, tables.plan(tables.vocab_size() + 100), RowRequest("mean_cov"))
save_checkpoint(model, sys.argv[2])
print(resident("VmHWM") - before)
"""


def test_rows_of_several_dimensions_and_moments_read_no_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama(vocab_size=5000, hidden_size=64)
    model.save_pretrained(tmp_path)
    opened = open_checkpoint(tmp_path)
    rows = EmbeddingTables(opened).tables[0].parameter.detach()
    index = torch.tensor([[1, 2, 3], [4, 4, 0]])
    read: list[int] = []
    whole = StoredRows.whole
    monkeypatch.setattr(StoredRows, "whole", lambda self: read.append(len(self)) or whole(self))
    assert torch.equal(rows[index], model.get_input_embeddings().weight[index]) and read == [6]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_table_never_is_in_memory_as_a_whole(tmp_path: Path) -> None:
    rows, width = 100_000, 768
    with torch.device("meta"):
        model = llama(vocab_size=rows, hidden_size=width, tie_word_embeddings=True)
    model.config.save_pretrained(tmp_path / "model")
    tensors = {name: torch.zeros(p.shape) for name, p in model.named_parameters() if "embed" not in name}
    table = torch.empty(rows, width).uniform_(generator=torch.Generator().manual_seed(0))
    save_file({**tensors, "model.embed_tokens.weight": table}, tmp_path / "model" / "model.safetensors")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["architectures"] = ["LlamaForCausalLM"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    words = [sys.executable, "-c", MEMORY, str(tmp_path / "model"), str(tmp_path / "o")]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=280, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 256 < table.nbytes / 2**20, done.stdout
