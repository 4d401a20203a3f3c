"""Initialisers of rows that are made of old tokens, and the map from pre-trained vectors."""

from __future__ import annotations

import pytest
import torch
from builders.tables import default_dtype

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.initializers import InitContext, get_initializer, list_initializers
from hf_embinit.initializers.new_tokens import least_squares
from hf_embinit.moments import gaussian_rows
from hf_embinit.vectors import PretrainedVectors

OLD = ["<unk>", "Ġking", "Ġman", "Ġof", "king", "dom"]
PIECES = {" king": [1], " kingdom": [1, 5], "kingdom": [4, 5], "man of": [0, 3], "??": [0], "of": [0]}


def context(
    texts: list[str], *, width: int = 8, role: str = "input", dtype=torch.float32, **more
) -> InitContext:
    table = torch.randn(len(OLD), width, generator=torch.Generator().manual_seed(1)).to(dtype)
    settings = {
        "tokens": [t.replace(" ", "Ġ") for t in texts],
        "texts": texts,
        "token_family": "byte_level",
        "existing_tokens": OLD,
        "tokenize": lambda texts: [PIECES[text] for text in texts],
        "unknown_id": 0,
        "existing": table,
        **more,
    }
    generator = torch.Generator().manual_seed(0)
    return InitContext(len(texts), width, len(OLD) + len(texts), generator, role=role, **settings)


def make(name: str, made: InitContext, **options) -> torch.Tensor:
    return get_initializer(name).fn(made, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_subword_mean_is_the_mean_of_the_pieces_in_float32(dtype) -> None:
    c = context([" kingdom", "kingdom"], dtype=dtype)
    rows = make("subword_mean", c)
    assert rows.dtype == torch.float32
    assert torch.equal(rows[0], c.existing[[1, 5]].float().mean(0))
    assert torch.equal(rows[1], c.existing[[4, 5]].float().mean(0))


@pytest.mark.parametrize(("pooling", "expected"), [("first", 1), ("last", 5)])
def test_input_and_output_pool_alone(pooling, expected) -> None:
    inputs, outputs = context([" kingdom"]), context([" kingdom"], role="output")
    options = {"output_pooling": pooling}
    assert torch.equal(make("subword_mean", inputs, **options)[0], inputs.existing[[1, 5]].mean(0))
    assert torch.equal(make("subword_mean", outputs, **options)[0], outputs.existing[expected])
    options = {"input_pooling": pooling}
    assert torch.equal(make("subword_mean", inputs, **options)[0], inputs.existing[expected])
    assert torch.equal(make("subword_mean", outputs, **options)[0], outputs.existing[[1, 5]].mean(0))
    with pytest.raises(InvalidArgumentError, match=r"input_pooling='max' is not 'mean', 'first' or 'last'"):
        make("subword_mean", inputs, input_pooling="max")


def test_pieces_that_are_unknown_do_not_count_and_nothing_gives_the_mean_not_nan() -> None:
    c = context(["man of", "??", ""])
    rows = make("subword_mean", c)
    assert torch.equal(rows[0], c.existing[3])
    assert torch.allclose(rows[1], c.existing.mean(0), atol=1e-6) and torch.equal(rows[1], rows[2])
    assert torch.isfinite(rows).all()
    assert c.report["without_source"] == ["??"]  # padding rows are no tokens


def test_copy_one_token_or_the_mean_of_several_for_all_or_each() -> None:
    c = context([" kingdom", "??"])
    assert torch.equal(make("copy", c, of="Ġking"), c.existing[[1, 1]])
    assert torch.equal(make("copy", c, of=" king"), c.existing[[1, 1]])  # a text that is one token
    assert torch.equal(
        make("copy", c, of="king"), c.existing[[4, 4]]
    )  # the tokenizer's own spelling comes first
    assert torch.equal(make("copy", c, of=3), c.existing[[3, 3]])
    assert torch.equal(make("copy", c, of=["Ġking", "Ġman"])[1], c.existing[[1, 2]].mean(0))
    each = make("copy", c, of={" kingdom": "dom", "??": ["Ġof", "Ġman"]})
    assert torch.equal(each[0], c.existing[5]) and torch.equal(each[1], c.existing[[3, 2]].mean(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "of= is missing"),
        ({"of": []}, "of= is missing"),
        ({"of": " kingdom"}, r"of=' kingdom' is not one old token but 'Ġking', 'dom': name old tokens"),
        ({"of": "??"}, r"of='\?\?' is not one old token"),
        ({"of": 6}, r"of=6 is no id of an old token \(0 to 5\)"),
        ({"of": {"other": "Ġking"}}, "of= has no entry for the new token ' kingdom'"),
    ],
)
def test_copy_says_what_is_wrong(options, message) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make("copy", context([" kingdom"]), **options)


