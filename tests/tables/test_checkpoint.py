"""A checkpoint changed in its files: byte for byte what loading, changing and saving it gives, or nothing."""

from __future__ import annotations

import filecmp
import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from builders import ROOT, architectures
from builders.architectures import VOCAB, build, since
from builders.tiny_models import V, gpt2, llama, spread, t5_with_separate_head
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from hf_embinit.errors import (
    DataNotFoundError,
    EmbinitError,
    InvalidArgumentError,
    RunFolderError,
    UnsupportedModelError,
    VectorFileError,
)
from hf_embinit.resize import resize
from hf_embinit.rows import RowRequest
from hf_embinit.tables import (
    EmbeddingTables,
    StoredRows,
    checkpoint_writing,
    open_checkpoint,
    save_checkpoint,
)
from hf_embinit.tables.safetensors_files import StoredTensor, read_checkpoint_files

# --- the same as in memory ----------------------------------------------------------------------------------


def change(model: transformers.PreTrainedModel, rows: int) -> None:
    tables = EmbeddingTables(model)
    for side in sorted({table.side for table in tables.tables}):
        resize(tables, tables.plan(rows, side=side), RowRequest("mean_cov"))


def assert_equal_folders(one: Path, other: Path) -> None:
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    _, different, broken = filecmp.cmpfiles(one, other, names, shallow=False)
    assert not different and not broken, different


def check_equal(name: str, variant: str, folder: Path, rows: int = VOCAB + 7) -> None:
    """Grows or shrinks one class both ways; `variant` is `stock`, `tied` or `untied`."""
    model = build(name, **({} if variant == "stock" else {"tie_word_embeddings": variant == "tied"}))
    spread(model)
    model.save_pretrained(folder / "model")
    loaded = type(model).from_pretrained(folder / "model")
    for parameter in loaded.parameters():  # BLAS adds in another order where memory is aligned otherwise
        parameter.data = parameter.data.clone()
    change(loaded, rows)
    save_checkpoint(loaded, folder / "in_memory")
    opened = open_checkpoint(folder / "model")
    change(opened, rows)
    save_checkpoint(opened, folder / "on_disk")
    assert_equal_folders(folder / "in_memory", folder / "on_disk")


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("GPT2LMHeadModel", "stock"),
        ("LlamaForCausalLM", "untied"),
        since("5.6", "BertForMaskedLM", "tied"),  # 5.0 saves LayerNorms under their old names
        since("5.6", "RobertaForMaskedLM", "untied"),
        ("T5ForConditionalGeneration", "stock"),
        ("BartForConditionalGeneration", "stock"),  # a bias that is a buffer
        ("MarianMTModel", "untied"),
        since("5.6", "MobileBertForMaskedLM", "stock"),  # a transposed part of the head
        ("Gemma3nForCausalLM", "stock"),  # a per-layer table
        ("CpmAntForCausalLM", "stock"),  # rows that move
        since("5.6", "MllamaForCausalLM", "stock"),  # rows that stay
        ("DeepseekV4ForCausalLM", "stock"),  # integers by token, experts of several tensors
    ],
)
def test_it_is_what_loading_and_saving_gives(name: str, variant: str, tmp_path: Path) -> None:
    check_equal(name, variant, tmp_path)


@pytest.mark.parametrize("rows", [VOCAB - 40, 2 * VOCAB])
def test_shrunk_and_doubled(rows: int, tmp_path: Path) -> None:
    check_equal("GPT2LMHeadModel", "untied", tmp_path, rows)


@pytest.mark.sweep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("variant", ["stock", "untied", "tied"])
def test_every_architecture(variant: str, tmp_path: Path) -> None:
    problems, count = [], 0
    for _, _, name in architectures.classes():
        folder = tmp_path / name
        try:
            tables = EmbeddingTables(build(name))
        except Exception:
            continue
        if len({table.side for table in tables.tables}) > 1:
            continue
        count += 1
        try:
            check_equal(name, variant, folder)
        except Exception as error:
            problems.append((name, f"{type(error).__name__}: {error}"))
        shutil.rmtree(folder, ignore_errors=True)
        gc.collect()
    assert count > 200 and not problems


def saved(model: transformers.PreTrainedModel, folder: Path, **options: Any) -> Path:
    spread(model)
    model.save_pretrained(folder, **options)
    return folder


def test_tables_are_tied_as_the_files_say(tmp_path: Path) -> None:
    """A separate head under a config that ties, and one tensor saved twice."""
    folder = saved(t5_with_separate_head(), tmp_path / "separate")
    head = EmbeddingTables(open_checkpoint(folder)).output_tables[0]
    assert head.tied_to is None

    folder = saved(gpt2(), tmp_path / "twice")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {**tensors, "lm_head.weight": tensors["transformer.wte.weight"].clone()}, folder / "model.safetensors"
    )
    opened = open_checkpoint(folder)
    assert EmbeddingTables(opened).output_tables[0].tied_to == "transformer.wte.weight"
    change(opened, V + 3)
    save_checkpoint(opened, tmp_path / "o")
    assert load_file(tmp_path / "o" / "model.safetensors").keys() == tensors.keys()


