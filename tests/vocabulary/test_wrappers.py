"""Models where people keep them: in sentence-transformers, in pipelines, in vision and speech models."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders.tables import assert_consistent
from builders.tiny_tokenizers import model, tokenizer
from peft import get_peft_model
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    CLIPImageProcessor,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import hf_embinit
from hf_embinit import expand_vocabulary, patch, prune_vocabulary, unpatch
from hf_embinit.errors import UnsupportedModelError, VocabularyWarning
from hf_embinit.tables import EmbeddingTables, unwrap

NEW = ["zyxomma", "qorvex"]
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture
def sentence_transformers():
    return pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")


@pytest.fixture
def folder(tmp_path):
    """A folder of a tiny BERT and its tokenizer, as both kinds of models."""
    t = tokenizer("wordpiece")
    config = BertConfig(vocab_size=len(t), **SMALL, num_labels=1)
    for name, kind in (("encoder", BertModel), ("classifier", BertForSequenceClassification)):
        kind(config).save_pretrained(tmp_path / name)
        t.save_pretrained(tmp_path / name)
    return tmp_path


def test_an_adapter_is_loaded_into_the_model_of_a_sentence_transformer(
    sentence_transformers, folder, tmp_path
) -> None:
    from peft import get_peft_model

    def load():
        return sentence_transformers.SentenceTransformer(str(folder / "encoder"), device="cpu")

    m = load()
    new = expand_vocabulary(m, m.tokenizer, NEW, "mean_cov", prefixes=()).token_ids
    inner = unwrap(m)
    config = hf_embinit.peft_config_for_new_tokens(inner, new, target_modules=["query"])
    trained = get_peft_model(inner, config)
    for name, parameter in trained.named_parameters():
        parameter.data += 0.1 * ("lora_B" in name)
    trained.save_pretrained(str(tmp_path / "adapter"))
    expected = torch.as_tensor(m.encode(["a zyxomma sees a qorvex"]))
    again = load()
    again.tokenizer.add_tokens(NEW)
    loaded = hf_embinit.load_adapter(again, tmp_path / "adapter")
    assert loaded.get_base_model() is unwrap(again)
    assert torch.equal(torch.as_tensor(again.encode(["a zyxomma sees a qorvex"])), expected)


@pytest.mark.parametrize("kind", ["SentenceTransformer", "CrossEncoder"])
def test_sentence_transformers_are_grown_pruned_and_saved_by_themselves(
    sentence_transformers, kind, folder, tmp_path
) -> None:
    load = getattr(sentence_transformers, kind)
    m = load(str(folder / ("encoder" if kind == "SentenceTransformer" else "classifier")), device="cpu")

    def answer(m, text: str) -> torch.Tensor:
        return torch.as_tensor(
            m.encode([text]) if kind == "SentenceTransformer" else m.predict([(text, "a dog")])
        )

    before = answer(m, "a man and a dog")
    report = expand_vocabulary(m, m.tokenizer, NEW, prefixes=())
    assert m.tokenizer("a zyxomma")["input_ids"].count(report.token_ids[0]) == 1
    assert torch.equal(answer(m, "a man and a dog"), before)
    new = answer(m, "a zyxomma sees a qorvex")
    m.save_pretrained(str(tmp_path / "saved"))
    again = load(str(tmp_path / "saved"), device="cpu")
    assert torch.equal(answer(again, "a zyxomma sees a qorvex"), new)
    assert hf_embinit.read_manifest(str(tmp_path / "saved")) or again.config.embinit
    used = {
        i for text in ("a man and a dog", "a zyxomma", "a dog") for i in again.tokenizer(text)["input_ids"]
    }
    rows = prune_vocabulary(again, again.tokenizer, used).new_num_embeddings
    assert rows < 322 and EmbeddingTables(again).vocab_size() == rows
    assert torch.equal(answer(again, "a man and a dog"), before)


@pytest.mark.parametrize("kind", ["SentenceTransformer", "CrossEncoder"])
def test_sentence_transformers_get_another_tokenizer(sentence_transformers, kind, folder, tmp_path) -> None:
    load = getattr(sentence_transformers, kind)
    m = load(str(folder / ("encoder" if kind == "SentenceTransformer" else "classifier")), device="cpu")
    old, new = m.tokenizer, tokenizer("unigram", 400)
    plain = type(unwrap(m))(unwrap(m).config)
    plain.load_state_dict(unwrap(m).state_dict())
    hf_embinit.replace_tokenizer(m, old, new)
    hf_embinit.replace_tokenizer(plain, old, tokenizer("unigram", 400))
    assert m.tokenizer is new
    for name, value in plain.state_dict().items():
        assert torch.equal(unwrap(m).state_dict()[name], value), name
    texts = ["a man and a dog", "a dog"]
    run = m.encode if kind == "SentenceTransformer" else lambda texts: m.predict([tuple(texts)])
    expected = torch.as_tensor(run(texts))
    m.save_pretrained(str(tmp_path / "saved"))
    m = load(str(tmp_path / "saved"), device="cpu")
    assert len(m.tokenizer) == len(new) and torch.equal(torch.as_tensor(run(texts)), expected)


def test_what_cannot_be_given_a_tokenizer_is_refused_untouched() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.words = model("bert", 320), tokenizer("wordpiece")

        @property
        def tokenizer(self):
            return self.words

    m = Holder()
    with pytest.raises(UnsupportedModelError, match="the tokenizer of Holder cannot be set"):
        hf_embinit.replace_tokenizer(m, m.tokenizer, tokenizer("unigram", 400))
    assert EmbeddingTables(m.model).vocab_size() == 320 and not hf_embinit.read_manifest(m.model)


def test_sparse_encoders_are_as_wide_as_their_logits(sentence_transformers, folder, tmp_path) -> None:
    load, t = sentence_transformers.SparseEncoder, tokenizer("wordpiece")
    BertForMaskedLM(BertConfig(vocab_size=len(t), **SMALL)).save_pretrained(folder / "masked")
    t.save_pretrained(folder / "masked")
    m = load(str(folder / "masked"), device="cpu")
    before = m.encode(["a dog"]).to_dense()
    expand_vocabulary(m, m.tokenizer, NEW, prefixes=())
    m.save(str(tmp_path / "grown"))
    for encoder in (m, load(str(tmp_path / "grown"), device="cpu")):
        after = encoder.encode(["a dog"]).to_dense()
        assert encoder.get_embedding_dimension() == after.shape[1] == len(m.tokenizer) == len(t) + 2
        torch.testing.assert_close(after[:, : len(t)], before)
    prune_vocabulary(m, m.tokenizer, ["the", *NEW])
    assert m.get_embedding_dimension() == m.encode(["the"]).shape[1] == len(m.tokenizer)


def test_weights_of_tokens_beside_a_model_are_told(sentence_transformers, folder) -> None:
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

    t = tokenizer("wordpiece")
    BertForMaskedLM(BertConfig(vocab_size=len(t) + 8, **SMALL)).save_pretrained(folder / "masked")
    t.save_pretrained(folder / "masked")
    documents = [*sentence_transformers.SparseEncoder(str(folder / "masked"), device="cpu")]
    assert isinstance(documents[1], SpladePooling)
    router = Router.for_query_document([SparseStaticEmbedding(t)], documents)
    m = sentence_transformers.SparseEncoder(modules=[router], device="cpu")
    with pytest.raises(UnsupportedModelError, match="SparseStaticEmbedding, with a weight for each token"):
        expand_vocabulary(m, m.tokenizer, NEW, prefixes=())
    assert len(m.tokenizer) == len(t)


def test_a_patched_sentence_transformer(sentence_transformers, folder) -> None:
    m = sentence_transformers.SentenceTransformer(str(folder / "encoder"), device="cpu")
    assert patch(m) is m
    m[0].auto_model.resize_token_embeddings(325)
    rows = m[0].auto_model.embeddings.word_embeddings.weight
    torch.testing.assert_close(rows[320:], rows[1:320].mean(0).expand(5, -1))  # row 0 is padding
    unpatch(m)
    assert "resize_token_embeddings" not in vars(m[0].auto_model)


def test_new_tokens_of_a_sentence_transformer_are_trained_alone(sentence_transformers, folder) -> None:
    """The trainer of sentence-transformers, as a user starts it; old rows and layers stay."""
    from datasets import Dataset
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    m = sentence_transformers.SentenceTransformer(str(folder / "encoder"), device="cpu")
    new = expand_vocabulary(m, m.tokenizer, NEW, "mean_cov", prefixes=()).token_ids
    inner = unwrap(m)
    before = {n: p.detach().clone() for n, p in inner.named_parameters()}
    data = Dataset.from_dict({"anchor": ["a zyxomma", "a qorvex"] * 4, "positive": ["a dog", "a man"] * 4})
    loss = MultipleNegativesRankingLoss(m)
    args = sentence_transformers.SentenceTransformerTrainingArguments(
        str(folder / "run"), max_steps=3, learning_rate=1e-2, use_cpu=True, report_to=[], disable_tqdm=True
    )
    with hf_embinit.train_new_rows_only(m, new):
        sentence_transformers.SentenceTransformerTrainer(m, args=args, train_dataset=data, loss=loss).train()
    for name, p in inner.named_parameters():
        if name == "embeddings.word_embeddings.weight":
            assert torch.equal(p[:320], before[name][:320]) and not torch.equal(p[320:], before[name][320:])
        else:
            assert torch.equal(p, before[name]), name


def test_what_holds_a_model_without_being_a_module() -> None:
    t = tokenizer("wordpiece")
    classifier = SimpleNamespace(
        model_body=nn.ModuleDict({"0": BertModel(BertConfig(vocab_size=320, **SMALL))})
    )
    assert expand_vocabulary(classifier, t, NEW, prefixes=()).token_ids == [320, 321]
    assert unpatch(patch(classifier)) is classifier


def test_text_encoders_of_pipelines() -> None:
    t = tokenizer("byte_level")
    config = CLIPTextConfig(vocab_size=len(t), eos_token_id=t.eos_token_id, **SMALL)
    encoder = CLIPTextModel(config).eval()
    ids = torch.tensor([t("a man")["input_ids"] + [t.eos_token_id]])
    before = encoder(ids).last_hidden_state.detach()
    pipeline = SimpleNamespace(text_encoder=encoder, tokenizer=t, unet=nn.Linear(2, 2), vae=nn.Linear(2, 2))
    report = expand_vocabulary(pipeline, t, ["<cat-toy>"], overrides={"<cat-toy>": ("description", "a dog")})
    assert torch.equal(encoder(ids).last_hidden_state, before)
    rows = encoder.get_input_embeddings().weight
    of = tokenizer("byte_level")("a dog")["input_ids"]
    torch.testing.assert_close(rows[report.token_ids[0]], rows[of].mean(0))
    pipeline.text_encoder_2 = CLIPTextModel(config)
    with pytest.raises(UnsupportedModelError, match=r"give one of them \(text_encoder, text_encoder_2\)"):
        patch(pipeline)


def test_an_old_clip_that_pools_at_the_highest_id_names_the_way_out() -> None:
    """It takes the new token for the end of the text, so that nothing behind it counts."""
    t = tokenizer("byte_level")
    t.add_special_tokens({"eos_token": "<end>"})  # the highest id, as in CLIP's own vocabulary

    def grown(eos_token_id: int) -> Any:
        torch.manual_seed(0)
        encoder = CLIPTextModel(CLIPTextConfig(vocab_size=len(t), eos_token_id=eos_token_id, **SMALL)).eval()
        words = copy.deepcopy(t)
        expand_vocabulary(encoder, words, ["<cat-toy>"], prefixes=())
        return encoder, words

    def pooled(encoder: Any, words: Any, text: str) -> torch.Tensor:
        return encoder(torch.tensor([[*words(text)["input_ids"], words.eos_token_id]])).pooler_output

    with pytest.warns(
        VocabularyWarning, match=r"Set (model\S*)\.eos_token_id and \1\.config\.eos_token_id to 320"
    ):
        encoder, words = grown(2)
    two = "a <cat-toy> and a dog", "a <cat-toy> and a man"
    assert torch.equal(*(pooled(encoder, words, text) for text in two))
    assert "pooled_at_another_token" in {f.code for f in hf_embinit.doctor(encoder, words)}
    place = getattr(encoder, "text_model", encoder)  # of transformers 5.0
    place.eos_token_id = place.config.eos_token_id = t.eos_token_id
    new, _ = grown(t.eos_token_id)
    for text in two:
        assert torch.equal(pooled(encoder, words, text), pooled(new, words, text))
    assert not torch.equal(*(pooled(encoder, words, text) for text in two))
    assert "pooled_at_another_token" not in {f.code for f in hf_embinit.doctor(encoder, words)}


def llava():
    text = LlamaConfig(vocab_size=320, num_key_value_heads=2, **SMALL)
    vision = CLIPVisionConfig(image_size=8, patch_size=4, projection_dim=8, **SMALL)
    return LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_id=319)
    )


def qwen2_vl():
    text = {
        "vocab_size": 320,
        "num_key_value_heads": 2,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
    }
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 4}
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config={**text, **SMALL}, vision_config=vision))


def whisper():
    layers = {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    }
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    return WhisperForConditionalGeneration(
        WhisperConfig(vocab_size=320, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, **layers, **ids)
    )


def qwen2_5_omni():
    """Three models in one, of which the first reads text: its `resize_token_embeddings` raises."""
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1]}
    text = {"vocab_size": 320, "num_key_value_heads": 2, "rope_scaling": rope, **SMALL}
    audio = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 16}
    thinker = {"text_config": text, "audio_config": {**audio, "output_dim": 16}, "vision_config": vision}
    m = Qwen2_5OmniForConditionalGeneration(
        Qwen2_5OmniConfig(thinker_config=thinker, talker_config={**SMALL}, enable_audio_output=False)
    )
    with pytest.raises(NotImplementedError):
        m.resize_token_embeddings(322)
    return m


@pytest.mark.parametrize("build", [llava, qwen2_vl, whisper, qwen2_5_omni])
def test_vision_and_speech_models_through_their_processor(build, tmp_path) -> None:
    m, t = build().eval(), tokenizer("byte_level")
    processor = SimpleNamespace(tokenizer=t, image_processor=None)
    old = {table.name: EmbeddingTables(m).read(table).clone() for table in EmbeddingTables(m).own_tables}
    report = expand_vocabulary(m, processor, [" zyxomma", " qorvex"], "mean_cov", prefixes=())
    assert report.token_ids == [320, 321]
    tables = EmbeddingTables(m)
    assert_consistent(tables)
    for table in tables.own_tables:
        assert torch.equal(tables.read(table)[:320], old[table.name])
        assert not torch.equal(tables.read(table)[320], tables.read(table)[321])
    m = getattr(m, "thinker", m)  # a load of the whole Qwen2.5-Omni asks for a file of voices
    m.save_pretrained(tmp_path)
    again = type(m).from_pretrained(tmp_path)
    assert again.config.get_text_config().vocab_size == 322
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in m.state_dict().items())


def test_a_vision_model_loses_tokens_and_keeps_its_image_token() -> None:
    m, t = llava(), tokenizer("byte_level")
    image = t.convert_ids_to_tokens(319)
    row = m.get_input_embeddings().weight[319].detach().clone()
    prune_vocabulary(m, SimpleNamespace(tokenizer=t), t("a man and a dog")["input_ids"])
    assert m.config.image_token_id == t.convert_tokens_to_ids(image) < 319
    assert torch.equal(m.get_input_embeddings().weight[m.config.image_token_id], row)


def test_several_models_and_none_are_refused() -> None:
    two = nn.ModuleDict({"query": model("bert", 320), "document": model("bert", 320)})
    with pytest.raises(UnsupportedModelError, match=r"holds several models: .* \(query, document\)"):
        patch(two)
    for nothing in (nn.Linear(2, 2), SimpleNamespace(), None, "folder"):
        with pytest.raises(UnsupportedModelError, match="neither a transformers model nor a known wrapper"):
            patch(nothing)


def test_a_processor_is_its_tokenizer_to_every_function() -> None:
    words = tokenizer("byte_level")
    words.add_tokens(["<image>"])
    grown = model("gpt2", 321)
    grown.generation_config.eos_token_id = grown.config.eos_token_id = 7
    processor = LlavaProcessor(CLIPImageProcessor(), words, patch_size=14, image_token="<image>")
    ids = expand_vocabulary(grown, processor, ["zyxomma"], prefixes=()).token_ids
    adapted = get_peft_model(grown, hf_embinit.peft_config_for_new_tokens(grown, ids))
    merged = hf_embinit.merge_adapter(adapted, processor)
    assert merged.generation_config.eos_token_id == words.eos_token_id != 7
    assert [event["event"] for event in merged.config.embinit] == ["expand_vocabulary", "merge_adapter"]
    assert hf_embinit.repair(merged, processor, rows=ids) == ids
    hf_embinit.initialize(merged, "xavier", tokenizer=processor)
    corpus = ["qzxjkv qzxjkv qzxjkv"] * 5
    assert hf_embinit.propose_tokens(processor, corpus, 1) == hf_embinit.propose_tokens(words, corpus, 1)


def test_static_embeddings_are_no_model(sentence_transformers) -> None:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    t = tokenizer("wordpiece")
    m = sentence_transformers.SentenceTransformer(modules=[StaticEmbedding(t, embedding_dim=8)], device="cpu")
    with pytest.raises(UnsupportedModelError, match=r"SentenceTransformer.*static embeddings.*vectors="):
        expand_vocabulary(m, t, NEW, prefixes=())
