"""Finished run folders as the recipes leave them, without the training: tiny models of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import hf_embinit
from builders.records import make_record
from builders.tiny_tokenizers import tokenizer
from hf_embinit import models
from hf_embinit.records.record import RunRecord, write_json, write_record

KINDS = ("translation", "classification", "language_modeling", "bert", "gpt2")
AUTO = {
    "translation": "AutoModelForSeq2SeqLM",
    "classification": "AutoModelForSequenceClassification",
    "language_modeling": "AutoModelForCausalLM",
    "bert": "AutoModelForSequenceClassification",
    "gpt2": "AutoModelForCausalLM",
}
GERMAN = ["ein kleiner Hund schläft", "die Katze sieht den Hund", "der Mann kauft eine Zeitung"]
ENGLISH = ["a small dog is sleeping", "the cat sees the dog", "the man buys a newspaper"]
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c636000000002000148afa471"
    "0000000049454e44ae426082"
)


def model_and_tokenizer(kind: str, seed: int = 0) -> tuple[Any, Any]:
    """An initialised model of one kind, with its tokenizer; the manifest is in its config."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        words = tokenizer("wordpiece")
        if kind == "bert":
            sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
            model: Any = BertForSequenceClassification(
                BertConfig(vocab_size=len(words), intermediate_size=16, **sizes)
            )
            hf_embinit.surgery.apply(model, "shuffled_embeddings", tokenizer=words, seed=seed)
            return model, words
        if kind == "gpt2":
            words = tokenizer("byte_level")
            model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), n_embd=16, n_layer=1, n_head=2))
            hf_embinit.initialize(model, "xavier", tokenizer=words, seed=seed)
            return model, words
        two_sided = kind == "translation"
        reader = models.VanillaTransformerTokenizer.build(
            GERMAN if two_sided else ENGLISH,
            ENGLISH if two_sided else None,
            tokenizer=words,
            min_frequency=1,
        )
        config = models.VanillaTransformerConfig(
            vocab_size=len(reader.encoder),
            decoder_vocab_size=len(reader.target_encoder) if two_sided else None,
            is_encoder_decoder=two_sided,
            is_decoder=kind == "language_modeling",
            d_model=16,
            d_ff=16,
            num_layers=1,
            num_heads=2,
            pad_token_id=reader.pad_token_id,
            bos_token_id=reader.bos_token_id,
            eos_token_id=reader.eos_token_id,
            decoder_start_token_id=reader.bos_token_id,
        )
        build = {
            "translation": models.VanillaTransformerForConditionalGeneration,
            "classification": models.VanillaTransformerForSequenceClassification,
            "language_modeling": models.VanillaTransformerForCausalLM,
        }[kind]
        model = build(config)
        hf_embinit.initialize(model, "xavier", tokenizer=reader, seed=seed)
        return model, reader


def run_folder(
    folder: Path, kind: str = "translation", seed: int = 0, models: Sequence[str] = ("",), **changes: Any
) -> RunRecord:
    """A finished run of one kind, with everything that must not be published beside what must; of several
    models, each in a sub-folder."""
    for number, name in enumerate(models):
        model, reader = model_and_tokenizer(kind, seed + number)
        for place in (folder / "init" / name, folder / name, folder / "checkpoint-7"):
            if place == folder / name:  # the training
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.add_(0.5)
            model.save_pretrained(place)
            reader.save_pretrained(place)
    task = {"bert": "classification", "gpt2": "language_modeling"}.get(kind, kind)
    metrics = {
        "translation": {"test_bleu": 35.1234, "test_loss": 1.6},
        "classification": {"test_accuracy": 0.81, "test_loss": 0.5},
        "language_modeling": {"validation_perplexity": 48.25, "validation_loss": 3.9},
    }[task]
    arguments = {
        "learning_rate": 2e-4,
        "output_dir": str(folder),
        "vectors": str(folder.parent / "vectors" / "de.300d.txt"),
        **({"source_lang": "de", "target_lang": "en"} if task == "translation" else {"language": "en"}),
    }
    settings: dict[str, Any] = {"dataset": "captions", "signature": {}, **changes}
    record = make_record(task=task, seed=seed, metrics=metrics, arguments=arguments, **settings)
    (folder / "figures").mkdir()
    (folder / "figures" / "learning_curve.png").write_bytes(PIXEL)
    (folder / "figures" / "notes.txt").write_text("not a figure")
    torch.save({"state": 1}, folder / "checkpoint-7" / "optimizer.pt")
    torch.save({"arguments": 1}, folder / "training_args.bin")
    (folder / "mine.py").write_text("print('not the code of the model')")
    write_json(folder / "arguments.json", arguments)
    (folder / "test_predictions.jsonl").write_text(
        '{"source": "ein Hund", "prediction": "a dog", "row": 0}\n'
    )
    write_record(folder, record)
    return record
