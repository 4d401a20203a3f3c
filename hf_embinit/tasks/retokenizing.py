"""What a trial of another tokenizer needs: the model, a vocabulary, what methods read, short training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from ..hub import load_pretrained, load_pretrained_tokenizer
from ..initializers import read_init
from ..measures import check_table
from ..retokenize import Pair, count_alignments, list_initializers
from ..tables import EmbeddingTables
from ..tokens import copy_tokenizer, split_texts, token_family, unknown_id
from ..vectors import PretrainedVectors, train_glove
from ..vocabulary import propose_tokens
from .data import find_model
from .spec import Score, TaskSpec, register_task
from .tokenizers import find_tokenizer
from .trials import encode_texts

TASK = register_task(
    TaskSpec(
        "retokenization",
        recipe="retokenize.py",
        datasets={},
        metrics={},
        also={
            "step_0_accuracy": Score("accuracy at once", "accuracy", digits=3),
            "step_0_spearmanr": Score("Spearman's correlation at once", "Spearman", digits=3),
            "step_0_bits_per_byte": Score("bits per byte, before training", lower_is_better=True),
            "trained_bits_per_byte": Score("bits per byte, after training", lower_is_better=True),
            "kl_of_old_tokens": Score("KL at the old tokens (nats)", digits=4, lower_is_better=True),
            "seconds": Score("seconds to make the rows", "seconds", digits=1, lower_is_better=True),
            "transfer_mib": Score("MiB to make the rows", "MiB", digits=0, lower_is_better=True),
        },
        columns=(
            "step_0_accuracy",
            "step_0_spearmanr",
            "step_0_bits_per_byte",
            "trained_bits_per_byte",
            "kl_of_old_tokens",
            "seconds",
            "transfer_mib",
        ),
        drawn=(),
        auto_class="AutoModel",
        pipeline_tag="feature-extraction",
    )
)
"""A trained model with another tokenizer: records have no history; the checkpoint is published."""


def load_model(name: str) -> tuple[Any, Any]:
    """A trained model and its tokenizer by a name of `find_model`: a causal LM or a classifier with its head,
    any other without."""
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
    )

    source, what = find_model(name), f"--model {name!r}"
    config = load_pretrained(AutoConfig, source, what)
    kind: Any = AutoModel
    for one in config.architectures or ():
        if "CausalLM" in one or "LMHead" in one:
            kind = AutoModelForCausalLM
        elif "SequenceClassification" in one:
            kind = AutoModelForSequenceClassification
    model = load_pretrained(kind, source, what, dtype="float32")
    check_table(model.get_input_embeddings().weight.detach(), f"the input table of {what}")
    return model.eval(), load_pretrained_tokenizer(source, what)


def read_method(text: str, *, adds_words: bool = False) -> tuple[str, dict[str, Any]]:
    """Name and options of what makes the rows, `auto` among them; of any purpose where words are added."""
    return ("auto", {}) if text == "auto" else read_init(text, purpose=None if adds_words else "tokenizer")


_OF_ENCODERS = ("labelled", "pairs", "test_pairs", "max_pairs", "max_test_pairs")
_OF_CAUSAL = ("expand", "max_steps", "texts", "num_texts", "train", "learning_rate", "untie")


def check_fits(flags: Mapping[str, Any], defaults: Mapping[str, Any], generates: bool) -> None:
    """Raises `InvalidArgumentError` for a flag that is given and says nothing to such a `model`."""
    given = {name for name, value in flags.items() if value != defaults[name]}
    for name in _OF_ENCODERS if generates else _OF_CAUSAL:
        if name in given:
            raise InvalidArgumentError(
                f"--{name} is for {'an encoder' if generates else 'a causal language model'}, which --model "
                f"{flags['model']!r} is not: leave it out"
            )
    for name in ("train", "learning_rate"):
        if name in given and "max_steps" not in given:
            raise InvalidArgumentError(f"--{name} is for training: give --max_steps, too")
    for name, other in (("vocab_size", "tokenizer"), ("vocab_size", "expand"), ("test_pairs", "labelled")):
        if {name, other} <= given:
            raise InvalidArgumentError(f"--{name} and --{other} exclude each other: give one of them")


def new_tokenizer(
    old: Any, texts: Sequence[str], *, name: str | None = None, size: int = 4000, words: int = 0
) -> tuple[Any, list[Any]]:
    """The tokenizer that a model gets: the one called `name`, or one of up to `size` tokens learnt from
    `texts`, or `old` with so many `words` of them, which then come back too."""
    if words:
        proposed = propose_tokens(old, texts, words)
        copied = copy_tokenizer(old)
        copied.add_tokens(proposed)
        return copied, proposed
    if name is None:
        return train_tokenizer(old, texts, size), []
    found = find_tokenizer(name)
    if found.pad_token is None and old.pad_token is not None:  # GPT-2's has none, and batches are padded
        found.pad_token = found.eos_token
    return found, []


def train_tokenizer(tokenizer: Any, texts: Sequence[str], size: int) -> Any:
    """A tokenizer of the same kind with a vocabulary of up to `size` tokens learnt from `texts`."""
    from tokenizers import pre_tokenizers

    if not hasattr(tokenizer, "train_new_from_iterator"):
        raise InvalidArgumentError(f"{type(tokenizer).__name__} has no backend that learns a vocabulary")
    template = copy_tokenizer(tokenizer)
    if template.backend_tokenizer.pre_tokenizer is None:  # a converted SentencePiece: no merges across words
        template.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    return template.train_new_from_iterator(iter(texts), size, show_progress=False)


def nearest_words(
    table: Tensor, tokenizer: Any, words: Sequence[str], old_table: Tensor, old_tokenizer: Any
) -> dict[str, list[str]]:
    """For each of `words` that is one token, the four old tokens with the nearest rows, by cosine."""
    found = {}
    old = torch.nn.functional.normalize(old_table, dim=1)
    for word in words:
        ids = tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(ids) == 1 and ids[0] != unknown_id(tokenizer):
            row = torch.nn.functional.normalize(table[ids[0]], dim=0)
            best = (old @ row).topk(4).indices
            found[word] = [old_tokenizer.decode([i]).strip() for i in best.tolist()]
    return found


def token_glove(tokenizer: Any, texts: Sequence[str], *, seed: int = 0) -> PretrainedVectors:
    """GloVe vectors of the tokens of `texts`, in the tokenizer's spelling: a stand-in for a donor's table."""
    split = [tokenizer.convert_ids_to_tokens(ids) for ids in split_texts(tokenizer, texts)]
    vectors = train_glove(
        split, dim=100, window=15, x_max=10, epochs=15, min_count=5, seed=seed, progress=False, name="tokens"
    )
    vectors.family = token_family(tokenizer)
    return vectors


def word_gloves(pairs: Sequence[Pair], *, seed: int = 0) -> tuple[PretrainedVectors, ...]:
    """GloVe vectors of the lower-cased words of either side of `pairs`."""
    from .corpus_vectors import corpus_tokens

    return tuple(
        train_glove([corpus_tokens(pair[side].lower()) for pair in pairs], dim=100, window=10, x_max=10,
                    epochs=15, min_count=2, seed=seed, progress=False, name=("old words", "new words")[side])
        for side in (0, 1)
    )  # fmt: skip


def word_dictionary(pairs: Sequence[Pair]) -> list[Pair]:
    """For each lower-cased word of the new side the old one that `pairs` align it with most often, of those
    that they align three times or more with both directions agreeing."""
    from .corpus_vectors import corpus_tokens

    ids: tuple[dict[str, int], dict[str, int]] = ({}, {})
    sides = [
        [[known.setdefault(word, len(known)) for word in corpus_tokens(pair[side].lower())] for pair in pairs]
        for side, known in enumerate(ids)
    ]
    counts = count_alignments(
        *sides, num_old=len(ids[0]), num_new=len(ids[1]), symmetrization="intersection", progress=False
    )
    words = [list(known) for known in ids]
    best: dict[int, tuple[float, int]] = {}
    for new, old, count in zip(
        counts.new_ids.tolist(), counts.old_ids.tolist(), counts.counts.tolist(), strict=True
    ):
        if count >= 3 and count > best.get(new, (0.0, 0))[0]:
            best[new] = (count, old)
    return [Pair(words[0][old], words[1][new]) for new, (_, old) in best.items()]


def help_for(
    name: str, tokenizer: Any, pairs: Sequence[Pair], texts: Sequence[str], seed: int
) -> dict[str, Any]:
    """What the method `name` reads, as `replace_tokenizer` takes it: pairs, texts, vectors learnt from them.

    A donor is stood in for by GloVe of the new tokens, vectors of two languages by GloVe of the words of
    `pairs`, joined by the words that these align."""
    needs = {"parallel"} if name == "auto" else next(r.needs for r in list_initializers(name))
    found: dict[str, Any] = {"parallel": pairs} if pairs and "parallel" in needs else {}
    if "texts" in needs:
        found["texts"] = texts
    if "donor" in needs:
        found["donor"] = token_glove(tokenizer, texts, seed=seed)
    if needs == {"vectors"}:
        found["vectors"] = token_glove(tokenizer, texts, seed=seed)
    if pairs and not found and {"vectors", "dictionary"} <= needs:
        found = {"vectors": word_gloves(pairs, seed=seed), "dictionary": word_dictionary(pairs)}
    return found


def trainable_tables(model: Any) -> None:
    """Leaves the tables of token rows alone trainable."""
    model.requires_grad_(False)
    for table in EmbeddingTables(model).own_tables:
        for location in table.tied.locations:
            getattr(location.module, location.attribute).requires_grad_(True)


def train_briefly(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    steps: int,
    learning_rate: float,
    *,
    tables_only: bool,
    batch_size: int = 8,
    length: int = 96,
    seed: int = 0,
) -> None:
    """Trains a language model, or its tables alone, on `steps` batches of texts cut off at `length` tokens:
    AdamW, a constant rate, no weight decay. The model is left in evaluation mode."""
    draw = torch.Generator().manual_seed(seed)
    ids = encode_texts(tokenizer, texts, length)
    if tables_only:
        trainable_tables(model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(ids), (batch_size,), generator=draw).tolist()
        longest = max(len(ids[i]) for i in chosen)
        labels = torch.tensor([ids[i] + [-100] * (longest - len(ids[i])) for i in chosen])
        batch = labels.clamp_min(0)
        loss = model(input_ids=batch, attention_mask=(labels >= 0).long(), labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval().requires_grad_(True)
