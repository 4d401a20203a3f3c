"""Ids outside the tables: every field of every configuration is known, and all follow when tokens go."""

from __future__ import annotations

import copy
import dataclasses
import re
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders.tiny_models import SMALL
from builders.tiny_tokenizers import logits, model, texts, tokenizer
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from hf_embinit.errors import UnsupportedModelError
from hf_embinit.tables import EmbeddingTables
from hf_embinit.tokens import tokenizer_of
from hf_embinit.vocabulary import prune_vocabulary
from hf_embinit.vocabulary.id_fields import id_fields, is_id_field

LOOKS_LIKE_IDS = re.compile(r"(_id|_ids|_idx|_index|_indices|_tokens?|_to_id|_map|_code)$")
NO_TEXT_TOKENS = re.compile(
    r"layer|channel|block|out_indices|intermediate|projection|head_in_|decode_index|eval_idx|merge_index|altup"
    r"|^(num|max|n|default|pred_num|pred_zero)_|_num_|_max_|per_token|^(no|min)_|ignore|^use_|_use_|_uses_"
    r"|^(codec|tts_codec|codebook|audio_stream|t2u|tag|subs)_"  # of another vocabulary
    r"|^(mask_token|cls_token|lang_id|speaker_id)$"  # switches of vision models, languages, voices
)


def config_classes() -> Iterator[type[PretrainedConfig]]:
    seen: set[type] = set()
    found = [CONFIG_MAPPING[kind] for kind in CONFIG_MAPPING_NAMES if kind in CONFIG_MAPPING]
    while found:
        one = found.pop()
        if one not in seen and dataclasses.is_dataclass(one):
            seen.add(one)
            found += [c for c in getattr(one, "sub_configs", {}).values() if isinstance(c, type)]
            yield one


@pytest.mark.needs("transformers>=5.6")  # before, configurations did not declare their fields
def test_every_field_that_looks_like_ids_is_known() -> None:
    """A name that neither rule knows is a new kind of field: decide which it is."""
    unknown, known = set(), set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for config in config_classes():
            for field in dataclasses.fields(config):
                if is_id_field(field.name):
                    assert not NO_TEXT_TOKENS.search(field.name), field.name
                    known.add(field.name)
                elif LOOKS_LIKE_IDS.search(field.name) and not NO_TEXT_TOKENS.search(field.name):
                    unknown.add(f"{config.__name__}.{field.name}")
    assert not unknown
    assert {"image_token_index", "video_token_index", "audio_token_index", "boi_token_index"} <= known
    assert {"eoi_token_index", "bos_index", "suppress_tokens"} <= known and is_id_field("im_start_id")
    assert len(known) >= 50  # 65 in transformers 5.17


def pruned(m, t, keep=(250, 300)):
    """Token -> id as it was and as it is now, for tokens that stayed."""
    inner = tokenizer_of(t)
    before = inner.get_vocab()
    report = prune_vocabulary(m, t, keep)
    return before, inner.get_vocab(), {old: new for new, old in enumerate(report.old_ids)}


def test_every_kind_of_field_follows() -> None:
    t = tokenizer("byte_level")
    m = model("gpt2", len(t))
    fields = {
        "image_token_index": 301,
        "video_token_id": 302,
        "im_start_id": 303,
        "visual_indicator_token_ids": [304, 305],
        "eos_token_id": [0, 306],
    }
    for name, value in fields.items():
        setattr(m.config, name, value)
    generation = {
        "lang_to_id": {"<|de|>": 307},
        "task_to_id": {"translate": 308},
        "forced_decoder_ids": [[1, 309], [2, None]],
        "suppress_tokens": [310, 311],
        "begin_suppress_tokens": [312],
        "bad_words_ids": [[313, 314]],
        "sequence_bias": [[[315, 316], -1.0]],
    }
    for name, value in generation.items():
        setattr(m.generation_config, name, value)
    m.config.vision_config = PretrainedConfig(image_token_id=317)
    _, _, new = pruned(m, t)
    assert new[301] != 301
    assert m.config.image_token_index == new[301] and m.config.video_token_id == new[302]
    assert m.config.im_start_id == new[303] and m.config.eos_token_id == [new[0], new[306]]
    assert m.config.visual_indicator_token_ids == [new[304], new[305]]
    assert m.config.vision_config.image_token_id == new[317]
    g = m.generation_config
    assert g.lang_to_id == {"<|de|>": new[307]} and g.task_to_id == {"translate": new[308]}
    assert g.forced_decoder_ids == [[1, new[309]], [2, None]]
    assert g.suppress_tokens == [new[310], new[311]] and g.begin_suppress_tokens == [new[312]]
    assert g.bad_words_ids == [[new[313], new[314]]]
    assert g.sequence_bias == [[[new[315], new[316]], -1.0]]


def test_a_nested_configuration_of_another_vocabulary_is_left_alone() -> None:
    t = tokenizer("byte_level")
    m = model("gpt2", len(t))
    m.config.talker_config = PretrainedConfig(vocab_size=4096, eos_token_id=301)
    m.config.codec_eos_token_id = 301
    _, _, new = pruned(m, t)
    assert 301 not in new
    assert m.config.talker_config.eos_token_id == m.config.codec_eos_token_id == 301


def test_a_row_without_a_token_that_a_configuration_names_stays() -> None:
    t = tokenizer("byte_level")
    m = model("gpt2", len(t) + 8)
    m.config.image_token_index = len(t) + 3
    row = m.transformer.wte.weight[len(t) + 3].detach().clone()
    _, vocabulary, _ = pruned(m, t)
    assert m.config.image_token_index == len(vocabulary) == m.config.vocab_size - 1
    assert torch.equal(m.transformer.wte.weight[m.config.image_token_index], row)


