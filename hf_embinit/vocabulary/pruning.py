"""`prune_vocabulary`: the inverse of `expand_vocabulary`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from numbers import Integral
from typing import Any

import torch

from ..arguments import Count, Tokenizer, checked
from ..errors import InvalidArgumentError
from ..manifest import warn_of_another_tokenizer
from ..tables import EmbeddingTables, RowsOf
from ..tokens import tokenizer_of
from .compaction import compact_tokenizer, required_ids
from .id_fields import (
    find_skipped_words,
    id_fields,
    named_by_number,
    refuse_moved_meanings,
    renumber,
    skipped_words,
    tokenizer_id_fields,
)
from .new_ids import check_size


@dataclass
class PruneReport:
    """What `prune_vocabulary` kept."""

    old_num_embeddings: int
    new_num_embeddings: int
    old_ids: list[int]
    """New id -> old id."""
    also_kept: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> tokens that stay unasked: `special`, `template` (a chat template writes them), `unknown`,
    `padding`, `processor` (it adds them to each text), `alphabet` (bytes), `merges` (BPE builds kept tokens
    of them)."""

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-serialisable values."""
        return asdict(self)

    def __str__(self) -> str:
        also = ", ".join(f"{len(tokens)} for {reason}" for reason, tokens in self.also_kept.items())
        return f"rows {self.old_num_embeddings} -> {self.new_num_embeddings}" + (
            f"; kept beside those asked for: {also}" if also else ""
        )


@checked
def prune_vocabulary(model: Any, tokenizer: Tokenizer, keep: Iterable[str | int]) -> PruneReport:
    """Drops all tokens but `keep` from `tokenizer` and every table of `model`, in place; ids become 0..n-1.

    A text whose tokens are all kept is split as before, and its logits for kept tokens are what they were;
    other texts are split into kept pieces. Special tokens, byte alphabets, added tokens that a chat template
    writes and the tokens that BPE merges kept ones from stay too, and so do those that configurations or the
    model's code name. Ids in all
    configurations, in modules, in the tokenizer and in a processor follow. Padding rows of the matrix are
    dropped, except those that a configuration names.

    Works for tokenizers with a `tokenizer.json` (BPE, Unigram, WordPiece, WordLevel). Raises
    `InvalidArgumentError` for other tokenizers and for tokens that are not there, `UnsupportedModelError` for
    models with two vocabularies and where a new id would mean something else to the model's code; model and
    tokenizer are then as they were.
    """
    tables, holder, tokenizer = EmbeddingTables(model), tokenizer, tokenizer_of(tokenizer)
    warn_of_another_tokenizer(tables.model, tokenizer)
    old_rows = tables.vocab_size()
    wanted = _ids(tokenizer, keep)
    fields = [*id_fields(tables, old_rows), *tokenizer_id_fields(holder)]
    vocabulary = tokenizer.get_vocab()
    skipped = {vocabulary[word] for word in skipped_words(tables) if word in vocabulary}
    named = skipped.union(*(field.ids for field in fields))
    also = required_ids(holder, wanted, special=named | named_by_number(tables.model, tokenizer))
    names = {i: token for token, i in vocabulary.items()}
    old_ids = sorted(wanted.union(*also.values()))
    check_size(tables, max(names) + 1, old_rows, "the tokenizer")
    old_ids += sorted(i for i in named if i < old_rows and i not in names)  # rows without a token
    new_id = {old: new for new, old in enumerate(old_ids)}
    refuse_moved_meanings(tables, old_rows, new_id)
    compacted = compact_tokenizer(tokenizer, new_id)

    index, ids = torch.tensor(old_ids), range(len(old_ids))
    writes = [RowsOf(t, ids, tables.take(t, index)) for t in tables.own_tables]
    for table in tables.output_tables:
        biases = [bias[index.to(bias.device)] for bias in tables.biases(table)]
        writes.append(RowsOf(table, (), biases=biases, bias_ids=ids))
    padding = [  # modules that are tied to the table have an index of their own
        (place.module, table.padding_index)
        for table in tables.input_tables
        for place in table.tied.locations
        if getattr(place.module, "padding_idx", None) is not None
    ]
    event = {"event": "prune_vocabulary", "rows": [old_rows, len(old_ids)], "old_ids": old_ids}

    def follow() -> None:
        renumber(tables.model, fields, new_id)
        for module, old in padding:
            if old is not None:
                module.padding_idx = new_id.get(old)  # type: ignore[assignment]
        tokenizer._tokenizer = compacted
        find_skipped_words(tables, tokenizer)

    plan = tables.plan(len(old_ids))
    plan.origins = index
    tables.change(plan, writes, follow, event=event)
    return PruneReport(
        old_num_embeddings=old_rows,
        new_num_embeddings=len(old_ids),
        old_ids=old_ids,
        also_kept={
            reason: [names[i] for i in sorted(ids - wanted)] for reason, ids in also.items() if ids - wanted
        },
    )


@checked
def used_tokens(tokenizer: Tokenizer, texts: Iterable[str], *, min_count: Count = 1) -> set[int]:
    """Ids that texts are split into, at least `min_count` times, with what the tokenizer adds around a text.

    With them as `keep`, `prune_vocabulary` leaves the splits of these texts as they are (`min_count=1`).
    """
    tokenizer, counts = tokenizer_of(tokenizer), Counter[int]()
    texts = iter(texts)
    while block := list(islice(texts, 1000)):
        for ids in tokenizer(block, verbose=False)["input_ids"]:
            counts.update(ids)
    return {i for i, count in counts.items() if count >= min_count}


def _ids(tokenizer: Any, keep: Iterable[str | int]) -> set[int]:
    vocabulary = tokenizer.get_vocab()
    known = set(vocabulary.values())
    ids = set()
    for token in [keep] if isinstance(keep, str) else keep:
        if not isinstance(token, (str, Integral)) or isinstance(token, bool):
            raise InvalidArgumentError(f"keep has {token!r}: expected tokens and ids")
        i = vocabulary.get(token) if isinstance(token, str) else int(token)
        if i is None or i not in known:
            raise InvalidArgumentError(f"keep has {token!r}, which is not in the tokenizer's vocabulary")
        ids.add(i)
    if not ids:
        raise InvalidArgumentError("keep is empty")
    return ids
