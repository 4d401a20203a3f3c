"""Adapters of encoder-decoders, whose embeddings are several modules around one table."""

from __future__ import annotations

import pytest
import torch
from builders.adapters import quietly, round_trip, stirred
from builders.tiny_models import bart, t5, t5_with_separate_head, word_tokenizer
from peft import LoraConfig, get_peft_model

import hf_embinit
from hf_embinit import expand_vocabulary
from hf_embinit.errors import UnsupportedModelError
from hf_embinit.vocabulary import carry_vocabulary

NEW = ["zyxomma", "qorvex"]


@pytest.mark.parametrize("trained", ["layers", "rows apart", "head", "lora on the head"])
def test_a_separate_t5_head(trained, tmp_path) -> None:
    m = t5_with_separate_head()
    m.save_pretrained(tmp_path / "base")
    m = type(m).from_pretrained(tmp_path / "base").eval()
    assert m.lm_head.weight is not m.shared.weight
    t = word_tokenizer()
    new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids
    for said in (True, False):  # what PEFT goes by; it would train the module `shared`, which nothing calls
        m.config.tie_word_embeddings = said
        with pytest.raises(UnsupportedModelError, match=r"set it to False first|use train_new_rows_only"):
            hf_embinit.peft_config_for_new_tokens(m, new)
    config = {
        "layers": lambda: LoraConfig(target_modules=["q"]),
        "rows apart": lambda: LoraConfig(target_modules=["q"], trainable_token_indices={"lm_head": new}),
        "head": lambda: LoraConfig(target_modules=["q"], modules_to_save=["lm_head"]),
        "lora on the head": lambda: LoraConfig(target_modules=["q", "lm_head"]),
    }[trained]()
    wrapped = quietly(get_peft_model, m, config)
    carry_vocabulary(wrapped)
    round_trip(stirred(wrapped), type(m), tmp_path, torch.tensor([[1, 2, *new]]))


@pytest.mark.parametrize(("build", "layers"), [(t5, ["q"]), (bart, ["q_proj"])], ids=["t5", "bart"])
@pytest.mark.parametrize("lora", [False, True], ids=["rows", "rows and layers"])
def test_one_table_for_encoder_decoder_and_head(build, layers, lora, tmp_path) -> None:
    m, t = build(), word_tokenizer()
    m.save_pretrained(tmp_path / "base")
    m = type(m).from_pretrained(tmp_path / "base").eval()
    new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids
    config = hf_embinit.peft_config_for_new_tokens(m, new, **({"target_modules": layers} if lora else {}))
    wrapped = quietly(get_peft_model, m, config)
    round_trip(stirred(wrapped), type(m), tmp_path, torch.tensor([[1, 2, *new]]), exact=not lora)
