"""Models that keep ids, or tables of text, in places of their own: these follow, or it is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from builders.tiny_models import SEQ2SEQ
from builders.tiny_tokenizers import texts
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import M2M100Tokenizer, PreTrainedTokenizerFast
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

import hf_embinit
from hf_embinit.errors import InvalidArgumentError, UnsupportedModelError, VocabularyWarning

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
ROLES = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
HALF = [f"w{i}" for i in range(0, 90, 2)]
TEXT = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SEAMLESS = {
    **{
        f"{part}_layers": 1 for part in ("encoder", "decoder", "speech_encoder", "t2u_encoder", "t2u_decoder")
    },
    **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 32 for part in ("encoder", "decoder")},
}


def words(size: int, *extra: str, special: tuple[str, ...] = SPECIAL) -> Any:
    """A tokenizer of words: special tokens, `w0`, `w1`, ..., and further special ones at the end."""
    names = [*special, *(f"w{i}" for i in range(size - len(special) - len(extra))), *extra]
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(name, special=True) for name in (*special, *extra)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, **ROLES)


def built(name: str, config: Any) -> Any:
    """A model of transformers with random weights."""
    torch.manual_seed(0)
    return getattr(transformers, name)(config).eval()


def llama(size: int, **generation: Any) -> Any:
    m = built("LlamaForCausalLM", transformers.LlamaConfig(vocab_size=size, **TEXT, **IDS))
    for name, value in generation.items():
        setattr(m.generation_config, name, value)
    return m


@pytest.mark.parametrize(
    ("field", "value"),
    [("bad_words_ids", [[99]]), ("sequence_bias", [[[99], -5.0]]), ("suppress_tokens", [99])],
)
def test_lists_without_any_token_left_become_none(field: str, value: Any) -> None:
    """`generate` refuses an empty list."""
    m, t = llama(100, **{field: value}), words(100, "<gone>")
    hf_embinit.replace_tokenizer(m, t, words(80))
    assert getattr(m.generation_config, field) is None
    m.generate(torch.tensor([[5, 6]]), max_new_tokens=2)


@pytest.mark.parametrize("named", ["image_token_id", "decoder_start_token_id"])
def test_a_row_that_a_configuration_names_is_given_to_no_new_token(named: str) -> None:
    m, t = llama(128), words(100)
    setattr(m.config, named, 101)
    before = m.get_input_embeddings().weight.clone()
    with pytest.raises(InvalidArgumentError, match=rf"LlamaConfig.{named} names id 101, which the tokenizer"):
        hf_embinit.expand_vocabulary(m, t, ["<a>", "<b>"], prefixes=())
    assert len(t) == 100 and torch.equal(m.get_input_embeddings().weight, before)
    t.add_tokens(["<first>", "<image>"])
    hf_embinit.expand_vocabulary(m, t, ["<a>"], prefixes=())
    assert t.convert_tokens_to_ids("<a>") == 102


@pytest.mark.needs("transformers>=5.16")
def test_languages_and_subwords_of_seamless_move() -> None:
    t = words(100, "__deu__", "__eng__")
    config = transformers.SeamlessM4TConfig(
        vocab_size=100, t2u_vocab_size=64, hidden_size=32, max_position_embeddings=64, **SEAMLESS, **IDS
    )
    m = built("SeamlessM4TForTextToText", config)
    m.generation_config.text_decoder_lang_to_code_id = {"deu": 98, "eng": 99}
    m.generation_config.id_to_text = {str(i): token for token, i in t.get_vocab().items()}
    for change, other in (("prune", t), ("replace", words(60, "__eng__", "__deu__"))):
        model, own = copy.deepcopy(m), copy.deepcopy(t)
        if change == "prune":
            hf_embinit.prune_vocabulary(model, own, HALF)
        else:
            hf_embinit.replace_tokenizer(model, own, other)
            own = other
        told = model.generation_config.text_decoder_lang_to_code_id
        assert told == {name: own.convert_tokens_to_ids(f"__{name}__") for name in ("deu", "eng")}
        assert model.generation_config.id_to_text == {str(i): k for k, i in own.get_vocab().items()}


@pytest.mark.needs("transformers>=5.16")
@pytest.mark.parametrize(("family", "name"), [("OwlViT", "OwlViTModel"), ("Owlv2", "Owlv2Model")])
def test_what_always_pools_at_the_highest_id_takes_no_id_behind_the_end(family: str, name: str) -> None:
    t = words(100, "<s>", "</s>", special=("<pad>", "<unk>"))
    text = {**TEXT, "vocab_size": 100, "pad_token_id": 0, "bos_token_id": 98, "eos_token_id": 99}
    vision = {**TEXT, "image_size": 32, "patch_size": 16}
    config = getattr(transformers, f"{family}Config")(
        text_config=text, vision_config=vision, projection_dim=32
    )
    m = built(name, config)
    with pytest.raises(UnsupportedModelError, match=r"pools a text at its highest id.*slots="):
        hf_embinit.expand_vocabulary(m, t, ["<obj>"])
    with pytest.raises(UnsupportedModelError, match="finds tokens by their number"):
        hf_embinit.replace_tokenizer(m, t, words(100))
    assert hf_embinit.doctor(m, t) == []
    m.text_model.embeddings.token_embedding.weight.data = torch.randn(101, 32)
    t.add_tokens(["<obj>"])
    assert "pooled_at_another_token" in {finding.code for finding in hf_embinit.doctor(m, t)}


def test_positions_that_are_made_from_the_padding_keep_it() -> None:
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    sizes = {"d_model": 32, "ffn_dim": 32, "num_layers": 1, "attention_heads": 2}
    m = built("XGLMForCausalLM", transformers.XGLMConfig(vocab_size=100, **sizes, **ids))
    t = words(100, special=("<s>", "<pad>", "</s>", "<unk>"))
    with pytest.raises(UnsupportedModelError, match="makes positions from its padding id 1, which would be"):
        hf_embinit.replace_tokenizer(m, t, words(80, special=("<s>", "x", "<pad>", "</s>", "<unk>")))
    hf_embinit.replace_tokenizer(m, t, words(80, special=("<s>", "<pad>", "<unk>", "</s>")))


@torch.no_grad()
def test_what_chameleon_made_of_its_map_is_made_anew(tmp_path: Path) -> None:
    images = [f"IMGIMG{letters}Z" for letters in ("A", "B", "C", "D")]
    t = words(100, "<image>", *images)
    codes = {
        **{"embed_dim": 8, "num_embeddings": 16, "resolution": 32, "base_channels": 32, "latent_channels": 8},
        **{"channel_multiplier": [1, 1], "num_res_blocks": 1},
    }
    config = transformers.ChameleonConfig(
        vocab_size=100, vocabulary_map={name: t.convert_tokens_to_ids(name) for name in ("<image>", *images)},
        vq_config=codes, **TEXT, **IDS, num_key_value_heads=2,
    )  # fmt: skip
    m = built("ChameleonForConditionalGeneration", config)
    ids = t("<s> w0 w2 w4", return_tensors="pt").input_ids
    before = m(input_ids=ids).logits  # fills the caches of the map
    report = hf_embinit.prune_vocabulary(m, t, HALF)
    assert m.model.vocabulary_mapping.image_token_id == t.convert_tokens_to_ids("<image>") != 95
    after = m(input_ids=t("<s> w0 w2 w4", return_tensors="pt").input_ids).logits
    torch.testing.assert_close(after, before[..., report.old_ids])
    m.save_pretrained(tmp_path)
    again = type(m).from_pretrained(tmp_path).eval()
    assert again.model.vocabulary_mapping.image_token_id == m.model.vocabulary_mapping.image_token_id


def test_bark_s_text_is_refused() -> None:
    from transformers.models.bark import BarkSemanticConfig, BarkSemanticModel

    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "block_size": 64}
    config = BarkSemanticConfig(input_vocab_size=300, output_vocab_size=60, **sizes)
    for change in (
        lambda m, t: hf_embinit.prune_vocabulary(m, t, HALF),
        lambda m, t: hf_embinit.expand_vocabulary(m, t, ["<a>"], prefixes=()),
        lambda m, t: hf_embinit.replace_tokenizer(m, t, words(80)),
    ):
        with pytest.raises(UnsupportedModelError, match="at its id plus text_encoding_offset"):
            change(BarkSemanticModel(config), words(100))


def test_an_image_token_beyond_the_vocabulary_is_no_strange_tokenizer() -> None:
    """As published: Mllama's `<|image|>` has the first of the eight rows that its head lacks."""
    t = words(101, "<|image|>")
    text = {**TEXT, **IDS, "vocab_size": 100, "num_hidden_layers": 2, "cross_attention_layers": [1]}
    vision = {
        **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_global_layers": 1},
        **{"attention_heads": 2, "image_size": 28, "patch_size": 14, "vision_output_dim": 64},
        **{"intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1]], "max_num_tiles": 1},
    }
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4}
    text["num_key_value_heads"] = 2
    config = transformers.MllamaConfig(text_config=text, vision_config=vision, image_token_index=100)
    m = built("MllamaForConditionalGeneration", config)
    for change in (
        lambda: hf_embinit.expand_vocabulary(m, t, ["<a>"], prefixes=()),
        lambda: hf_embinit.prune_vocabulary(m, t, HALF),
        lambda: hf_embinit.replace_tokenizer(m, t, words(80, "<|image|>")),
    ):
        with pytest.raises(UnsupportedModelError, match=r"has 8 rows beyond its vocabulary of 100.*as 100"):
            change()
    codes = {finding.code for finding in hf_embinit.doctor(m, t)}
    assert not codes & {"configured_id_beyond_rows", "ids_beyond_rows"}


