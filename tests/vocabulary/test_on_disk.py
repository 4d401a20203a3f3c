"""Expanding, pruning, initialising and embedding surgery of an opened checkpoint: as of a loaded one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from builders.tiny_models import spread
from builders.tiny_tokenizers import model, tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_embinit
from hf_embinit.errors import UnsupportedModelError, VocabularyWarning
from hf_embinit.tables import EmbeddingTables, RowsOf, StoredRows, forward_passes

Change = Callable[[Any, Any], Any]
TOKENS = [" zyxomma", " qorvex", " the zyx"]


@pytest.fixture(params=["gpt2", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tied and an untied model with its tokenizer."""
    words = tokenizer("byte_level")
    made = model(request.param, len(words) + 5)
    spread(made)
    made.generation_config.max_new_tokens = 7
    made.save_pretrained(tmp_path / "model")
    words.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def expand(init: str, **options: Any) -> Change:
    return lambda m, t: hf_embinit.expand_vocabulary(m, t, TOKENS, init, prefixes=(), **options)


def keep_most(m: Any, t: Any) -> Any:
    return hf_embinit.prune_vocabulary(m, t, keep=[i for i in range(len(t)) if i % 5])


def replace(init: str, **options: Any) -> Change:
    return lambda m, t: hf_embinit.replace_tokenizer(m, t, tokenizer("unigram", 400), init, **options)


def repair_broken(m: Any, t: Any) -> None:
    """Rows that are broken already, and others by name."""
    tables = EmbeddingTables(m)
    table = tables.input_tables[0]
    tables.change(None, [RowsOf(table, (5, 9), torch.zeros(2, table.embedding_dim))])
    assert hf_embinit.repair(m, t, seed=3) == [5, 9]
    hf_embinit.repair(m, t, [11, 12, 40], "mean_cov")


def expand_and_prune(m: Any, t: Any) -> None:
    expand("subword_mean")(m, t)
    keep_most(m, t)
    hf_embinit.expand_vocabulary(m, t, [" again"], "mean_cov", prefixes=())


@pytest.mark.parametrize(
    "change",
    [
        expand("mean"),
        expand("mean_cov", pad_to_multiple_of=64),
        expand("subword_mean", overrides={TOKENS[0]: ("copy", {"of": 7}), TOKENS[1]: "zeros"}),
        keep_most,
        lambda m, t: hf_embinit.initialize(m, "xavier", seed=3),
        lambda m, t: hf_embinit.surgery.apply(m, "shuffled_embeddings", tokenizer=t, seed=1),
        lambda m, t: hf_embinit.surgery.apply(m, "normal+shuffled_embeddings", tokenizer=t, seed=2),
        expand_and_prune,
        repair_broken,
        replace("fvt", row_norm=True, output_pooling="first"),
        replace("random", pad_to_multiple_of=64),
    ],
    ids=[
        "mean",
        "mean_cov",
        "overrides",
        "prune",
        "initialize",
        "shuffle",
        "two surgeries",
        "in turn",
        "repair",
        "fvt",
        "random",
    ],
)
def test_it_is_what_a_loaded_model_gets(change: Change, folder: Path, tmp_path: Path) -> None:
    for name, read in (
        ("memory", AutoModelForCausalLM.from_pretrained),
        ("disk", hf_embinit.open_checkpoint),
    ):
        m, t = read(folder), AutoTokenizer.from_pretrained(folder)
        change(m, t)
        hf_embinit.save_checkpoint(m, tmp_path / name, t)
    names = sorted(path.name for path in (tmp_path / "memory").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "disk").iterdir())
    for name in names:
        assert (tmp_path / "memory" / name).read_bytes() == (tmp_path / "disk" / name).read_bytes(), name


def test_a_report_has_the_bound_and_no_shift(folder: Path) -> None:
    m, t = hf_embinit.open_checkpoint(folder), AutoTokenizer.from_pretrained(folder)
    report = hf_embinit.expand_vocabulary(m, t, TOKENS)
    assert report.shift is None and report.bound is not None and "KL" in str(report)


def shift(m: Any, folder: Path, prefixes: Any, slots: Any = None) -> dict[str, Any]:
    t = AutoTokenizer.from_pretrained(folder)
    report = hf_embinit.expand_vocabulary(m, t, TOKENS, "mean_cov", seed=1, prefixes=prefixes, slots=slots)
    assert report.shift is not None and report.shift.kl_max > 0
    return vars(report.shift)


@pytest.mark.parametrize("prefixes", ["generated", ["the cat", "a dog sees"]], ids=["generated", "given"])
@pytest.mark.parametrize("slots", [None, [300, 305, 310]], ids=["grown", "slots"])
def test_the_shift_is_that_of_a_loaded_model(slots: Any, prefixes: Any, folder: Path) -> None:
    loaded = shift(AutoModelForCausalLM.from_pretrained(folder), folder, prefixes, slots)
    assert shift(hf_embinit.open_checkpoint(folder), folder, prefixes, slots) == pytest.approx(loaded)


