"""Expansion and pruning with whatever comes: no exception that is not ours, nothing lost."""

from __future__ import annotations

import copy
import warnings

import torch
from builders.tables import assert_consistent
from builders.tiny_tokenizers import FAMILIES, model, texts, tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_embinit.errors import EmbinitError, VocabularyWarning
from hf_embinit.tables import EmbeddingTables
from hf_embinit.vocabulary import expand_vocabulary, prune_vocabulary

TOKENS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["the", " the", "The", "Ġthe", "▁the", "##s", "<s>", "[CLS]", "é", "e\u0301", " \t", "a b", "ﬁ"]
    ),
    st.text(alphabet="abzq ▁Ġ#<>|0", min_size=1, max_size=5),
)
QUIET = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@QUIET
@given(
    family=st.sampled_from(FAMILIES),
    kind=st.sampled_from(["gpt2", "llama", "bert", "bart"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    padding=st.integers(0, 9),
    tokens=st.lists(TOKENS, max_size=5),
    init=st.sampled_from(["mean", "mean_cov", "subword_mean", "zeros", "default"]),
    multiple=st.one_of(st.none(), st.integers(1, 40)),
    seed=st.integers(0, 2**63 - 1),
)
def test_expansion(family, kind, dtype, padding, tokens, init, multiple, seed) -> None:
    t = tokenizer(family)
    m = model(kind, len(t) + padding).to(dtype)
    old_t = copy.deepcopy(t)
    tables = EmbeddingTables(m)
    old = {table.name: tables.read(table).clone() for table in tables.own_tables}
    biases = [b.clone() for table in tables.output_tables for b in tables.biases(table)]
    prefixes = None if dtype == torch.float32 and seed % 8 == 0 else ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VocabularyWarning)
        try:
            report = expand_vocabulary(
                m, t, tokens, init, seed=seed, pad_to_multiple_of=multiple, prefixes=prefixes
            )
        except EmbinitError:
            assert t.get_vocab() == old_t.get_vocab() and m.config.vocab_size == len(old_t) + padding
            assert all(torch.equal(tables.read(table), old[table.name]) for table in tables.own_tables)
            return
    tables = EmbeddingTables(m)
    assert_consistent(tables)
    assert m.config.vocab_size == tables.vocab_size() == report.new_num_embeddings >= len(old_t) + padding
    assert multiple is None or m.config.vocab_size % multiple == 0
    kept = [i for i in range(len(old_t) + padding) if i not in report.token_ids]
    for table in tables.own_tables:
        rows = tables.read(table)
        assert rows.dtype == dtype and torch.isfinite(rows.float()).all()
        assert torch.equal(rows[kept], old[table.name][kept])
    for before, after in zip(
        biases, [b for t_ in tables.output_tables for b in tables.biases(t_)], strict=True
    ):
        assert torch.equal(after[kept], before[kept])
    assert {k: i for k, i in t.get_vocab().items() if i not in report.token_ids} == old_t.get_vocab()
    assert t.convert_tokens_to_ids([plan.token for plan in report.tokens]) == report.token_ids
    assert str(report) and report.to_dict()


@QUIET
@given(
    family=st.sampled_from(FAMILIES),
    padding=st.integers(0, 5),
    keep=st.sets(st.integers(0, 319), min_size=1, max_size=120),
)
def test_pruning(family, padding, keep) -> None:
    old_t = tokenizer(family)
    t = tokenizer(family)
    m = model("llama", len(t) + padding)
    tables = EmbeddingTables(m)
    old = {table.name: tables.read(table).clone() for table in tables.own_tables}
    keep = {i for i in keep if i < len(t)}
    if not keep:
        return
    report = prune_vocabulary(m, t, keep)
    tables = EmbeddingTables(m)
    assert_consistent(tables)
    assert len(t) == tables.vocab_size() == len(report.old_ids)
    for table in tables.own_tables:
        assert torch.equal(tables.read(table), old[table.name][report.old_ids])
    assert t.convert_ids_to_tokens(list(range(len(t)))) == old_t.convert_ids_to_tokens(report.old_ids)
    some = list(texts()[:20])
    new_id = {o: n for n, o in enumerate(report.old_ids)}
    for before, after in zip(old_t(some)["input_ids"], t(some)["input_ids"], strict=True):
        if set(before) <= new_id.keys():
            assert after == [new_id[i] for i in before]
        assert max(after, default=0) < len(t)