@pytest.mark.needs("transformers>=5.16")
@torch.no_grad()
def test_moshi_s_depth_decoder_reads_text_too(tmp_path: Path) -> None:
    t = words(100)
    common = {
        **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2},
        **{"head_dim": 16, "ffn_dim": 64, "audio_vocab_size": 64, "num_codebooks": 2, "vocab_size": 100},
    }
    audio = {
        **{"model_type": "mimi", "hidden_size": 32, "num_hidden_layers": 1, "num_filters": 4},
        **{"num_residual_layers": 1, "upsampling_ratios": [4, 2], "codebook_size": 64, "codebook_dim": 16},
        **{"vector_quantization_hidden_dimension": 16, "intermediate_size": 32, "num_attention_heads": 2},
        **{"num_key_value_heads": 2, "upsample_groups": 4},
    }
    config = transformers.MoshiConfig(
        **common, audio_encoder_config=audio, depth_decoder_config={**common, "input_size": 32}
    )
    m = built("MoshiForConditionalGeneration", config)

    def depth(model: Any, i: int) -> torch.Tensor:
        hidden = torch.ones(1, 1, 32)
        return model.depth_decoder(input_ids=torch.tensor([[i, 5]]), last_hidden_state=hidden).logits

    before = depth(m, t.convert_tokens_to_ids("w40"))
    hf_embinit.prune_vocabulary(m, t, HALF)
    assert torch.equal(depth(m, t.convert_tokens_to_ids("w40")), before)
    hf_embinit.expand_vocabulary(m, t, ["<a>"], prefixes=())
    depth(m, t.convert_tokens_to_ids("<a>"))
    assert m.config.depth_decoder_config.vocab_size == m.config.vocab_size == len(t)
    m.save_pretrained(tmp_path)
    assert torch.equal(depth(type(m).from_pretrained(tmp_path).eval(), 7), depth(m, 7))


