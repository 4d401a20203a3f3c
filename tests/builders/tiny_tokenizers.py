"""Small tokenizers of every family, and small models that go with them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from builders import tiny_models
from hf_embinit.tables import EmbeddingTables
from hf_embinit.tasks.embedded import corpus_text

FAMILIES = ("byte_level", "sentencepiece_bpe", "wordpiece", "unigram", "words")


@cache
def texts() -> tuple[str, ...]:
    return tuple(corpus_text("captions-en")[:600])


def tokenizer(family: str, size: int = 320) -> PreTrainedTokenizerFast:
    """A tokenizer trained on captions; a fresh object at every call."""
    backend = Tokenizer.from_str(_backend(family, size))
    names: dict[str, Any] = {
        "byte_level": {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"},
        "sentencepiece_bpe": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
        "wordpiece": {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"},
        "unigram": {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"},
        "words": {"unk_token": "<unk>"},
    }[family]
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def t5_like() -> PreTrainedTokenizerFast:
    """One that splits at blanks first, as T5's: what follows an added token is a word of its own."""
    made = tokenizer("unigram")
    parts: list[Any] = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return made


@cache
def _backend(family: str, size: int) -> str:
    options: dict[str, Any] = {"vocab_size": size, "show_progress": False}
    if family == "byte_level":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(
            special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options
        )
    elif family == "sentencepiece_bpe":
        backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        hexes = [f"<0x{b:02X}>" for b in range(256)]
        options["vocab_size"] = size + 256
        # without merges across words, as SentencePiece trains
        backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        trainer = trainers.BpeTrainer(special_tokens=["<unk>", "<s>", "</s>", *hexes], **options)
    elif family == "wordpiece":
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(
            special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], **options
        )
    elif family == "unigram":
        backend = Tokenizer(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", **options
        )
    else:
        backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordLevelTrainer(special_tokens=["<unk>"], **options)
    backend.train_from_iterator(texts(), trainer)
    if family == "wordpiece":
        ids = [(t, backend.token_to_id(t)) for t in ("[SEP]", "[CLS]")]
        backend.post_processor = processors.BertProcessing(*ids)
    if family == "unigram":
        backend.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", backend.token_to_id("</s>"))]
        )
    return backend.to_str()


def model(kind: str, vocab_size: int, **config: Any) -> Any:
    """A `gpt2` (tied), `llama` (untied), `bert` (tied, output bias) or `bart` (`final_logits_bias`)."""
    common = {"vocab_size": vocab_size, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, **config}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind in ("gpt2", "llama"):
            common["pad_token_id"] = None
        sizes: dict[str, Any] = {
            "gpt2": {"n_layer": 2, "n_positions": 64},
            "llama": {"num_hidden_layers": 2, "intermediate_size": 16},
            "bert": {"num_hidden_layers": 2, "intermediate_size": 16, "max_position_embeddings": 64},
            "bart": {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64},
        }[kind]
        made: Any = getattr(tiny_models, kind)(**{**sizes, **common})
        tables = EmbeddingTables(made)
        for table in tables.own_tables:
            tables.write(table, torch.randn(table.num_embeddings, table.embedding_dim) + 0.3)
        for table in tables.output_tables:
            tables.write_bias(table, [torch.randn(len(b)) - 5 for b in tables.biases(table)])
    return made.eval()


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        return model(input_ids=ids, **more).logits