def test_shards_without_a_table_are_copied_or_linked_as_they_are(tmp_path: Path) -> None:
    folder = saved(llama(num_hidden_layers=4), tmp_path / "sharded", max_shard_size="6KB")
    (folder / "preprocessor_config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_text("old")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    of_tables = {index["weight_map"][name] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    shards = set(index["weight_map"].values())
    assert len(shards) > len(of_tables) + 2
    loaded = llama().from_pretrained(folder)
    change(loaded, V + 9)
    for link in (False, True):
        opened = open_checkpoint(folder)
        change(opened, V + 9)
        target = tmp_path / f"link {link}"
        save_checkpoint(opened, target, link=link)
        for shard in shards:
            same = (target / shard).stat().st_ino == (folder / shard).stat().st_ino
            assert same == (link and shard not in of_tables)
            equal = (target / shard).read_bytes() == (folder / shard).read_bytes()
            assert equal == (shard not in of_tables)
        after = json.loads((target / "model.safetensors.index.json").read_text())
        assert after["weight_map"] == index["weight_map"]
        added = 2 * 9 * 16
        assert after["metadata"]["total_parameters"] == index["metadata"]["total_parameters"] + added
        assert after["metadata"]["total_size"] == index["metadata"]["total_size"] + 4 * added
        assert (target / "preprocessor_config.json").exists() and not (target / "pytorch_model.bin").exists()
        again = type(loaded).from_pretrained(target).state_dict()
        assert all(torch.equal(value, again[name]) for name, value in loaded.state_dict().items())


def test_a_body_in_any_dtype_stays_as_it_is(tmp_path: Path) -> None:
    """Weights in fp8 with their scales, and 4-bit ones packed into bytes of another shape."""
    folder = saved(llama().to(torch.bfloat16), tmp_path / "quantised")
    tensors = {k: t.clone() for k, t in load_file(folder / "model.safetensors").items()}
    layer = "model.layers.0.self_attn"
    tensors[f"{layer}.q_proj.weight"] = tensors[f"{layer}.q_proj.weight"].to(torch.float8_e4m3fn)
    tensors[f"{layer}.q_proj.weight_scale_inv"] = torch.ones(1)
    tensors[f"{layer}.k_proj.weight"] = torch.arange(128, dtype=torch.uint8)[:, None]
    save_file(tensors, folder / "model.safetensors", {"format": "pt", "note": "kept"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    opened = open_checkpoint(folder)
    change(opened, V + 2)
    save_checkpoint(opened, tmp_path / "o")
    after = load_file(tmp_path / "o" / "model.safetensors")
    grown = {"model.embed_tokens.weight", "lm_head.weight"}
    for name, before in tensors.items():
        if name in grown:
            assert len(after[name]) == V + 2 and torch.equal(after[name][:V], before)
        else:
            assert after[name].dtype == before.dtype
            assert torch.equal(after[name].view(torch.uint8), before.view(torch.uint8))
    assert (
        json.loads((tmp_path / "o" / "config.json").read_text())["quantization_config"]["quant_method"]
        == "fp8"
    )
    assert read_checkpoint_files(tmp_path / "o").shards[0].metadata == {"format": "pt", "note": "kept"}


# --- what cannot be used, and what goes wrong half-way ------------------------------------------------------


def test_a_quantised_table_is_refused(tmp_path: Path) -> None:
    folder = saved(llama(), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = "model.embed_tokens.weight"
    save_file({**tensors, name: tensors[name].to(torch.float8_e4m3fn)}, folder / "model.safetensors")
    with pytest.raises(
        UnsupportedModelError, match=r"embed_tokens.* is quantised \(F8_E4M3\).*: change the voc"
    ):
        open_checkpoint(folder)


def test_a_config_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = saved(llama(), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": V + 5}))
    with pytest.raises(
        InvalidArgumentError, match=rf"\[{V}, 16\] in model.safetensors, but .* has \[{V + 5}"
    ):
        open_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidArgumentError, match=r"its files have no tensor for the table lm_head\.weight"):
        open_checkpoint(folder)


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def put_header(path: Path, header: dict[str, Any], data: bytes, length: int | None = None) -> None:
    text = json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def damage(kind: str, folder: Path) -> str:
    """Damages a sharded checkpoint, and gives what the error should say."""
    index = folder / "model.safetensors.index.json"
    shard = sorted(folder.glob("model-0*.safetensors"))[1]
    values = json.loads(index.read_text())
    name = next(tensor for tensor, file in values["weight_map"].items() if file == shard.name)
    header, data = header_of(shard)
    if kind == "missing":
        shard.unlink()
        return f"lacks {shard.name}, which its model.safetensors.index.json names"
    if kind == "outside":
        values["weight_map"][name] = "../model.safetensors"
        index.write_text(json.dumps(values))
        return "which is no file beside it"
    if kind == "moved":
        other = sorted(folder.glob("model-0*.safetensors"))[2].name
        values["weight_map"][name] = other
        index.write_text(json.dumps(values))
        return f"puts '{name}' into {other}, but it is in {shard.name}"
    if kind == "truncated":
        put_header(shard, header, data[:-8])
        return "is truncated: it has"
    if kind == "longer":
        put_header(shard, header, data + bytes(8))
        return "is longer than its tensors"
    if kind == "overlap":
        other = [key for key in header if key != "__metadata__"][1]
        start, end = header[other]["data_offsets"]
        header[other]["data_offsets"] = [start - 4, end - 4]
        put_header(shard, header, data)
        return "overlaps the one before it"
    if kind == "shape":
        header[name]["shape"] = [3, 3, 3]
        put_header(shard, header, data)
        return "[3, 3, 3], but has"
    if kind == "negative":
        header[name]["shape"] = [-1]
        put_header(shard, header, data)
        return "its header describes"
    if kind == "header length":
        put_header(shard, header, data, length=2**40)
        return "no safetensors file, or a truncated one"
    if kind == "header short":
        put_header(shard, header, data, length=10)
        return "its header is no JSON"
    shard.write_bytes(b"abc")
    return "no safetensors file, or a truncated one: it has 3 bytes"


KINDS = (
    "missing",
    "outside",
    "moved",
    "truncated",
    "longer",
    "overlap",
    "shape",
    "negative",
    "header length",
)


@pytest.mark.parametrize("kind", [*KINDS, "header short", "three bytes"])
def test_damaged_files_are_refused_in_one_sentence(kind: str, tmp_path: Path) -> None:
    folder = saved(llama(num_hidden_layers=3), tmp_path / "model", max_shard_size="6KB")
    expected = damage(kind, folder)
    with pytest.raises((DataNotFoundError, VectorFileError)) as raised:
        open_checkpoint(folder)
    assert expected in str(raised.value) and "\n" not in str(raised.value)


def test_a_full_disk_is_said_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_checkpoint(saved(llama(), tmp_path / "model"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**10))
    monkeypatch.setattr(checkpoint_writing, "_write_shard", lambda *_: pytest.fail("wrote"))
    with pytest.raises(RunFolderError, match=r"has 0\.00 GiB left, but the checkpoint needs"):
        save_checkpoint(opened, tmp_path / "o")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


KILLED = """
import os, signal, sys
from hf_embinit.tables import checkpoint_writing, open_checkpoint, save_checkpoint
model = open_checkpoint(sys.argv[1])
checkpoint_writing._write_index = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
save_checkpoint(model, sys.argv[2])
"""


def test_killed_half_way_there_is_no_checkpoint(tmp_path: Path) -> None:
    folder = saved(llama(), tmp_path / "model", max_shard_size="6KB")
    words = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "out")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(words, env=env, timeout=200, capture_output=True).returncode == -9
    assert not (tmp_path / "out").exists()
    left = [path for path in tmp_path.iterdir() if path.name != "model"]
    assert all(path.name.startswith(".out.") and not (path / "config.json").exists() for path in left)


def test_only_save_checkpoint_saves_it(tmp_path: Path) -> None:
    opened = open_checkpoint(saved(llama(), tmp_path / "model"))
    with pytest.raises(UnsupportedModelError, match="save_checkpoint"):
        opened.save_pretrained(tmp_path / "o")
    with pytest.raises(InvalidArgumentError, match="link=True"):
        save_checkpoint(llama(), tmp_path / "o", link=True)
    (tmp_path / "model" / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidArgumentError, match="is an adapter, not a model"):
        open_checkpoint(tmp_path / "model")
    with pytest.raises(EmbinitError, match=r"neither model\.safetensors nor"):
        read_checkpoint_files(tmp_path)


# --- rows of a file -----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model: open_checkpoint(5), r"path_or_id=5: expected"),
        (lambda model: open_checkpoint("x", revision=1), r"revision=1: expected"),
        (lambda model: save_checkpoint("model", "o"), r"model='model': expected"),
        (lambda model: save_checkpoint(model, 5), r"folder=5: expected"),
        (lambda model: save_checkpoint(model, "o", "bert"), r"tokenizer='bert': expected a tokenizer"),
        (lambda model: save_checkpoint(model, "o", link="yes"), r"link='yes': expected True or False"),
    ],
)
def test_wrong_arguments_are_one_sentence(call, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=sentence):
        call(llama())
    assert not list(tmp_path.iterdir())
