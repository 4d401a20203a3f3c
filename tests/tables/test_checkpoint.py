"""A checkpoint changed in its files: byte for byte what loading, changing and saving it gives, or nothing."""

from __future__ import annotations

import contextlib
import filecmp
import gc
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from builders import architectures
from builders.architectures import VOCAB, build, since
from builders.tiny_models import V, gpt2, llama, saved, spread, t5_with_separate_head
from builders.tiny_tokenizers import tokenizer
from safetensors.torch import load_file, save_file

import hf_embinit
from hf_embinit.errors import EmbinitError
from hf_embinit.resize import resize
from hf_embinit.rows import RowRequest
from hf_embinit.tables import EmbeddingTables, checkpoint_writing, open_checkpoint, save_checkpoint
from hf_embinit.tables.safetensors_files import read_checkpoint_files


def change(model: transformers.PreTrainedModel, rows: int) -> None:
    tables = EmbeddingTables(model)
    for side in sorted({table.side for table in tables.tables}):
        resize(tables, tables.plan(rows, side=side), RowRequest("mean_cov"))


def assert_equal_folders(one: Path, other: Path) -> None:
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    _, different, broken = filecmp.cmpfiles(one, other, names, shallow=False)
    assert not different and not broken, different


def of_variant(variant: str) -> dict[str, bool]:
    return {} if variant == "stock" else {"tie_word_embeddings": variant == "tied"}


def check_equal(name: str, variant: str, folder: Path, rows: int = VOCAB + 7) -> None:
    """Grows or shrinks one class both ways; `variant` is `stock`, `tied` or `untied`."""
    model = build(name, **of_variant(variant))
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
        since("5.24", "Gemma4AssistantForCausalLM", "stock"),  # a per-layer size that must stay 0
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
            tables = EmbeddingTables(build(name, **of_variant(variant)))
        except Exception:  # not built as small as this, or not so tied, by transformers itself
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


CHANGES: dict[str, Any] = {
    "expand": lambda m, t: hf_embinit.expand_vocabulary(m, t, ["zyxomma", "qorvex"], "mean_cov", prefixes=()),
    "init": lambda m, t: hf_embinit.initialize(m, "xavier", tokenizer=t, seed=3),
    "prune": lambda m, t: hf_embinit.prune_vocabulary(m, t, [i for i in range(len(t)) if i % 5]),
    "surgery": lambda m, t: hf_embinit.surgery.apply(m, "shuffled_embeddings", tokenizer=t, seed=1),
}


@pytest.mark.sweep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("tokens", [VOCAB, VOCAB - 11], ids=["whole", "padded"])
@pytest.mark.parametrize("variant", ["stock", "untied", "tied"])
def test_every_change_on_every_fourth_architecture(variant: str, tokens: int, tmp_path: Path) -> None:
    """Expanded, initialised, pruned and shuffled: the files are equal, or both ways refuse alike."""
    problems, done = [], Counter[str]()
    for _, _, name in architectures.classes()[::4]:
        folder = tmp_path / name
        try:
            model = build(name, **of_variant(variant))
            two_sides = len({table.side for table in EmbeddingTables(model).tables}) > 1
        except Exception:
            continue
        if two_sides:
            continue
        spread(model)
        model.save_pretrained(folder / "model")
        for change_name, work in CHANGES.items():
            ended = {}
            for way, read in (("memory", type(model).from_pretrained), ("disk", open_checkpoint)):
                read_model, words = read(folder / "model"), tokenizer("words", tokens)
                for parameter in read_model.parameters() if way == "memory" else ():
                    parameter.data = parameter.data.clone()
                try:
                    work(read_model, words)
                    save_checkpoint(read_model, folder / way)
                    ended[way] = "saved"
                except EmbinitError as error:
                    ended[way] = f"{type(error).__name__}: {error}"
            done[f"{change_name} {ended['memory'].partition(':')[0]}"] += 1
            try:
                assert ended["memory"] == ended["disk"]
                if ended["memory"] == "saved":
                    assert_equal_folders(folder / "memory", folder / "disk")
            except Exception as error:
                problems.append((name, change_name, f"{type(error).__name__}: {error}"[:300], ended))
            for way in ended:
                shutil.rmtree(folder / way, ignore_errors=True)
        shutil.rmtree(folder)
        gc.collect()
    assert not problems, problems
    assert min(done[f"{change} saved"] for change in CHANGES) >= 40, done


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


@pytest.mark.parametrize("link", [False, True])
def test_the_bar_counts_every_byte_of_weights(
    link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of blocks of rows, of spans that are copied and of files beside them; none of a linked file."""
    bars: list[Any] = []

    class Bar(contextlib.nullcontext[Any]):
        def __init__(self, **options: Any) -> None:
            super().__init__(self)
            self.options, self.done = options, 0
            bars.append(self)

        def update(self, count: int) -> None:
            self.done += count

    folder = saved(llama(), tmp_path / "m", max_shard_size="3KB")
    opened = open_checkpoint(folder)
    change(opened, V + 3)
    monkeypatch.setattr(checkpoint_writing.logging, "tqdm", Bar)  # before 5.6 loading has a bar of its own
    save_checkpoint(opened, tmp_path / "o", link=link)
    written = [path for path in (tmp_path / "o").glob("*.safetensors") if path.stat().st_nlink == 1]
    (bar,) = bars
    assert bar.options["unit"] == "B" and 0 < len(written) <= len(list(folder.glob("*.safetensors")))
    assert bar.done == bar.options["total"] == sum(path.stat().st_size for path in written)


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
