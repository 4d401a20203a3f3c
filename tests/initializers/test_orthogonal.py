"""Rows turned out of the positions' way: every claim of the algebra, the report, and what is refused."""

from __future__ import annotations

import hashlib
import json
import math

import pytest
import torch
from scipy import stats
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

import hf_embinit
from hf_embinit.errors import InvalidArgumentError
from hf_embinit.initializers import InitContext, InputPositions, get_initializer, turned_away
from hf_embinit.initializers.orthogonal import QUIET, smallest_turn
from hf_embinit.measures import position_encoding
from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerTokenizer,
)
from hf_embinit.moments import standardize, xavier_bound, xavier_std
from hf_embinit.vectors import PretrainedVectors

V, D, P = 500, 64, 20
STD = 0.06


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uneven(v: int = V, d: int = D) -> torch.Tensor:
    """Rows with a mean of their own and directions of very different energy, at mean 0 and sd `STD`."""
    g = generator(5)
    basis = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=g))[0]
    spread = torch.linspace(0.2, 3, d, dtype=torch.float64)
    rows = torch.randn(v, d, dtype=torch.float64, generator=g) * spread @ basis
    return standardize(rows + 0.7 * torch.randn(d, dtype=torch.float64, generator=g), 0.0, STD)


def turned(turn: str = "least", empty: bool = False, rows: torch.Tensor | None = None, positions: int = P):
    return turned_away(
        uneven() if rows is None else rows,
        position_encoding(positions, D),
        turn=turn,
        energy=0.9999,
        empty=empty,
        generator=generator(),
    )


def cosines(x: torch.Tensor) -> torch.Tensor:
    units = torch.nn.functional.normalize(x, dim=1)
    return units @ units.T


