"""Another tokenizer for every architecture that transformers ships; a representative set without `-m sweep`.

A model of 211 random rows gets the rows of another tokenizer: every table and bias must be the old values of
the same words, ties stay, ids run, and it is the same once saved and loaded. Where a configuration names a
token that the new tokenizer lacks, the error says which, nothing has changed, and adding it is the way out.
"""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import architectures
from builders.tables import assert_consistent
from builders.tiny_models import spread
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import hf_embinit
from hf_embinit.errors import InvalidArgumentError, UnsupportedModelError
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
    architectures.since("5.6", "PhiForCausalLM"),
    *("MambaForCausalLM", "MixtralForCausalLM", "GPTJForCausalLM", "ModernBertForMaskedLM"),
    *("T5ForConditionalGeneration", "BartForConditionalGeneration", "MBartForConditionalGeneration"),
    *("DistilBertForMaskedLM", "MPNetForMaskedLM", "CTRLLMHeadModel", "XLNetLMHeadModel"),
    *("DeepseekV4ForCausalLM", "Gemma3ForConditionalGeneration", "CwmForCausalLM", "LongformerForMaskedLM"),
)
"""Tied and untied heads, output biases, encoders, decoders and both, factorised and transposed tables,
experts by token, tokens that a configuration names, positions counted from the padding."""


NAMED = {"pad": "<pad>", "unk": "<unk>", "eos": "</s>", "bos": "<s>", "mask": "<mask>"}


def tokenizer(words: list[str], pad: int) -> PreTrainedTokenizerFast:
    """Special tokens, padding at id `pad` below 5, then `words`."""
    names = [name for name in NAMED.values() if name != "<pad>"]
    names = [*names[:pad], "<pad>", *names[pad:], *words]
    backend = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    roles = {f"{role}_token": name for role, name in NAMED.items()}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


def replace(model: PreTrainedModel, old: Any, new: Any) -> Any:
    """The report. Tokens that errors ask for become special ones of both; nothing may change before."""
    was = {key: value.clone() for key, value in model.state_dict().items()}
    config = model.config.to_json_string()
    while True:
        try:
            return hf_embinit.replace_tokenizer(model, old, new, "random")
        except (InvalidArgumentError, UnsupportedModelError) as error:
            after = model.state_dict()
            assert all(torch.equal(was[key], after[key]) for key in was)
            assert model.config.to_json_string() == config
            missing = re.search(r"\('(w\d+)'\), which the new tokenizer has no token for: add it", str(error))
            if missing is None or missing[1] in new.get_vocab():
                raise
            for one in (old, new):
                one.add_special_tokens(
                    {"additional_special_tokens": [missing[1]]}, replace_extra_special_tokens=False
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
    size = tables.vocab_size()
    configured = getattr(model.config.get_text_config(), "pad_token_id", None)
    pad = configured if configured in range(5) else 0
    old = tokenizer([f"w{i}" for i in range(size - 5)], pad)
    new = tokenizer([f"w{i}" for i in range(50, 175)], pad)
    spread(model)
    for tied in tables.companions:
        tied.tensor.copy_(torch.arange(tied.tensor.numel()).view_as(tied.tensor) % 4)
    before = {t.name: tables.read(t).double().clone() for t in tables.own_tables}
    biases = [[b.double().clone() for b in tables.biases(t)] for t in tables.output_tables]
    by_token = [tied.tensor.clone() for tied in tables.companions]
    ties = [t.tied_to for t in tables.output_tables]
    try:
        report = replace(model, old, new)
    except UnsupportedModelError as error:
        return f"refused: {error}"
    tables = EmbeddingTables(model)
    assert_consistent(tables)
    rows = len(new)
    assert tables.vocab_size() == rows and [t.tied_to for t in tables.output_tables] == ties
    assert report.steps == {"copied": 5 + rows - 130, "overlap": 125}
    ids = old.get_vocab()
    origins = torch.tensor([ids[token] for token in new.convert_ids_to_tokens(range(rows))])
    for t in tables.own_tables:
        values = before[t.name]
        index = origins.where(origins < len(values), 0)  # a part table's other ids read its row 0
        assert torch.allclose(tables.read(t)[:rows].double(), values[index], atol=1e-6), t.name
    for t, olds in zip(tables.output_tables, biases, strict=True):
        for bias, values in zip(tables.biases(t), olds, strict=True):
            assert torch.allclose(bias[:rows].double(), values[origins], atol=1e-6), t.name
    for tied, values in zip(tables.companions, by_token, strict=True):
        assert torch.equal(tied.tensor, values[origins]), tied.name
    if name not in DRAFTERS:
        logits = architectures.logits_of(model.eval(), torch.arange(5, 17)[None])
        assert logits.shape[-1] >= rows and torch.isfinite(logits).all()
    model.save_pretrained(folder)
    again: Any = type(model).from_pretrained(folder).eval()
    for a, b in zip(tables.tables, EmbeddingTables(again).tables, strict=True):
        assert torch.equal(a.parameter, b.parameter)
    return "replaced"


DRAFTERS = {"Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"}
"""They run on the states of a larger model alone."""


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
