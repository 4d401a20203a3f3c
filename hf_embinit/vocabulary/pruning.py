"""`prune_vocabulary`: the inverse of `expand_vocabulary`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import InvalidArgumentError
from ..manifest import record_event
from ..tables import EmbeddingTables
from .compaction import compact_tokenizer, required_ids

_ID_LISTS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids")
"""Fields of a generation config that hold ids without saying so in their name."""


@dataclass
class PruneReport:
    """What `prune_vocabulary` kept."""

    old_num_embeddings: int
    new_num_embeddings: int
    old_ids: list[int]
    """New id -> old id."""
    also_kept: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> tokens that stay unasked: `special`, `unknown`, `alphabet` (bytes), `merges` (BPE builds kept
    tokens of them)."""

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-serialisable values."""
        return asdict(self)

    def __str__(self) -> str:
        also = ", ".join(f"{len(tokens)} for {reason}" for reason, tokens in self.also_kept.items())
        return f"rows {self.old_num_embeddings} -> {self.new_num_embeddings}" + (
            f"; kept beside those asked for: {also}" if also else ""
        )


def prune_vocabulary(model: PreTrainedModel, tokenizer: Any, keep: Iterable[str | int]) -> PruneReport:
    """Drops all tokens but `keep` from `tokenizer` and every table of `model`, in place; ids become 0..n-1.

    A text whose tokens are all kept is split as before, and its logits for kept tokens are what they were;
    other texts are split into kept pieces. Special tokens, byte alphabets and the tokens that BPE merges
    kept ones from stay too. Ids in the model's configurations follow. Padding rows of the matrix are
    dropped.

    Works for tokenizers with a `tokenizer.json` (BPE, Unigram, WordPiece, WordLevel). Raises
    `InvalidArgumentError` for other tokenizers and for tokens that are not there, `UnsupportedModelError` for
    models with two vocabularies; model and tokenizer are then as they were.
    """
    tables = EmbeddingTables(model)
    old_rows = tables.vocab_size()
    wanted = _ids(tokenizer, keep)
    also = required_ids(tokenizer, wanted, special={i for _, _, v in _id_fields(model) for i in _flat(v)})
    names = {i: token for token, i in tokenizer.get_vocab().items()}
    old_ids = sorted(wanted.union(*also.values()))
    if old_ids[-1] >= old_rows:
        raise InvalidArgumentError(
            f"the tokenizer has id {old_ids[-1]}, but the model has {old_rows} rows: is this the "
            "model's own tokenizer?"
        )
    new_id = {old: new for new, old in enumerate(old_ids)}
    compacted = compact_tokenizer(tokenizer, new_id)

    index = torch.tensor(old_ids)
    rows = {t.name: tables.read(t)[index].clone() for t in tables.own_tables}
    biases = {t.name: [b[index].clone() for b in tables.biases(t)] for t in tables.output_tables}
    padding = {t.name: t.padding_index for t in tables.input_tables}
    tables.resize(len(old_ids))
    for table in tables.own_tables:
        tables.write(table, rows[table.name], range(len(old_ids)))
    for table in tables.output_tables:
        if table.bias:
            tables.write_bias(table, biases[table.name], range(len(old_ids)))
    for table in tables.input_tables:
        if (old := padding[table.name]) is not None:
            table.module.padding_idx = new_id.get(old)  # type: ignore[assignment]
    for config, key, value in _id_fields(model):
        setattr(config, key, _mapped(value, new_id))
    tokenizer._tokenizer = compacted
    report = PruneReport(
        old_num_embeddings=old_rows,
        new_num_embeddings=len(old_ids),
        old_ids=old_ids,
        also_kept={
            reason: [names[i] for i in sorted(ids - wanted)] for reason, ids in also.items() if ids - wanted
        },
    )
    record_event(tables.model.config, "prune_vocabulary", rows=[old_rows, len(old_ids)], old_ids=old_ids)
    return report


def _ids(tokenizer: Any, keep: Iterable[str | int]) -> set[int]:
    vocabulary = tokenizer.get_vocab()
    known = set(vocabulary.values())
    ids = set()
    for token in [keep] if isinstance(keep, str) else keep:
        i = vocabulary.get(token) if isinstance(token, str) else int(token)
        if i is None or i not in known:
            raise InvalidArgumentError(f"keep has {token!r}, which is not in the tokenizer's vocabulary")
        ids.add(i)
    if not ids:
        raise InvalidArgumentError("keep is empty")
    return ids


def _id_fields(model: PreTrainedModel) -> Iterator[tuple[Any, str, Any]]:
    """Every field of the model's configurations that holds token ids."""
    inner = EmbeddingTables(model).model
    configs = [inner.config, inner.config.get_text_config(), getattr(inner, "generation_config", None)]
    for config in {id(c): c for c in configs if c is not None}.values():
        for key, value in list(vars(config).items()):
            if value is not None and (key.endswith(("_token_id", "_token_ids")) or key in _ID_LISTS):
                yield config, key, value


def _flat(value: Any) -> Iterator[int]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    elif isinstance(value, int) and value >= 0:
        yield value


def _mapped(value: Any, new_id: dict[int, int]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_mapped(one, new_id) for one in value]
    return new_id.get(value, value)