@pytest.mark.parametrize("turn", ["least", "most", "random", "none"])
def test_a_turn_keeps_every_inner_product_and_has_an_exact_inverse(turn) -> None:
    rows, channel = uneven(), turned(turn)
    torch.testing.assert_close(channel.rows @ channel.rows.T, rows @ rows.T, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(cosines(channel.rows.float()), cosines(rows.float()), atol=1e-6, rtol=0)
    torch.testing.assert_close(channel.rows @ channel.map.T, rows, atol=1e-12, rtol=0)
    eye = torch.eye(D, dtype=torch.float64)
    torch.testing.assert_close(channel.map @ channel.map.T, eye, atol=1e-12, rtol=0)


@pytest.mark.parametrize("empty", [True, False])
@pytest.mark.parametrize("turn", ["least", "most", "random", "none"])
def test_mean_and_deviation_are_those_of_eq_1_in_float64(turn, empty) -> None:
    rows = turned(turn, empty).rows
    assert rows.dtype == torch.float64
    assert abs(float(rows.mean())) < 1e-15
    assert float(rows.std()) == pytest.approx(STD, rel=1e-12)


def test_the_channel_gets_the_least_and_the_control_the_most_of_the_energy() -> None:
    rows = uneven()
    energies = torch.linalg.eigvalsh(rows.T @ rows)
    r = len(turned().basis)
    share = {turn: turned(turn).share_turned for turn in ("least", "most", "random", "none")}
    assert share["least"] == pytest.approx(float(energies[:r].sum() / energies.sum()), rel=1e-9)
    assert share["most"] == pytest.approx(float(energies[-r:].sum() / energies.sum()), rel=1e-9)
    assert share["least"] < 0.02 < share["random"] < 0.3 < share["most"]
    assert share["none"] == pytest.approx(turned("none").share_before, rel=1e-9)


@pytest.mark.parametrize("turn", ["least", "random", "none"])
def test_the_emptied_channel_holds_nothing_and_the_rest_is_as_it_was(turn) -> None:
    rows, channel = uneven(), turned(turn, empty=True)
    inside = channel.rows.float() @ channel.basis.float().T
    assert float(inside.square().sum() / channel.rows.square().sum()) < 1e-6
    # turned back, it is the table without the directions that gave way, longer by one factor
    gone = channel.basis @ channel.map.T
    rest = rows - rows @ gone.T @ gone
    factor = float(channel.rows.norm() / rest.norm())
    torch.testing.assert_close(channel.rows @ channel.map.T, factor * rest, atol=1e-12, rtol=0)
    assert factor == pytest.approx((1 - channel.share_turned) ** -0.5, rel=1e-9)


@pytest.mark.parametrize("position_scale", [1.0, 1e-3])
def test_every_position_is_read_from_the_sum_by_a_linear_map(position_scale) -> None:
    """However short the positions are, once the channel is empty; not from rows that fill it."""
    encodings = position_scale * position_encoding(P, D).double()
    which = torch.randint(P, (V,), generator=generator())

    def read(channel) -> float:
        inside, centers = (x @ channel.basis.T for x in (channel.rows * 8 + encodings[which], encodings))
        scores = inside @ centers.T - centers.square().sum(1) / 2
        return float((scores.argmax(1) == which).double().mean())

    assert read(turned(empty=True)) == 1.0
    if position_scale < 1:
        assert read(turned("most")) < 0.2


def test_the_cosine_of_two_sums_follows_from_words_and_positions_alone() -> None:
    """Nothing of one is in the other: (cos + r s c) / sqrt((1 + r^2) (1 + s^2)), with lengths r, s."""
    channel = turned(empty=True)
    words = channel.rows * 8
    encodings = 0.3 * position_encoding(P, D).double() @ channel.basis.T @ channel.basis
    which = torch.randint(P, (V,), generator=generator())
    ratio = encodings[which].norm(dim=1) / words.norm(dim=1)
    between = cosines(encodings)[which][:, which]
    lengths = torch.sqrt(1 + ratio**2)
    expected = (cosines(words) + torch.outer(ratio, ratio) * between) / torch.outer(lengths, lengths)
    torch.testing.assert_close(cosines(words + encodings[which]), expected, atol=1e-9, rtol=0)
    # the bound behind the recommended position_scale, for rows of one length
    assert QUIET**2 / (1 + QUIET**2) < 0.06


def test_moved_positions_and_a_concatenation_are_this_sum_in_another_basis() -> None:
    """The two alternatives that the page of the study leaves out."""
    rows, positions = uneven(), position_encoding(P, D).double()
    which = torch.randint(P, (V,), generator=generator())
    channel = turned()
    r = len(channel.basis)
    moved = positions @ channel.map.T  # the table as it is, and the positions in its least used directions
    least = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, :r]
    assert float((moved @ least).square().sum() / moved.square().sum()) > 0.9999
    turned_sum = channel.rows + positions[which]
    torch.testing.assert_close((rows + moved[which]) @ channel.map, turned_sum, atol=1e-12, rtol=0)

    emptied = turned(empty=True)
    inside = positions @ emptied.basis.T  # [P, r]; all but a ten-thousandth of their energy
    others = torch.linalg.svd(emptied.basis).Vh[r:]  # [D - r, D], at right angles to the positions
    both = (emptied.rows + inside[which] @ emptied.basis) @ torch.cat([others, emptied.basis]).T
    side_by_side = torch.cat([emptied.rows @ others.T, inside[which]], dim=1)
    torch.testing.assert_close(both, side_by_side, atol=1e-12, rtol=0)


def test_the_turn_is_the_smallest_and_depends_on_the_spans_alone() -> None:
    g = generator()
    a, b = (torch.linalg.qr(torch.randn(D, 7, dtype=torch.float64, generator=g))[0].T for _ in range(2))
    turn = smallest_turn(a, b)
    torch.testing.assert_close(a @ turn @ b.T @ b, a @ turn, atol=1e-12, rtol=0)  # into b's span
    torch.testing.assert_close(a @ turn @ (a @ turn).T, torch.eye(7, dtype=torch.float64), atol=1e-12, rtol=0)
    mixed = torch.linalg.qr(torch.randn(7, 7, dtype=torch.float64, generator=g))[0]
    torch.testing.assert_close(smallest_turn(mixed @ a, b), turn, atol=1e-12, rtol=0)
    for _ in range(20):
        other = a.T @ torch.linalg.qr(torch.randn(7, 7, dtype=torch.float64, generator=g))[0] @ b
        assert float(other.trace()) < float(turn.trace())  # farther from the identity