@pytest.mark.needs("transformers>=5.16")
def test_runs_read_tables_by_blocks_and_show_a_bar(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[Any] = []
    whole = StoredRows.whole

    def small(rows: StoredRows) -> torch.Tensor:
        assert rows.shape[0] * rows.shape[1] * rows.dtype.itemsize <= 1000, "more than a block"
        return whole(rows)

    class Bar(contextlib.nullcontext[Any]):
        def __init__(self, **options: Any) -> None:
            super().__init__(self)
            self.total, self.done, self.runs = options["total"], 0, []
            bars.append(self)

        def update(self, count: int) -> None:
            self.done += count

        def reset(self) -> None:
            self.done = 0

        def set_description(self, text: str) -> None:
            self.runs.append(text)

    ids = torch.arange(9)[None]
    expected = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    opened = hf_embinit.open_checkpoint(folder)
    monkeypatch.setattr(transformers.utils.logging, "tqdm", Bar)
    monkeypatch.setattr(StoredRows.blocks, "__defaults__", (700,))
    monkeypatch.setattr(StoredRows, "whole", small)
    with forward_passes(opened) as runs:
        for _ in range(2):
            torch.testing.assert_close(runs(ids).logits, expected)
    bar = next(bar for bar in bars if bar.runs)
    assert bar.runs == ["Run 1", "Run 2"] and bar.done == bar.total > 0


@pytest.mark.needs(
    "transformers>=5.16"
)  # before, it gives accelerate no model that is on the disk as a whole
def test_the_shift_of_an_offloaded_model(folder: Path, tmp_path: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    offloaded = AutoModelForCausalLM.from_pretrained(
        folder, device_map={"": "disk"}, offload_folder=tmp_path / "offloaded"
    )
    assert shift(offloaded, folder, "generated") == pytest.approx(shift(loaded, folder, "generated"))


@pytest.mark.needs("transformers>=5.16")
def test_weights_are_read_when_they_are_used(folder: Path) -> None:
    with forward_passes(hf_embinit.open_checkpoint(folder)) as runs:
        assert all(parameter.is_meta or isinstance(parameter, StoredRows) for parameter in runs.parameters())
        assert runs(torch.arange(9)[None]).logits.isfinite().all()
        assert all(parameter.is_meta or isinstance(parameter, StoredRows) for parameter in runs.parameters())


@pytest.mark.needs("transformers>=5.16")
def test_a_model_that_does_not_run_layer_by_layer_is_said(tmp_path: Path) -> None:
    words = tokenizer("byte_level")
    layers = dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 1)
    heads = dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 2)
    config = transformers.ProphetNetConfig(vocab_size=len(words), hidden_size=32, **layers, **heads)
    transformers.ProphetNetForConditionalGeneration(config).save_pretrained(tmp_path)
    opened = hf_embinit.open_checkpoint(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"run layer by layer .*: load it with from_pretrained"):
        hf_embinit.expand_vocabulary(opened, words, TOKENS, prefixes=["the cat sees"])


@pytest.mark.parametrize("name", ["reversed", "shuffled_embeddings+reversed", "clean_embeddings"])
def test_surgery_on_more_than_tables_is_refused(name: str, folder: Path) -> None:
    m, t = hf_embinit.open_checkpoint(folder), AutoTokenizer.from_pretrained(folder)
    before = m.get_input_embeddings().weight.detach()
    with pytest.raises(UnsupportedModelError, match="needs more than the tables"):
        hf_embinit.surgery.apply(m, name, tokenizer=t)
    assert torch.equal(m.get_input_embeddings().weight.detach().float(), before.float())
    assert not hasattr(m.config, "embinit")


def test_without_a_tokenizer_its_files_are_copied(folder: Path, tmp_path: Path) -> None:
    m = hf_embinit.open_checkpoint(folder)
    hf_embinit.initialize(m, "xavier")
    hf_embinit.save_checkpoint(m, tmp_path / "o")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "o" / name).read_bytes() == (folder / name).read_bytes()


def test_a_tokenizer_that_is_not_the_one_that_was_expanded_is_said(folder: Path, tmp_path: Path) -> None:
    m, t = hf_embinit.open_checkpoint(folder), AutoTokenizer.from_pretrained(folder)
    hf_embinit.expand_vocabulary(m, t, TOKENS)
    hf_embinit.save_checkpoint(m, tmp_path / "o", t)
    m, t = hf_embinit.open_checkpoint(tmp_path / "o"), AutoTokenizer.from_pretrained(folder)
    t.add_tokens([" other"])
    with pytest.warns(VocabularyWarning, match="has changed since .* id 32[0-9] should be .*, and 3 of 3"):
        hf_embinit.expand_vocabulary(m, t, [" more"])
