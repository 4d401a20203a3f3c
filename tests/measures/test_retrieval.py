from __future__ import annotations

import pytest
import torch
from builders.tiny_tokenizers import model, tokenizer

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.measures import mean_pooled, retrieval_accuracy
from hf_embinit.moments import unit_rows


def test_accuracy_is_the_share_of_rows_found() -> None:
    rows = torch.randn(1500, 16, generator=torch.Generator().manual_seed(0))
    assert retrieval_accuracy(rows * 3, rows) == 1.0  # whatever the length
    assert retrieval_accuracy(rows.roll(1, 0), rows) == 0.0
    half = torch.cat([rows[:750], rows[750:].roll(1, 0)])
    assert retrieval_accuracy(half, rows) == 0.5
    drawn = torch.randn(1500, 16, generator=torch.Generator().manual_seed(1))
    assert retrieval_accuracy(drawn, rows) < 0.01


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 3), "expected pairs of rows"),
        (torch.zeros(0, 3), torch.zeros(0, 3), "expected pairs of rows"),
        (torch.full((2, 3), float("nan")), torch.zeros(2, 3), "NaN or infinite"),
    ],
)
def test_what_is_no_pair_of_tables_is_said(a: torch.Tensor, b: torch.Tensor, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        retrieval_accuracy(a, b)


def test_a_mean_leaves_padding_and_order_out() -> None:
    t = tokenizer("wordpiece")
    encoder = model("bert", len(t)).base_model
    texts = ["a dog", "the man runs through the street with a dog", "a", "dog " * 300]
    together = mean_pooled(encoder, t, texts)
    alone = torch.cat([mean_pooled(encoder, t, [text], batch_size=1) for text in texts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    t.padding_side = "left"  # positions would be those of the longest text
    torch.testing.assert_close(mean_pooled(encoder, t, texts), together, atol=1e-6, rtol=1e-6)
    bare = tokenizer("byte_level")
    bare.pad_token = bare.eos_token
    assert not mean_pooled(model("gpt2", len(bare)).base_model, bare, ["", ""]).any()
    ids = torch.tensor([t(texts[0])["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(together[0], encoder(input_ids=ids).last_hidden_state[0].mean(0))


def test_a_text_longer_than_robertas_positions_is_cut_off() -> None:
    from transformers import RobertaConfig, RobertaModel

    t = tokenizer("wordpiece")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    encoder = RobertaModel(
        RobertaConfig(vocab_size=len(t), max_position_embeddings=18, pad_token_id=1, **sizes)
    ).eval()
    states = mean_pooled(encoder, t, ["dog " * 300, "dog " * 14])  # 18 - 2 positions, with [CLS] and [SEP]
    torch.testing.assert_close(states[0], states[1])


def test_an_encoder_without_a_longest_text_reads_all_of_it_without_dropout() -> None:
    from transformers import T5Config, T5EncoderModel

    t = tokenizer("unigram")
    assert t.model_max_length > 1e20
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    encoder = T5EncoderModel(T5Config(vocab_size=len(t), dropout_rate=0.5, **sizes)).train()
    texts = ["a dog " * 300, "a dog"]
    states = mean_pooled(encoder, t, texts)
    assert encoder.training and torch.equal(states, mean_pooled(encoder, t, texts))
    encoder.shared.eval()
    mean_pooled(encoder, t, texts[1:])
    assert encoder.training and not encoder.shared.training  # each module as it was
    with torch.no_grad():
        whole = encoder.eval()(**t(texts[:1], return_tensors="pt")).last_hidden_state[0].mean(0)
    torch.testing.assert_close(states[0], whole, atol=1e-5, rtol=1e-5)


def test_accuracy_is_of_directions_whatever_their_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(30, 6, generator=generator)
    found = queries + 0.5 * torch.randn(30, 6, generator=generator)
    plain = retrieval_accuracy(queries, found)
    assert 0.5 < plain < 1
    for scale in (1e-20, 1e30):
        assert retrieval_accuracy(queries * scale, found * scale) == plain
    assert retrieval_accuracy(queries.double() * 1e60, found.double() * 1e-60) == plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_rows_are_of_length_one_at_any_scale(dtype: torch.dtype) -> None:
    tiny, huge = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    rows = torch.tensor([[3.0, 4.0], [3 * tiny, 4 * tiny], [0.6 * huge, 0.8 * huge], [0.0, 0.0]], dtype=dtype)
    units = unit_rows(rows)
    assert torch.allclose(units[:3], torch.tensor([0.6, 0.8]).expand(3, 2)) and not units[3].any()
    assert units.dtype == torch.float32
    usual = torch.randn(50, 7, generator=torch.Generator().manual_seed(1))
    assert torch.equal(unit_rows(usual), torch.nn.functional.normalize(usual, dim=1))


def test_a_head_is_left_out_and_of_two_halves_the_encoder_is_read() -> None:
    from transformers import BartConfig, BartForConditionalGeneration

    t = tokenizer("wordpiece")
    t.model_input_names = ["input_ids", "attention_mask"]
    texts = ["a dog", "the man runs"]
    whole = model("bert", len(t))
    assert torch.equal(mean_pooled(whole, t, texts), mean_pooled(whole.base_model, t, texts))
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    both = BartForConditionalGeneration(
        BartConfig(vocab_size=len(t), decoder_attention_heads=2, max_position_embeddings=20, **sizes)
    ).eval()
    ids = torch.tensor([t(texts[1])["input_ids"]])
    with torch.no_grad():
        mean = both.get_encoder()(input_ids=ids).last_hidden_state[0].mean(0)
    torch.testing.assert_close(mean_pooled(both, t, texts)[1], mean, atol=1e-5, rtol=1e-5)


def test_what_cannot_be_pooled_is_said() -> None:
    t, bare = tokenizer("wordpiece"), tokenizer("byte_level")
    bare.pad_token = None
    encoder = model("bert", len(t))
    for given, words in (
        ((encoder, bare), "has no padding token, which texts of two lengths need: set one"),
        ((encoder, None), "tokenizer=None: expected a tokenizer"),
        ((None, t), "model=None: expected a model"),
        ((torch.nn.Linear(2, 2), t), "is no model of transformers"),
        ((encoder.to("meta"), t), "is on the meta device"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            mean_pooled(*given, ["a dog"])


def test_only_the_first_of_equal_candidates_is_found_however_products_are_rounded() -> None:
    for width in (48, 53):
        x = torch.randn(4097, width, generator=torch.Generator().manual_seed(width))
        x[4000:4090] = x[7]
        assert retrieval_accuracy(x, x) == pytest.approx(1 - 90 / 4097, abs=1e-6)