def test_odd_tables() -> None:
    centered = uneven() - uneven().mean(0)  # nothing to turn to sum 0
    for empty in (True, False):
        assert abs(float(turned(rows=centered, empty=empty).rows.mean())) < 1e-15
    thin = turned(rows=standardize(uneven()[:3], 0.0, STD), empty=True)  # fewer rows than dimensions
    assert torch.isfinite(thin.rows).all() and float(thin.rows.std()) == pytest.approx(STD)
    alone = uneven() * 0 + STD * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(D // 2)
    assert abs(float(turned("most", rows=alone).rows.mean())) < 1e-12  # one direction, along the positions
    with pytest.raises(InvalidArgumentError, match=r"5000 positions take \d+ of 8 dimensions.*positions="):
        turned_away(
            torch.randn(9, 8), position_encoding(5000, 8), turn="least", energy=1.0, empty=True,
            generator=generator(),
        )  # fmt: skip


# the registered initialiser


def vectors(tokens: list[str], d: int = D) -> PretrainedVectors:
    return PretrainedVectors(tokens, 40 * uneven(len(tokens), d).float() + 0.1, name="test")


def context(**fields) -> InitContext:
    words = [f"w{i}" for i in range(V)]
    values = {
        "num_rows": V,
        "embedding_dim": D,
        "num_embeddings": V,
        "generator": generator(),
        "tokens": words,
        "vectors": vectors(words[:400]),
        "positions": InputPositions(position_encoding(100, D), math.sqrt(D)),
    }
    return InitContext(**{**values, **fields})


def test_found_rows_have_xavier_s_moments_and_missing_ones_keep_clear_too() -> None:
    made, sigma = context(), xavier_std(V, D)
    rows = get_initializer("glove_orthogonal").fn(made)
    found, missing = rows[:400], rows[400:]
    assert found.mean().item() == pytest.approx(0, abs=1e-9)
    assert found.std().item() == pytest.approx(sigma, rel=1e-6)
    assert missing.std().item() == pytest.approx(sigma, rel=0.03)
    uniform = stats.kstest(found.flatten(), stats.uniform(-xavier_bound(V, D), 2 * xavier_bound(V, D)).cdf)
    assert uniform.pvalue < 1e-6
    channel = made.report["channel"]
    assert channel["energy_before"] > 0.1 > channel["energy_turned"] > 0.01 > 1e-12 > channel["energy_after"]
    basis = turned(positions=64).basis.float()
    assert channel["dimensions"] == len(basis)
    for part in (found, missing):
        assert float((part @ basis.T).square().sum() / part.square().sum()) < 1e-6


def test_turned_only_is_the_standardized_table_in_another_basis() -> None:
    sigma = xavier_std(V, D)
    made = context()
    rows = get_initializer("glove_orthogonal").fn(made, empty=False)
    expected = get_initializer("glove_xavier").fn(context())
    back = rows[:400].double() @ made.report["map"].T
    torch.testing.assert_close(back.float(), expected[:400], atol=1e-7, rtol=0)
    torch.testing.assert_close(rows[400:], expected[400:])
    bound = xavier_bound(V, D)
    assert stats.kstest(rows[400:].flatten(), stats.uniform(-bound, 2 * bound).cdf).pvalue > 0.01
    assert stats.kstest(rows[400:].flatten(), stats.norm(0, sigma).cdf).pvalue < 1e-6
    unmoved = get_initializer("glove_orthogonal").fn(context(), turn="none", empty=False)
    torch.testing.assert_close(unmoved, expected, atol=1e-8, rtol=0)


def test_the_random_map_is_of_the_generator() -> None:
    fn = get_initializer("glove_orthogonal").fn
    one, same, other = (
        fn(context(generator=generator(seed)), turn="random", empty=False)[:400] for seed in (1, 1, 2)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_the_recommended_scale_makes_positions_a_quarter_as_long_as_rows() -> None:
    for scale in (math.sqrt(D), 1.0, 3.0):
        made = context(positions=InputPositions(position_encoding(100, D), scale, 0.5))
        rows = get_initializer("glove_orthogonal").fn(made, positions=30)
        channel = made.report["channel"]
        words = scale * rows[:400].norm(dim=1).square().mean().sqrt()
        positions = channel["position_scale"] * position_encoding(30, D).norm(dim=1).square().mean().sqrt()
        assert float(positions / words) == pytest.approx(0.25, rel=1e-3)
        assert channel["position_scale_now"] == 0.5
        assert channel["position_length_now"] == pytest.approx(
            0.5 * float(positions / words) / channel["position_scale"], rel=1e-3
        )


@pytest.mark.parametrize(
    ("rows", "width", "quoted"),
    [(8000, 300, "2.6"), (1042, 128, "1.5"), (789, 128, "1.3"), (9520, 300, "2.9")],
)
def test_how_long_positions_are_beside_words_in_xavier_s_table(rows: int, width: int, quoted: str) -> None:
    """At factor 1 sqrt((V + D) / 4D); quoted in `recipes/results/orthogonal/README.md`."""
    words = math.sqrt(width) * xavier_std(rows, width) * math.sqrt(width)
    positions = position_encoding(64, width).norm(dim=1).square().mean().sqrt()
    assert float(positions) / words == pytest.approx(math.sqrt((rows + width) / (4 * width)), rel=1e-6)
    assert f"{float(positions) / words:.1f}" == quoted


# in a model


@pytest.fixture(scope="module")
def tokenizer() -> VanillaTransformerTokenizer:
    text = " ".join(f"w{i}" for i in range(200))
    return VanillaTransformerTokenizer.build([text], source_lang="en", min_frequency=1)


def new_model(tokenizer, **options) -> VanillaTransformerForSequenceClassification:
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), d_model=D, d_ff=16, num_layers=1, num_heads=2, **options
    )
    return VanillaTransformerForSequenceClassification(config)


