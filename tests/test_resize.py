"""`resize`: which old rows count, what each table is filled from, what the numbers depend on."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from builders.tiny_models import (
    V,
    bart,
    bert,
    gpt2,
    llama,
    marian,
    mobilebert,
    spread,
    t5_with_separate_head,
    word_tokenizer,
)

from hf_embinit.errors import InvalidArgumentError, UnknownNameError
from hf_embinit.manifest import row_ids
from hf_embinit.resize import resize
from hf_embinit.rows import RowRequest
from hf_embinit.tables import EmbeddingTables, unusable_rows
from hf_embinit.tokens import vocabulary


def grown(model, by: int = 3, init: str = "mean", ids=None, **kwargs):
    """The tables of a model after a resize, and the report of the rows that were made."""
    tables = EmbeddingTables(model)
    request = RowRequest(init, **kwargs)
    return tables, resize(tables, tables.plan(tables.vocab_size() + by), request, ids)


def test_an_untied_head_is_filled_from_its_own_rows() -> None:
    """Not from the input's, as LLaMA-Factory did."""
    for model in (llama(), t5_with_separate_head(), bart(tie_word_embeddings=False)):
        spread(model)
        tables, report = grown(model)
        assert [entry["name"] for entry in report["tables"]] == [t.name for t in tables.own_tables]
        for table in tables.own_tables:
            rows = tables.read(table)
            usable = [i for i in range(V) if i != table.padding_index]
            assert torch.allclose(rows[V:], rows[usable].mean(0).expand(3, -1), atol=1e-6), table.name
        head, inputs = tables.output_tables[0], tables.input_tables[0]
        assert not torch.allclose(tables.read(head)[V:], tables.read(inputs)[V:], atol=1e-3)


@pytest.mark.parametrize("build", [bert, bart, marian, lambda: bert(tie_word_embeddings=False), mobilebert])
def test_new_output_biases_get_the_mean_of_the_old(build) -> None:
    model = build()
    spread(model)
    tables, _ = grown(model)
    for table in tables.output_tables:
        for bias in tables.biases(table):
            assert bias[:V].mean() < -4
            assert torch.allclose(bias[V:], bias[:V].mean().expand(3), atol=0.1)
    p_ids = torch.arange(5, 15)[None]
    arguments = {"input_ids": p_ids} | (
        {"decoder_input_ids": p_ids} if model.config.is_encoder_decoder else {}
    )
    log_q = model(**arguments).logits.double().log_softmax(-1)
    log_p = log_q[..., :V].log_softmax(-1)  # old logits do not change: p is q without the new tokens
    kl = (log_p.exp() * (log_p - log_q[..., :V])).sum(-1)
    assert kl.max() <= math.log(1 + 3 / V) + 1e-9


def test_rows_that_statistics_leave_out() -> None:
    model = bert()
    spread(model)
    table = EmbeddingTables(model).input_tables[0]
    weight = table.parameter.data
    weight[7] = 0
    weight[8] = 1e-9
    weight[9] = -5.0  # all negative, and trained: the largest entry is no measure of a row
    weight[20:24] = weight[24].clone()
    names = {
        "i30": "[unused3]",
        "i31": "<extra_id_7>",
        "i32": "<|reserved_special_token_12|>",
        "i33": "<unused5>",
    }
    found = unusable_rows(weight, table, tokens=vocabulary(word_tokenizer(V - 4, **names)))
    assert found == {
        "padding": [0],
        "zero": [7, 8],
        "repeated": [20, 21, 22, 23, 24],
        "reserved": [30, 31, 32, 33],
        "beyond_tokenizer": list(range(V - 4, V)),
    }
    assert unusable_rows(weight, table, exclude_rows=[3, 5, V + 2]) == {"given": [3, 5]}
    assert unusable_rows(weight, table, exclude_rows=[]) == {}
    tables, report = grown(model, tokenizer=word_tokenizer(V - 4, **names))
    assert report["tables"][0]["left_out"] == found
    out = {i for rows in found.values() for i in rows}
    kept = [i for i in range(V) if i not in out]
    assert report["tables"][0]["usable"] == len(kept)
    assert torch.allclose(weight[kept].mean(0), tables.read(table)[V], atol=1e-6)


def test_a_table_of_zeros_or_of_one_row_repeated_gives_numbers() -> None:
    """The mean of nothing is NaN: when nothing looks used, all rows count."""
    for value in (0.0, 0.25):
        model = llama()
        for table in EmbeddingTables(model).own_tables:
            table.parameter.data.fill_(value)
        for init in ("mean", "mean_cov"):
            tables, report = grown(model, init=init)
            assert report["tables"][0]["left_out"] == {}
            for table in tables.own_tables:
                assert torch.allclose(tables.read(table)[-3:], torch.tensor(value), atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [16, 64])