def test_description_is_the_mean_over_a_text() -> None:
    c = context([" kingdom", "??"])
    assert torch.equal(make("description", c, text="man of")[0], c.existing[3])
    rows = make("description", c, text={" kingdom": " kingdom", "??": " king"})
    assert torch.equal(rows[0], c.existing[[1, 5]].mean(0)) and torch.equal(rows[1], c.existing[1])
    with pytest.raises(InvalidArgumentError, match="text= is missing"):
        make("description", c)


def test_mean_cov_is_the_covariance_free_draw_and_says_what_it_moved() -> None:
    c = context(["??"] * 3)
    expected = gaussian_rows(c.existing, 3, scale=1e-2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(make("mean_cov", c, scale=1e-2), expected) and "moved_apart" not in c.report
    low = context(["??"] * 40, width=4, dtype=torch.bfloat16)
    rows = make("mean_cov", low, scale=1e-9).to(torch.bfloat16)
    assert len(torch.unique(rows.float(), dim=0)) == 40
    assert low.report["moved_apart"] > 0
    mean = low.existing.float().mean(0)
    assert (rows.float() - mean).abs().max() < 0.05 * mean.abs().max()  # a few units in the last place


def vectors(width: int, weight: torch.Tensor, table: torch.Tensor) -> PretrainedVectors:
    """Vectors from which `table[i] = x @ weight + 1` exactly, and of two more words."""
    x = (table - 1) @ torch.linalg.pinv(weight)
    more = torch.randn(2, width, generator=torch.Generator().manual_seed(5))
    words = ["king", "man", "of", "kingdom", "queen"]
    return PretrainedVectors(words, torch.cat([x[[1, 2, 3]], more]), "made up")


def test_pretrained_map_finds_the_map_that_there_is() -> None:
    generator = torch.Generator().manual_seed(3)
    words = [f"w{i}" for i in range(60)]
    x = torch.randn(62, 5, generator=generator)
    weight = torch.randn(5, 8, generator=generator)
    table = x[:60] @ weight + 2.0
    source = PretrainedVectors([*words, "queen", "Frodo"], x, "made up")
    c = context([" queen", " Frodo", " nowhere"], existing=table, vectors=source, tokenize=None)
    c.existing_tokens = ["Ġ" + w for w in words]
    c.tokenize = lambda text: [0]
    rows = make("pretrained_map", c)
    torch.testing.assert_close(rows[:2], x[60:] @ weight + 2.0, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(rows[2], table.mean(0))
    assert c.report["shared_tokens"] == 60
    assert c.report["variance_explained"] == pytest.approx(1.0, abs=1e-6)
    assert c.report["without_source"] == [" nowhere"]


@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_least_squares_says_what_its_map_explains(ridge: float) -> None:
    generator = torch.Generator().manual_seed(3)
    x, noise = (torch.randn(200, n, generator=generator).double() for n in (5, 3))
    y, rows = x[:, :3] + noise, torch.arange(200)
    x_mean, y_mean, weight, explained = least_squares(x, rows, y, rows, ridge=ridge)
    left = y - y_mean - (x - x_mean) @ weight
    assert explained == pytest.approx(1 - float(left.square().sum() / (y - y.mean(0)).square().sum()))


def test_pretrained_map_with_few_shared_tokens_is_finite_and_fits_them() -> None:
    c = context([" kingdom"], vectors=vectors(6, torch.randn(6, 8), torch.randn(6, 8)))
    rows = make("pretrained_map", c)
    assert torch.isfinite(rows).all() and c.report["shared_tokens"] == 3
    assert c.report["variance_explained"] == pytest.approx(1.0, abs=1e-6)  # three points, six dimensions
    c.usable_ids = torch.tensor([0, 1])
    with pytest.raises(InvalidArgumentError, match=r"'made up' has 1 of the 6 old tokens"):
        make("pretrained_map", c)


@pytest.mark.parametrize("record", list_initializers(purpose="rows"), ids=lambda r: r.name)
def test_every_row_initializer_keeps_to_its_generator(record, global_rng_untouched) -> None:
    options = {"copy": {"of": "Ġman"}, "description": {"text": "man of"}}.get(record.name, {})
    words = PretrainedVectors(
        ["king", "man", "of"], torch.randn(3, 4, generator=torch.Generator().manual_seed(2)), "v"
    )
    contexts = [context([" king", " kingdom"], vectors=words) for _ in range(3)]
    made = [record.fn(one, **options) for one in contexts[:2]]
    assert made[0].shape == (2, 8) and made[0].dtype == torch.float32
    assert torch.equal(made[0], made[1]) and torch.isfinite(made[0]).all()
    with default_dtype(torch.bfloat16):
        assert torch.equal(record.fn(contexts[2], **options), made[0])


def test_vectors_that_are_not_finite_are_named_by_a_map() -> None:
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    rows[1] = float("nan")
    vectors = PretrainedVectors(["king", "man", "of", "d"], rows, "mine")
    with pytest.raises(InvalidArgumentError, match="the row of token 'Ġman' in 'mine' is not finite"):
        make("pretrained_map", context([" d"], vectors=vectors))