def initialize(model, tokenizer, **options):
    source = vectors([f"w{i}" for i in range(190)])
    return hf_embinit.initialize(
        model, "pretrained_orthogonal", tokenizer=tokenizer, vectors=source, **options
    )


def test_report_manifest_and_checkpoint(tokenizer, tmp_path, global_rng_untouched) -> None:
    with torch.random.fork_rng():
        model = new_model(tokenizer, position_scale=0.5)
    report = initialize(model, tokenizer, positions=30)
    (table,) = report.tables
    digest = hashlib.sha256(table.map.numpy().tobytes()).hexdigest()
    assert table.channel["map_sha256"] == digest and table.channel["positions"] == 30
    assert "map" not in json.loads(json.dumps(report.to_dict()))["tables"][0]
    assert "30 positions have" in str(report)
    assert "(the model has 0.5: positions 0.51 times as long as words)" in str(report)
    weight = model.get_input_embeddings().weight
    assert not weight[tokenizer.pad_token_id].any()
    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(loaded.get_input_embeddings().weight, weight)
    (event,) = hf_embinit.read_manifest(tmp_path)
    assert event["tables"][0]["channel"]["map_sha256"] == digest
    plain = hf_embinit.initialize(model, "xavier").to_dict()["tables"][0]
    assert plain["channel"] is None and "channel" not in model.config.embinit[-1]["tables"][0]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("learned", "learns what it adds"),
        ("rotary", "rotates queries and keys"),
        ("relative", "biases attention"),
        ("none", "has no positions"),
    ],
)
def test_a_model_without_fixed_positions_is_refused_with_the_reason(tokenizer, kind, reason) -> None:
    model = new_model(tokenizer, position_encoding=kind)
    before = model.get_input_embeddings().weight.clone()
    with pytest.raises(InvalidArgumentError, match=rf"{reason}.*use 'pretrained_xavier'"):
        initialize(model, tokenizer)
    assert torch.equal(model.get_input_embeddings().weight, before) and model.config.embinit is None


