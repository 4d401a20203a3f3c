"""Commands of `hf-embinit` called in this process, and small files to call them on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

from builders import ROOT
from builders.tiny_tokenizers import tokenizer
from hf_embinit import __main__ as cli
from hf_embinit.vectors import PretrainedVectors, write_vectors

OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


def embinit(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    capsys.readouterr()
    code = cli.main([str(word) for word in words])
    return code, *capsys.readouterr()


def save_bert(folder: Path) -> Path:
    """A small BERT with its language-modeling head, and its tokenizer."""
    words = tokenizer("wordpiece")
    with torch.random.fork_rng():
        torch.manual_seed(5)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        bert = BertForMaskedLM(BertConfig(vocab_size=len(words), max_position_embeddings=64, **sizes))
    bert.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def load(folder: Path) -> tuple[BertForMaskedLM, Any]:
    """What `save_bert` or a command saved."""
    return AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def save_bert_vectors(path: Path) -> Path:
    """Vectors of the width of that BERT, for the words of its tokenizer."""
    words = [token for token in tokenizer("wordpiece").get_vocab() if token.isalpha()]
    rows = torch.randn(len(words), 16, generator=torch.Generator().manual_seed(0))
    write_vectors(path, PretrainedVectors(words, rows, "v"))
    return path