def test_mean_cov_rows_are_distinct_in_every_dtype(dtype, width) -> None:
    """Where transformers gives three of seven in bf16, and one where the width exceeds the vocabulary."""
    model = llama(hidden_size=width)
    spread(model)
    tables, _ = grown(model.to(dtype), by=7, init="mean_cov")
    for table in tables.own_tables:
        new = tables.read(table)[V:]
        assert new.dtype == dtype and len(new.unique(dim=0)) == 7


def test_the_seed_decides_and_nothing_else() -> None:
    torch.manual_seed(3)
    model = llama()
    spread(model)
    state = torch.get_rng_state()

    def rows(seed: int) -> list[torch.Tensor]:
        tables, _ = grown(copy.deepcopy(model), init="mean_cov", seed=seed)
        return [tables.read(table)[V:].clone() for table in tables.own_tables]

    first, again, other = rows(1), rows(1), rows(2)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_second_resize_draws_anew() -> None:
    model = llama()
    spread(model)
    grown(model, init="mean_cov")
    tables, _ = grown(model, init="mean_cov")
    for table in tables.own_tables:
        noise = tables.read(table)[V:] - tables.read(table)[:V].mean(0)
        correlation = torch.corrcoef(noise)[:3, 3:].abs().max()
        assert correlation < 0.9


def test_overrides_by_token_and_id() -> None:
    model = llama()
    spread(model)
    before = word_tokenizer()
    tokenizer = copy.deepcopy(before)
    tokenizer.add_tokens(["new0", "new1", "new2", "new3"])
    overrides = {"new1": "zeros", V + 2: ("copy", {"of": "w7"}), "new3": ("copy", {"of": ["w1", "w2"]})}
    tables, report = grown(
        model, by=4, init="mean", tokenizer=tokenizer, old_tokenizer=before, overrides=overrides
    )
    for table in tables.own_tables:
        rows = tables.read(table)
        assert torch.allclose(rows[V], rows[:V].mean(0), atol=1e-6)
        assert torch.equal(rows[V + 1], torch.zeros_like(rows[0]))
        assert torch.allclose(rows[V + 2], rows[7], atol=1e-6)
        assert torch.allclose(rows[V + 3], (rows[1] + rows[2]) / 2, atol=1e-6)
    assert set(report["overrides"]) == {"new1", str(V + 2), "new3"}
    with pytest.raises(InvalidArgumentError, match="'stranger'"):
        grown(model, tokenizer=tokenizer, overrides={"stranger": "zeros"})


def test_a_tokenizer_that_has_the_new_token_is_not_used_to_split_it() -> None:
    """Unsloth tokenised the new token after adding it and averaged its own fresh row."""
    model = llama()
    spread(model)
    before = word_tokenizer()
    tokenizer = copy.deepcopy(before)
    tokenizer.add_tokens(["w3 w5"])
    with pytest.raises(InvalidArgumentError, match="before tokens are added to it"):
        grown(model, 1, "subword_mean", tokenizer=tokenizer)
    assert EmbeddingTables(model).vocab_size() == V
    tables, _ = grown(model, 1, "subword_mean", tokenizer=tokenizer, old_tokenizer=before)
    for table in tables.own_tables:
        rows = tables.read(table)
        assert torch.allclose(rows[V], (rows[3] + rows[5]) / 2, atol=1e-6)


def test_given_ids_are_filled_and_not_counted() -> None:
    model = gpt2()
    spread(model)
    before = model.transformer.wte.weight.detach().clone()
    tables, report = grown(model, 2, ids=[V - 2, V - 1, V, V + 1])
    rows = tables.read(tables.tables[0])
    assert torch.equal(rows[: V - 2], before[: V - 2])
    assert torch.allclose(rows[V - 2 :], before[: V - 2].mean(0).expand(4, -1), atol=1e-6)
    assert report["tables"][0]["left_out"] == {"refilled": [V - 2, V - 1]}
    assert report["tables"][0]["rows"] == [V - 2, V + 2]


def test_two_ids_apart_do_not_read_as_a_span() -> None:
    _, report = grown(gpt2(), 1, ids=[V - 5, V])
    assert report["tables"][0]["rows"] == [[V - 5, V - 4], [V, V + 1]]
    assert row_ids(report["tables"][0]["rows"]) == [V - 5, V]
    assert row_ids([3, 6]) == [3, 4, 5] and row_ids([3, 7, 9]) == [3, 7, 9]


def test_table_initializers_make_new_rows_too() -> None:
    model = gpt2()
    tables, _ = grown(model, by=200, init="xavier")
    bound = math.sqrt(6 / (V + 200 + 16))
    rows = tables.read(tables.tables[0])[V:]
    assert rows.abs().max() <= bound and rows.abs().max() > 0.9 * bound


def test_errors_come_before_any_row_is_written() -> None:
    model = llama()
    spread(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for kwargs, error in (
        ({"init": "maen"}, UnknownNameError),
        ({"init": "mean", "options": {"scale": 3}}, InvalidArgumentError),
        ({"init": "subword_mean"}, InvalidArgumentError),
        ({"init": "mean", "overrides": {"a": "zeros"}}, InvalidArgumentError),
    ):
        with pytest.raises(error):
            grown(model, **kwargs)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