def test_a_new_token_behind_whisper_s_times_is_said() -> None:
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "num_mel_bins": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    more = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "decoder_start_token_id": 2}
    config = transformers.WhisperConfig(vocab_size=100, **sizes, **heads, **more, **IDS)
    m = built("WhisperForConditionalGeneration", config)
    m.generation_config.no_timestamps_token_id = 90
    with pytest.warns(VocabularyWarning, match=r"reads ids behind 90 as times, a new token too.*slots="):
        hf_embinit.expand_vocabulary(m, words(100), ["<a>"], prefixes=())


def test_languages_that_are_no_tokens_keep_their_rows(tmp_path) -> None:
    """An M2M100Tokenizer of its two files alone numbers languages behind its vocabulary, in Python."""
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text.txt").write_text("\n".join(texts()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "sp"), vocab_size=100, minloglevel=2
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sp.model"))
    names = ["<s>", "<pad>", "</s>", "<unk>", *(pieces.id_to_piece(i) for i in range(3, 100))]
    (tmp_path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(names)}))
    files = str(tmp_path / "vocab.json"), str(tmp_path / "sp.model")
    languages = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    rows = len(names) + len(languages) + 8
    m = built("M2M100ForConditionalGeneration", transformers.M2M100Config(**{**SEQ2SEQ, "vocab_size": rows}))
    bare = M2M100Tokenizer(*files)
    grown = copy.deepcopy(bare)
    grown.add_tokens(["zyxomma"])
    for change in (
        lambda: hf_embinit.expand_vocabulary(m, bare, ["zyxomma"], prefixes=()),
        lambda: hf_embinit.replace_tokenizer(m, bare, grown),
    ):
        with pytest.raises(InvalidArgumentError, match=r"lang_[a-z_]+ names id 101, .*additional_special"):
            change()
    codes = [finding.code for finding in hf_embinit.doctor(m, bare)]
    assert "id_without_token" in codes and m.config.vocab_size == rows

    listed = M2M100Tokenizer(*files, additional_special_tokens=languages)
    assert "id_without_token" not in [finding.code for finding in hf_embinit.doctor(m, listed)]
    row = m.get_input_embeddings().weight[listed.get_lang_id("af")].clone()
    report = hf_embinit.expand_vocabulary(m, listed, ["zyxomma"], prefixes=())
    assert report.token_ids == [len(names) + len(languages)]
    assert torch.equal(m.get_input_embeddings().weight[listed.get_lang_id("af")], row)