def test_unscaled_embeddings_ask_for_shorter_positions(tokenizer) -> None:
    scaled = initialize(new_model(tokenizer), tokenizer).tables[0]
    bare = initialize(new_model(tokenizer, scale_embeddings=False), tokenizer).tables[0]
    assert torch.equal(scaled.map, bare.map)  # the turn itself does not depend on it
    ratio = scaled.channel["position_scale"] / bare.channel["position_scale"]
    assert ratio == pytest.approx(math.sqrt(D))


def test_models_of_transformers(tokenizer) -> None:
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=len(tokenizer),
            d_model=D,
            encoder_layers=1,
            decoder_layers=1,
            encoder_ffn_dim=8,
            decoder_ffn_dim=8,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            pad_token_id=0,
            decoder_start_token_id=0,
            max_position_embeddings=80,
            scale_embedding=True,
        )
    )
    report = initialize(marian, tokenizer)
    channel = report.tables[0].channel
    assert channel["energy_after"] < 1e-12 and channel["position_scale_now"] is None
    length = f"{channel['position_length_now']:.2g}"
    assert f"the model has no position_scale and leaves positions {length} times as long" in str(report)
    sines = marian.model.encoder.embed_positions.weight[:64]
    rows = marian.get_input_embeddings().weight[1:]
    basis = turned_away(
        rows.detach(), sines, turn="none", energy=0.9999, empty=False, generator=generator()
    ).basis
    assert float((rows.double() @ basis.T).square().sum() / rows.double().square().sum()) < 1e-6
    with pytest.raises(InvalidArgumentError, match=r"positions=81 is more than the 80 of the model"):
        initialize(marian, tokenizer, positions=81)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=D, n_layer=1, n_head=2))
    with pytest.raises(InvalidArgumentError, match="GPT2LMHeadModel is not known to add fixed sines"):
        initialize(gpt2, tokenizer)


def test_rows_beside_an_old_table_are_refused(tokenizer) -> None:
    with pytest.raises(InvalidArgumentError, match=r"turns a whole table.*'mean'"):
        get_initializer("glove_orthogonal").fn(context(existing=torch.randn(3, D)))
    model = new_model(tokenizer)
    source = vectors([f"w{i}" for i in range(190)])
    hf_embinit.patch(model, "pretrained_orthogonal", vectors=source, tokenizer=tokenizer)
    with pytest.raises(InvalidArgumentError, match=r"turns a whole table.*'mean'"):
        model.resize_token_embeddings(len(tokenizer) + 3)  # rows of no token, which no vectors have


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"positions": 0}, "positions=0: expected a whole number of 1 or more"),
        ({"positions": 2.5}, "positions=2.5: expected a whole number"),
        ({"positions": 6000}, "positions=6000 is more than the 5000 of the model"),
        ({"energy": 0}, "energy=0: expected a number above 0 and at most 1"),
        ({"turn": "left"}, "turn='left': expected 'least', 'most', 'random' or 'none'"),
        ({"empty": "yes"}, "empty='yes': expected True or False"),
    ],
)
def test_options_that_cannot_work(tokenizer, options, sentence) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        initialize(new_model(tokenizer), tokenizer, **options)


def test_where_positions_take_one_dimension_the_map_stays_orthogonal_or_it_is_refused() -> None:
    identity = torch.eye(8, dtype=torch.float64)
    for seed in range(20):
        rows = standardize(torch.randn(50, 8, generator=generator(seed)) + 0.5)
        one = torch.randn(1, 8, generator=generator(100 + seed))
        done = turned_away(rows, one, turn="most", energy=0.9999, empty=False, generator=generator())
        torch.testing.assert_close(done.map @ done.map.T, identity, atol=1e-9, rtol=0)
        assert abs(float(done.rows.mean())) < 1e-9
    far = standardize(0.1 * torch.randn(50, 8, generator=generator()) + torch.tensor([1.0, -1.0] * 4))
    with pytest.raises(InvalidArgumentError, match="positions take one dimension, and the mean"):
        turned_away(far, torch.ones(1, 8), turn="most", energy=0.9999, empty=False, generator=generator())
