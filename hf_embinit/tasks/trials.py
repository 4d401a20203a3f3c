"""What another tokenizer is tried on: texts, pairs of sentences, labelled texts; and the scores on them."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from ..measures import mean_pooled, retrieval_accuracy, spearmanr
from ..retokenize import Pair, read_parallel
from .classification import PAIR_COLUMNS
from .data import DATA_VARIABLE, data_digests, load_file
from .embedded import corpus_splits
from .texts import load_texts

_SHORTEST, _LONGEST = 100, 250
"""Characters of a text that is read: shorter ones are headings, and longer ones are cut off, since a small
model was not trained on as many positions."""


@dataclass(frozen=True)
class Trial:
    """What a model is scored on by whichever tokenizer it has."""

    metric: str
    """Name of the score."""
    score: Callable[[Any, Any], float]
    """Score of a model and its tokenizer."""
    texts: list[str]
    """Text of the new tokenizer's language, to learn a vocabulary from; nothing is scored on it."""
    held_out: list[str] = field(default_factory=list)
    """The texts that a language model is scored on."""
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`train`, for the tokenizer and the rows, and `test` -> `rows` and `sha256` of their texts."""


def text_trial(model: Any, tokenizer: Any, sources: Sequence[str], count: int, *, seed: int = 0) -> Trial:
    """Bits per byte of a language model on a fifth of `count` texts, which it writes itself, or which are
    drawn from `sources`, each `<file>:<column>` (also below `HF_EMBINIT_DATA`)."""
    if sources:
        known = [text.strip() for one in sources for text in load_texts(_find(one))]
        known = [_beginning(text) for text in known if len(text) >= _SHORTEST]
        if len(known) < count:
            raise InvalidArgumentError(
                f"--num_texts {count}: {' '.join(sources)} has {len(known)} texts of {_SHORTEST} characters"
            )
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
        texts = [known[i] for i in order[:count].tolist()]
    else:
        texts = sample_texts(model, tokenizer, count, seed=seed)
    held_out = texts[: count // 5]

    def score(model: Any, tokenizer: Any) -> float:
        return bits_per_byte(model, tokenizer, held_out)

    rest = texts[count // 5 :]
    used = _digests(train={"text": rest}, test={"text": held_out})
    return Trial("bits_per_byte", score, rest, held_out, used)


def _beginning(text: str) -> str:
    """The text, or the whole words of what is read of it."""
    if len(text) <= _LONGEST:
        return text
    words = text[: _LONGEST + 1].rpartition(" ")[0]
    return words if len(words) >= _SHORTEST else text[:_LONGEST]  # Chinese, say, has no spaces


def pair_trial(model: Any, tokenizer: Any, pairs: Sequence[Pair], test_pairs: Sequence[Pair]) -> Trial:
    """Accuracy at 1 of an encoder at finding the sentences of the old language, as it reads them before, by
    those of the new one."""
    english = mean_pooled(model, tokenizer, [pair.old for pair in test_pairs])

    def score(model: Any, tokenizer: Any) -> float:
        return retrieval_accuracy(mean_pooled(model, tokenizer, [pair.new for pair in test_pairs]), english)

    used = _digests(train=_columns(pairs), test=_columns(test_pairs))
    return Trial("accuracy", score, [pair.new for pair in pairs], data=used)


def _columns(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    return {"old": [pair.old for pair in pairs], "new": [pair.new for pair in pairs]}


def _digests(**splits: dict[str, list[Any]]) -> dict[str, dict[str, Any]]:
    from datasets import Dataset

    return data_digests({name: Dataset.from_dict(columns) for name, columns in splits.items()})


def label_trial(model: Any, pairs: Sequence[Pair], source: str, limit: int) -> Trial:
    """The score on `limit` pairs of texts with a `label`, spread over a file (also below `HF_EMBINIT_DATA`):
    a classifier's accuracy, or Spearman's correlation of an encoder's cosines with the labels."""
    data = load_file(_find(source))
    names = next((pair for pair in PAIR_COLUMNS if {*pair, "label"} <= set(data.column_names)), None)
    if names is None:
        raise InvalidArgumentError(
            f"--labelled {source} has the columns {', '.join(data.column_names)}: expected `label` and two "
            f"texts, such as sentence1 and sentence2"
        )
    count = min(limit, len(data))
    chosen = data.select([i * len(data) // count for i in range(count)])
    first, second, labels = (chosen[name][:] for name in (*names, "label"))
    classifies = hasattr(model, "classifier")
    if classifies:
        labels = _class_ids(model, labels, source)

    def score(model: Any, tokenizer: Any) -> float:
        if classifies:
            return float((_classes(model, tokenizer, first, second) == torch.tensor(labels)).float().mean())
        one, other = (mean_pooled(model, tokenizer, texts) for texts in (first, second))
        return spearmanr(torch.cosine_similarity(one, other).numpy(), labels)

    used = _digests(train=_columns(pairs), test={name: chosen[name][:] for name in (*names, "label")})
    metric = "accuracy" if classifies else "spearmanr"
    return Trial(metric, score, [pair.new for pair in pairs], data=used)


def _class_ids(model: Any, labels: Sequence[Any], source: str) -> list[int]:
    """The ids of labels that may be names."""
    id_of: dict[Any, int] = {name: int(i) for i, name in model.config.id2label.items()}
    id_of |= {i: i for i in range(model.config.num_labels)}
    if unknown := [label for label in labels if label not in id_of]:
        raise InvalidArgumentError(
            f"--labelled {source} has the label {unknown[0]!r}, and the model {', '.join(map(str, id_of))}"
        )
    return [id_of[label] for label in labels]


def _classes(model: Any, tokenizer: Any, first: Sequence[str], second: Sequence[str]) -> Tensor:
    """The most probable class of each pair of texts, `[N]`."""
    order = sorted(range(len(first)), key=lambda i: len(first[i]) + len(second[i]))
    made = torch.zeros(len(first), dtype=torch.int64)
    for start in range(0, len(order), 64):
        part = order[start : start + 64]
        batch = tokenizer(
            [first[i] for i in part], [second[i] for i in part], padding=True, truncation=True,
            max_length=128, return_tensors="pt",
        )  # fmt: skip
        with torch.no_grad():
            made[part] = model(**batch).logits.argmax(-1)
    return made


@contextlib.contextmanager
def measured() -> Iterator[dict[str, float]]:
    """The `seconds` that the block takes, and on Linux `transfer_mib`, by how much memory grows at most."""
    cost: dict[str, float] = {}
    resident = _restart_peak()
    start = time.perf_counter()
    yield cost
    cost["seconds"] = time.perf_counter() - start
    if resident is not None:
        cost["transfer_mib"] = _status("VmHWM") - resident


def _restart_peak() -> float | None:
    """Memory in use, in MiB, from which the peak is counted from now on; None where that cannot be asked."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return _status("VmRSS")
    except OSError:
        return None


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def load_pairs(source: Sequence[str], split: str, limit: int | None = None, seed: int = 0) -> list[Pair]:
    """English-German pairs: the embedded `tatoeba`, or files by their paths (also below
    `HF_EMBINIT_DATA`); `limit` draws that many at random by `seed`."""
    if list(source) == ["tatoeba"]:
        pairs = [Pair(row["en"], row["de"]) for row in corpus_splits("tatoeba")[split]]
    else:
        pairs = [pair for one in source for pair in read_parallel(_find(one), name="pairs")]
    if limit is None or limit >= len(pairs):
        return pairs
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    return [pairs[i] for i in order[:limit].tolist()]


def _find(path: str) -> str:
    """`path`, or where it is below `HF_EMBINIT_DATA`."""
    folder = os.environ.get(DATA_VARIABLE)
    here = Path(path.rpartition(":")[0] or path)
    return str(Path(folder) / path) if folder and not here.exists() and not here.is_absolute() else path


def sample_texts(model: Any, tokenizer: Any, count: int, *, length: int = 256, seed: int = 0) -> list[str]:
    """Texts that a language model writes from its first token on, by drawing from its own distribution."""
    texts: list[str] = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        while len(texts) < count:
            start = torch.full((min(100, count - len(texts)), 1), _first_id(tokenizer))
            made = model.generate(
                start, attention_mask=torch.ones_like(start), do_sample=True, max_length=length,
                pad_token_id=tokenizer.eos_token_id,
            )  # fmt: skip
            texts += [text.strip() for text in tokenizer.batch_decode(made, skip_special_tokens=True)]
    return texts


def bits_per_byte(model: Any, tokenizer: Any, texts: Sequence[str], *, length: int = 512) -> float:
    """Bits that a language model needs for a byte of UTF-8 of `texts`, which are at most `length` tokens
    long, the first of a text among them: a measure that compares across tokenizers, as perplexity does not.
    The end of a text is not counted.
    """
    nats, count = 0.0, 0
    length = min(length, getattr(model.config, "max_position_embeddings", None) or length)
    for text, ids in zip(texts, encode_texts(tokenizer, texts, length + 1), strict=True):
        if len(ids) > length:
            raise InvalidArgumentError(
                f"a text of {len(text)} characters has more than {length} tokens, with its first"
            )
        batch = torch.tensor([ids], device=model.device)
        with torch.no_grad():
            logits = model(input_ids=batch).logits[0, :-1].double()
        nats += float(torch.nn.functional.cross_entropy(logits, batch[0, 1:], reduction="sum"))
        count += len(text.encode())
    return nats / math.log(2) / max(1, count)


def _first_id(tokenizer: Any) -> int:
    """What a text begins with: its first token, and for tokenizers without one the end of the text before."""
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if first is None:
        raise InvalidArgumentError(
            f"{type(tokenizer).__name__} has neither a first nor a last token of a text, which a language "
            f"model begins with"
        )
    return first


def encode_texts(tokenizer: Any, texts: Sequence[str], length: int) -> list[list[int]]:
    """The ids of each text after the first token of a text, at most `length` of them."""
    start = _first_id(tokenizer)
    ids = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return [[start, *one][:length] for one in ids]
