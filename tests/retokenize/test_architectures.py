"""Another tokenizer for every architecture that transformers ships; a representative set without `-m sweep`.

A model of 211 random rows gets the rows of another tokenizer: every table and bias must be the coefficients
times its own old values, ties stay, ids run, and it is the same once saved and loaded.
"""

from __future__ import annotations

import gc
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import architectures
from builders.tables import assert_consistent
from builders.tiny_models import spread
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import hf_embinit
from hf_embinit.errors import UnsupportedModelError
from hf_embinit.tables import EmbeddingTables

SOME = (
    *(
        "BertForMaskedLM",
        "AlbertForMaskedLM",
        "DebertaV2ForMaskedLM",
        "ElectraForMaskedLM",
        "FNetForMaskedLM",
    ),
    *("GPT2LMHeadModel", "GPTNeoXForCausalLM", "OPTForCausalLM", "BloomForCausalLM", "FalconForCausalLM"),
    *("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM"),
    *("PhiForCausalLM", "MambaForCausalLM", "MixtralForCausalLM", "GPTJForCausalLM", "ModernBertForMaskedLM"),
    *("T5ForConditionalGeneration", "BartForConditionalGeneration", "MBartForConditionalGeneration"),
    *("DistilBertForMaskedLM", "MPNetForMaskedLM", "CTRLLMHeadModel", "XLNetLMHeadModel"),
)
"""Tied and untied heads, output biases, encoders, decoders and both, factorised and transposed tables."""


@cache
def words(first: int, count: int) -> PreTrainedTokenizerFast:
    """Words `w{first}`, ... behind padding, an unknown and an end token: `count` tokens in all."""
    names = ["<pad>", "<unk>", "</s>", *(f"w{first + i}" for i in range(count - 3))]
    backend = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    )


def check(name: str, folder: Path) -> str:
    """What happened: `replaced`, or why it was refused."""
    model = architectures.build(name)
    try:
        tables = EmbeddingTables(model)
    except UnsupportedModelError as error:
        return f"no tables: {error}"
    if len({t.side for t in tables.tables}) > 1:
        return "two vocabularies"
    old, new = words(0, tables.vocab_size()), words(50, 130)
    spread(model)
    before = {t.name: tables.read(t).double().clone() for t in tables.own_tables}
    biases = [[b.double().clone() for b in tables.biases(t)] for t in tables.output_tables]
    ties = [t.tied_to for t in tables.output_tables]
    was = {key: value.clone() for key, value in model.state_dict().items()}
    try:
        report = hf_embinit.replace_tokenizer(model, old, new, "random")
    except UnsupportedModelError as error:
        after = model.state_dict()
        assert all(torch.equal(was[key], after[key]) for key in was)
        return f"refused: {error}"
    tables = EmbeddingTables(model)
    assert_consistent(tables)
    assert tables.vocab_size() == 130 and [t.tied_to for t in tables.output_tables] == ties
    shared = torch.arange(3, 130)
    assert report.steps == {"copied": 3, "overlap": 127}
    for t in tables.own_tables:
        rows = before[t.name]
        index = (shared + 50).where(shared + 50 < len(rows), 0)  # a part table's other ids read its row 0
        assert torch.allclose(tables.read(t)[3:130].double(), rows[index], atol=1e-6), t.name
    for t, olds in zip(tables.output_tables, biases, strict=True):
        for bias, values in zip(tables.biases(t), olds, strict=True):
            assert torch.allclose(bias[3:130].double(), values[53:180], atol=1e-6), t.name
    ids = torch.arange(3, 15)[None]
    logits = architectures.logits_of(model.eval(), ids)
    assert logits.shape[-1] >= 130 and torch.isfinite(logits).all()
    model.save_pretrained(folder)
    again: Any = type(model).from_pretrained(folder).eval()
    for a, b in zip(tables.tables, EmbeddingTables(again).tables, strict=True):
        assert torch.equal(a.parameter, b.parameter)
    return "replaced"


@pytest.mark.parametrize("name", SOME)
def test_a_representative_architecture(name: str, tmp_path: Path) -> None:
    assert check(name, tmp_path) == "replaced"


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_every_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes: dict[str, str] = {}
    for number, (_, _, name) in enumerate(architectures.classes()):
        try:
            architectures.build(name)
        except Exception:  # not built here: the sweep of tests/tables says which
            continue
        try:
            outcomes[name] = check(name, tmp_path / str(number))
        except Exception as error:
            outcomes[name] = f"failed: {type(error).__name__}: {str(error)[:200]}"
        gc.collect()
    with capsys.disabled():
        lines = [f"{name}: {outcome}\n" for name, outcome in outcomes.items() if outcome != "replaced"]
        replaced = len(outcomes) - len(lines)
        sys.stdout.write(f"\n{''.join(lines)}{replaced} of {len(outcomes)} replaced\n")
    assert not [name for name, outcome in outcomes.items() if outcome.startswith("failed")]
