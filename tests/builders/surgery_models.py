"""Tiny models of many architectures with every parameter random, for the tests of surgery."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
)

VOCAB = 40
BERT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "num_hidden_layers": 4,
}
BART: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 4,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
}
T5: dict[str, Any] = {"vocab_size": VOCAB, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}
VANILLA: dict[str, Any] = {"vocab_size": VOCAB, "d_model": 16, "d_ff": 24, "num_heads": 2, "num_layers": 4}
TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

ENCODERS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert": ("BertForMaskedLM", "BertConfig", BERT, "bert.encoder.layer"),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", BERT, "roberta.encoder.layer"),
    "electra": (
        "ElectraForMaskedLM",
        "ElectraConfig",
        {**BERT, "embedding_size": 8},
        "electra.encoder.layer",
    ),
    "deberta": (
        "DebertaForMaskedLM",
        "DebertaConfig",
        {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        "deberta.encoder.layer",
    ),
    "deberta-v2": ("DebertaV2ForMaskedLM", "DebertaV2Config", BERT, "deberta.encoder.layer"),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": VOCAB, "dim": 16, "n_heads": 2, "hidden_dim": 24, "n_layers": 4},
        "distilbert.transformer.layer",
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**BERT, **TOKENS, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2},
        "model.layers",
    ),
}
DECODERS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCAB, "n_embd": 16, "n_head": 2, "n_layer": 4, "n_positions": 32, **TOKENS},
        "transformer.h",
    ),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**BERT, **TOKENS, "num_key_value_heads": 1},
        "model.layers",
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**BERT, **TOKENS, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4},
        "model.layers",
    ),
}
SEQ2SEQ: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {**BART, **TOKENS, "decoder_start_token_id": 1, "forced_eos_token_id": None},
        "model.decoder.layers",
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {**T5, "num_layers": 3, "num_decoder_layers": 4, "decoder_start_token_id": 0},
        "decoder.block",
    ),
    "t5-gated": (  # as deep on both sides: transformers sizes the cache by the encoder's depth
        "T5ForConditionalGeneration",
        "T5Config",
        {**T5, "num_layers": 4, "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0},
        "decoder.block",
    ),
}
VANILLAS: dict[str, tuple[type[PreTrainedModel], str]] = {
    "vanilla-encoder": (VanillaTransformerForSequenceClassification, "model.encoder.layers"),
    "vanilla-decoder": (VanillaTransformerForCausalLM, "model.decoder.layers"),
    "vanilla-seq2seq": (VanillaTransformerForConditionalGeneration, "model.decoder.layers"),
}
HUB = {**ENCODERS, **DECODERS, **SEQ2SEQ}
ALL = [*HUB, *VANILLAS]
GENERATING = [*DECODERS, "bart", "t5-gated", "vanilla-decoder", "vanilla-seq2seq"]


def build(name: str, seed: int = 0) -> PreTrainedModel:
    """A tiny model with every parameter random, so that no two layers or norms are alike."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if name in VANILLAS:
            config = VanillaTransformerConfig(**VANILLA, **TOKENS, decoder_start_token_id=1)
            model = VANILLAS[name][0](config)
        else:
            cls, config_cls, kwargs, _ = HUB[name]
            config = getattr(transformers, config_cls)(**kwargs)
            model = getattr(transformers, cls)(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def stack_of(model: nn.Module, name: str) -> nn.ModuleList:
    path = VANILLAS[name][1] if name in VANILLAS else HUB[name][3]
    stack = model.get_submodule(path)
    assert isinstance(stack, nn.ModuleList)
    return stack


def values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in module.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    ids = torch.arange(3, 15)[None]
    if model.config.is_encoder_decoder:
        return model(input_ids=ids, decoder_input_ids=ids[:, :5]).logits
    return model(input_ids=ids).logits
