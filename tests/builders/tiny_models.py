"""Tiny models of well-known architectures, and tokenizers of their size."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MobileBertConfig,
    MobileBertForMaskedLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from hf_embinit.tables import EmbeddingTables

V = 61
SMALL = {
    "vocab_size": V,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
SEQ2SEQ = {
    "vocab_size": V,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "pad_token_id": 3,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


def bert(**kwargs) -> BertForMaskedLM:
    return BertForMaskedLM(BertConfig(**{**SMALL, **kwargs})).eval()


def gpt2(**kwargs) -> GPT2LMHeadModel:
    sizes = {"vocab_size": V, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **kwargs})).eval()


def llama(**kwargs) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**{**SMALL, **kwargs})).eval()


def t5(**kwargs) -> T5ForConditionalGeneration:
    sizes = {"vocab_size": V, "d_model": 16, "d_kv": 8, "num_heads": 2, "num_layers": 1, "d_ff": 24}
    return T5ForConditionalGeneration(T5Config(**{**sizes, **kwargs})).eval()


def bart(**kwargs) -> BartForConditionalGeneration:
    return BartForConditionalGeneration(BartConfig(**{**SEQ2SEQ, **kwargs})).eval()


def marian(**kwargs) -> MarianMTModel:
    return MarianMTModel(MarianConfig(**{**SEQ2SEQ, **kwargs})).eval()


def marian_with_two_vocabularies() -> MarianMTModel:
    return marian(decoder_vocab_size=37, share_encoder_decoder_embeddings=False)


def encoder_decoder() -> EncoderDecoderModel:
    """BERT twice, with vocabularies of two sizes."""
    decoder = BertConfig(**{**SMALL, "vocab_size": 37}, is_decoder=True, add_cross_attention=True)
    return EncoderDecoderModel(
        EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**SMALL), decoder)
    )


def t5_with_separate_head() -> T5ForConditionalGeneration:
    """What T5 v1.1 checkpoints load as: the config says tied, the tensors are two."""
    model = t5()
    model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    assert model.config.tie_word_embeddings
    return model


def mobilebert() -> MobileBertForMaskedLM:
    sizes = {"embedding_size": 8, "intra_bottleneck_size": 8, "true_hidden_size": 8}
    return MobileBertForMaskedLM(MobileBertConfig(**{**SMALL, **sizes})).eval()


def word_tokenizer(size: int = V, **names: str) -> PreTrainedTokenizerFast:
    """Words `w0`, `w1`, ... with the id in their name; `names` renames ids: `i3="[unused1]"`."""
    words = {names.get(f"i{i}", f"w{i}"): i for i in range(size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=next(iter(words))))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=next(iter(words)))


def saved(model, folder, **options):
    """Its folder; the model's tables are `spread` before."""
    spread(model)
    model.save_pretrained(folder, **options)
    return folder


def spread(model) -> None:
    """Embeddings with a mean, biases around -5, as trained models have."""
    tables = EmbeddingTables(model)
    generator = torch.Generator().manual_seed(1)
    for table in tables.own_tables:
        shape = tables.read(table).shape
        tables.write(table, torch.randn(shape, generator=generator) + 0.5)
    for table in tables.output_tables:
        biases = [torch.randn(b.shape, generator=generator) - 5 for b in tables.biases(table)]
        tables.write_bias(table, biases)