def test_whisper_keeps_its_times() -> None:
    t = tokenizer("byte_level")
    m = model("gpt2", len(t))
    m.generation_config.no_timestamps_token_id = 310
    before, _, new = pruned(m, t)
    assert set(range(310, 320)) <= new.keys()
    assert m.generation_config.no_timestamps_token_id == new[310] == max(new.values()) - 9
    assert len(before) == 320


def clip(vocab_size: int, eos: int) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    ids = {"eos_token_id": eos, "bos_token_id": 0, "pad_token_id": 0}
    return seeded(CLIPTextModel, CLIPTextConfig(**{**SMALL, **ids, "vocab_size": vocab_size}))


def roberta(vocab_size: int, pad: int) -> Any:
    from transformers import RobertaConfig, RobertaForMaskedLM

    ids = {"eos_token_id": 0, "bos_token_id": 0, "pad_token_id": pad, "max_position_embeddings": 400}
    return seeded(RobertaForMaskedLM, RobertaConfig(**{**SMALL, **ids, "vocab_size": vocab_size}))


def seeded(cls: type, config: PretrainedConfig) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return cls(config).eval()


def pooled(m, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return m(input_ids=torch.tensor([ids])).pooler_output


@pytest.mark.parametrize("eos", [2, 319], ids=["old checkpoint", "new checkpoint"])
def test_clip_ends_its_texts_where_it_did(eos) -> None:
    t = tokenizer("byte_level")
    m = clip(len(t), eos)
    ids = [0, 250, 300, 319, 5]
    before = pooled(m, ids)
    _, _, new = pruned(m, t, keep=[250, 300, 5])
    assert m.config.eos_token_id == (2 if eos == 2 else new[319])
    torch.testing.assert_close(pooled(m, [new[i] for i in ids]), before)


def test_positions_that_are_counted_from_the_padding_id_stay_or_are_refused() -> None:
    t = tokenizer("unigram")
    m, ids = roberta(len(t), 0), t(texts()[0])["input_ids"]
    before = logits(m, torch.tensor([ids]))
    _, _, new = pruned(m, t, keep=ids)
    after = logits(m, torch.tensor([[new[i] for i in ids]]))
    torch.testing.assert_close(after, before[..., list(new)], atol=1e-5, rtol=1e-5)

    t = tokenizer("unigram")
    m = roberta(len(t), 300)
    state, vocabulary = copy.deepcopy(m.state_dict()), t.get_vocab()
    with pytest.raises(UnsupportedModelError, match="makes positions from its padding id 300"):
        prune_vocabulary(m, t, [250, 301])
    assert t.get_vocab() == vocabulary and m.config.pad_token_id == 300
    assert all(torch.equal(v, state[k]) for k, v in m.state_dict().items())


def test_ids_that_modules_and_tokenizers_keep_follow() -> None:
    t = tokenizer("byte_level")
    m = model("gpt2", len(t))
    m.transformer.question_token_id = 301
    t.cur_lang_code, t.suffix_tokens = 302, [0, 302]
    _, _, new = pruned(m, t)
    assert m.transformer.question_token_id == new[301]
    assert t.cur_lang_code == new[302] and t.suffix_tokens == [new[0], new[302]]


def test_ids_that_a_processor_keeps_follow() -> None:
    t = tokenizer("byte_level")
    m = model("gpt2", len(t))
    kept = {"image_token_id": 301, "image_ids": [302, 303], "row_col_ids": [[304], [305]]}
    others = {"audio_stream_eos_id": 306, "default_use_image_id": True, "num_image_tokens": 307}
    processor = SimpleNamespace(tokenizer=t, image_processor=None, **kept, **others)
    _, _, new = pruned(m, processor)
    assert processor.image_token_id == new[301] and processor.image_ids == [new[302], new[303]]
    assert processor.row_col_ids == [[new[304]], [new[305]]] and not {306, 307} & new.keys()
    assert {name: vars(processor)[name] for name in others} == others


def test_a_saved_processor_finds_its_tokens_again(tmp_path) -> None:
    from transformers import CLIPImageProcessor, LlavaProcessor

    t = tokenizer("byte_level")
    t.add_special_tokens({"additional_special_tokens": ["<image>"]})
    m = model("gpt2", len(t))
    m.config.image_token_index = 320
    processor = LlavaProcessor(CLIPImageProcessor(), t, patch_size=14, image_token="<image>")
    assert processor.image_token_id == 320
    prune_vocabulary(m, processor, [250])
    assert processor.image_token_id == m.config.image_token_index == t.convert_tokens_to_ids("<image>") < 320
    processor.save_pretrained(tmp_path)
    assert LlavaProcessor.from_pretrained(tmp_path).image_token_id == processor.image_token_id


def test_gemma_3n_is_refused() -> None:
    t = tokenizer("byte_level")
    m = model("gpt2", len(t))
    m.config.vision_config = PretrainedConfig(vocab_offset=300)
    with pytest.raises(UnsupportedModelError, match="apart at id 300"):
        prune_vocabulary(m, t, [250])


def test_the_fields_of_a_real_multimodal_model() -> None:
    from transformers import LlavaConfig

    m = model("gpt2", 320)
    m.config = LlavaConfig(text_config={"model_type": "llama", "vocab_size": 320}, image_token_index=300)
    found = {(type(f.holder).__name__, f.name) for f in id_fields(EmbeddingTables(m), 320)}
    assert {("LlavaConfig", "image_token_index"), ("LlamaConfig", "eos_token_id")} <= found
