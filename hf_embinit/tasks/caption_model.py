"""A small causal language model of the embedded captions, trained at first use and cached.

It has GPT-2's architecture with tied embeddings, and a byte-level BPE small enough that many words are split:
enough to study vocabulary expansion without a network.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from .corpus_vectors import cache_folder, settings_digest
from .data import texts_digest
from .embedded import corpus_text
from .language_modeling import pack_blocks

logger = logging.getLogger(__name__)

SETTINGS = {
    "vocab_size": 600,
    "d_model": 128,
    "layers": 2,
    "heads": 4,
    "block_size": 64,
    "batch_size": 32,
    "steps": 300,
    "learning_rate": 3e-3,
    "weight_decay": 0.1,
    "seed": 1,
}
"""Steps are optimizer steps, batch sizes blocks, block sizes tokens."""


def caption_language_model() -> Path:
    """The folder of a causal LM and its tokenizer, trained on the text `captions-en` unless it is there.

    The folder, in `cache_folder`, has a name with a digest of the text and the settings. The global random
    state is not touched. Training is announced in one line and shows its steps, on standard error.
    """
    texts = corpus_text("captions-en")
    folder = cache_folder() / f"captions-lm-{settings_digest(texts_digest(texts), SETTINGS)}"
    if not (folder / "config.json").is_file():
        logger.warning(
            "the model `captions` is not there yet: training a small GPT-2 (%d layers of width %d) on %s "
            "English sentences, once; it is kept in %s",
            SETTINGS["layers"], SETTINGS["d_model"], f"{len(texts):,}", folder,
        )  # fmt: skip
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".captions-lm-", dir=folder.parent))
        try:
            _train(texts, made)
            made.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # another process was not faster
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder


def _train(texts: list[str], folder: Path) -> None:
    s = SETTINGS
    tokenizer = _tokenizer(texts, int(s["vocab_size"]))
    blocks = torch.tensor(pack_blocks(texts, tokenizer, int(s["block_size"])).blocks["input_ids"][:])
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=int(s["d_model"]),
        n_layer=int(s["layers"]),
        n_head=int(s["heads"]),
        n_positions=256,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):  # building a model draws from the global state
        torch.manual_seed(int(s["seed"]))
        model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # else transformers warns that it takes this one
    generator = torch.Generator().manual_seed(int(s["seed"]))
    steps = int(s["steps"])
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=s["learning_rate"], weight_decay=s["weight_decay"], betas=(0.9, 0.98)
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, s["learning_rate"], total_steps=steps)
    model.train()
    for _ in tqdm(range(steps), desc="training the captions language model", unit="step"):
        batch = blocks[torch.randint(len(blocks), (int(s["batch_size"]),), generator=generator)]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end, bos_token=end, unk_token=end)
