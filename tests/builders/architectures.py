"""Builds every language model class of transformers small: widths, depths and vocabularies shrunk alike."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, BertConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

VOCAB = 211
TASKS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
}

SIZES = {
    **dict.fromkeys(("vocab_size", "src_vocab_size", "tgt_vocab_size", "vocab_size_per_layer_input"), VOCAB),
    "unpadded_vocab_size": VOCAB,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "emb_dim", "embed_dim"), 32),
    **dict.fromkeys(("input_embedding_size", "output_embedding_size", "backbone_hidden_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), 2),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_encoder_layers", "depth"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads", "kv_n_heads"), 2),
    **dict.fromkeys(
        ("head_dim", "d_kv", "dim_head", "attention_head_size", "swa_head_dim", "kv_channels"), 8
    ),
    **dict.fromkeys(
        ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim", "n_inner"), 48
    ),
    **dict.fromkeys(("feed_forward_size", "moe_intermediate_size", "ffn_hidden_size", "dim_ff", "dff"), 48),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("expert_ffn_hidden_size", "hidden_dim"), 32),
    **dict.fromkeys(("encoder_hash_byte_group_vocab", "entity_vocab_size"), 64),
    "hidden_size_global": 32,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "num_experts_per_tok": 2,
}


def classes() -> list[tuple[str, str, str]]:
    """`(task, model type, class name)`, each class once."""
    seen: dict[str, tuple[str, str, str]] = {}
    for task, names in TASKS.items():
        for model_type, entry in names.items():
            for name in (entry,) if isinstance(entry, str) else entry:
                seen.setdefault(name, (task, model_type, name))
    return list(seen.values())


OVERRIDES: dict[str, dict[str, Any]] = {
    "DbrxForCausalLM": {
        "attn_config.rope_theta": 10000.0,
        "attn_config.kv_n_heads": 2,
        "attn_config.clip_qkv": 8.0,
    },
    "Gemma3nForCausalLM": {"num_kv_shared_layers": 0},
    "Gemma4AssistantForCausalLM": {
        "text_config.hidden_size_per_layer_input": 0,
        "text_config.vocab_size_per_layer_input": 0,
    },
    "Gemma4UnifiedAssistantForCausalLM": {
        "text_config.hidden_size_per_layer_input": 0,
        "text_config.num_kv_shared_layers": 0,
    },
    "LongcatFlashForCausalLM": {"zero_expert_num": 2, "moe_topk": 2},
    "NeoMMEForMaskedLM": {"head_dim": 16},
    "PerceiverForMaskedLM": {"d_latents": 32, "num_self_attends_per_block": 1, "num_latents": 8},
    "CodeGenForCausalLM": {"rotary_dim": 4},
    "GPTJForCausalLM": {"rotary_dim": 4},
    "Ernie4_5_MoeForCausalLM": {"moe_k": 2},
    "EsmForMaskedLM": {"mask_token_id": 3, "pad_token_id": 1},
    "XmodForCausalLM": {"default_language": "en_XX"},
    "XmodForMaskedLM": {"default_language": "en_XX"},
    "MobileBertForMaskedLM": {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "Nemotron3_5TranscribeForConditionalGeneration": {
        "audio_config.diarization_config.head_config.audio_hidden_size": 32,
        "audio_config.asr_config.num_key_value_heads": 4,  # saved as one matrix with queries and keys
        "audio_config.diarization_config.audio_config.num_key_value_heads": 4,
        "word_timestamp_config.num_key_value_heads": 4,
        "word_timestamp_config.vocab_size": 64,  # of another tokenizer
        "word_timestamp_config.blank_token_id": 63,
    },
    "VibeVoiceAsrForConditionalGeneration": {
        f"{part}_tokenizer_encoder_config.{key}": value
        for part in ("acoustic", "semantic")
        for key, value in {
            "num_filters": 2,
            "depths": [1, 1],
            "downsampling_ratios": [2],
            "hidden_size": 16,
        }.items()
    },
    "ZambaForCausalLM": {"num_hidden_layers": 5, "attn_layer_period": 2, "attn_layer_offset": 1},
    "Zamba2ForCausalLM": {"layers_block_type": ["linear_attention", "hybrid"], "n_mamba_heads": 4},
    "AXK1ForCausalLM": {"n_group": 1, "topk_group": 1},
    "BambaForCausalLM": {"mamba_n_heads": 8, "mamba_d_head": 8},
    "GraniteMoeHybridForCausalLM": {
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "CohereCompassForCausalLM": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
    },
    "Dots1ForCausalLM": {"n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "Dots3NoteForCausalLM": {"num_key_value_heads": 4},
    "EsmcForMaskedLM": {"num_key_value_heads": 4},
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 1]]},
    "Lfm2MoeForCausalLM": {"layer_types": ["full_attention", "conv"]},
    "Mamba2ForCausalLM": {"num_heads": 8, "head_dim": 8},
    "MoshiForCausalLM": {"audio_vocab_size": 64},
    "ReformerModelWithLMHead": {
        "is_decoder": True,
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 8],
    },
    "ReformerForMaskedLM": {"is_decoder": False, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8]},
    "ZayaForCausalLM": {"num_experts_per_tok": 1},
}


def since(version: str, *values: str) -> Any:
    """Parameters of a test that older versions of transformers cannot build, resize or save themselves."""
    return pytest.param(*values, marks=pytest.mark.needs(f"transformers>={version}"))


def small_kwargs(config_class: type[PretrainedConfig], overrides: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments that make a config small, its inner configs (`text_config.head_dim`) included."""
    kwargs: dict[str, Any] = {}
    if dataclasses.is_dataclass(config_class):
        defaults = {field.name: field.default for field in dataclasses.fields(config_class)}
    else:  # before transformers 5.4
        defaults = {p.name: p.default for p in inspect.signature(config_class).parameters.values()}
    for name, default in defaults.items():
        if name in SIZES and not isinstance(default, list):
            kwargs[name] = SIZES[name]
            if name == "num_key_value_heads" and "kv_lora_rank" in defaults:
                kwargs[name] = SIZES["num_attention_heads"]
        special = name.endswith(("_token_id", "_token_index", "_index"))
        if special and isinstance(default, int) and default >= VOCAB:
            kwargs[name] = 200
    for name, inner in dict(getattr(config_class, "sub_configs", {})).items():
        spec = getattr(config_class, "sub_configs_defaults", {}).get(name)
        if spec is not None and spec.model_type:
            inner = CONFIG_MAPPING[spec.model_type]
        elif not dataclasses.is_dataclass(inner) or inner is PretrainedConfig:
            inner = type(getattr(config_class(), name))
        if issubclass(inner, PretrainedConfig) and inner is not PretrainedConfig:
            own = {k.removeprefix(f"{name}."): v for k, v in overrides.items() if k.startswith(f"{name}.")}
            kwargs[name] = inner(**small_kwargs(inner, own))
    return {**kwargs, **{k: v for k, v in overrides.items() if "." not in k}}


def build(name: str, **overrides: Any) -> PreTrainedModel:
    """A small model of class `name` in evaluation mode, its parameters drawn from a fixed seed."""
    model_class = getattr(transformers, name, None)
    if model_class is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    config_class = model_class.config_class
    if name == "EncoderDecoderModel":
        halves = [BertConfig(**small_kwargs(BertConfig, {}), is_decoder=decodes) for decodes in (False, True)]
        halves[1].add_cross_attention = True
        config = config_class.from_encoder_decoder_configs(*halves)
    else:
        config = config_class(**small_kwargs(config_class, {**OVERRIDES.get(name, {}), **overrides}))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        with torch.device("meta"):
            size = sum(p.numel() for p in model_class(config).parameters())
        if size > 40_000_000:
            raise MemoryError(f"{size:,} parameters")
        return model_class(config).eval()


def inputs(model: PreTrainedModel, ids: torch.Tensor) -> dict[str, Any]:
    """Arguments of `model.forward` that make logits from token ids `[B, T]`; the same for the same ids."""
    accepted = set(inspect.signature(model.forward).parameters)
    generator = torch.Generator().manual_seed(3)
    made: dict[str, Any] = {}
    decodes = "decoder_input_ids" in accepted
    if model.main_input_name == "input_ids" or not decodes:
        made["input_ids"] = ids
    elif model.main_input_name in ("input_features", "input_values", "flattened_patches", "pixel_values"):
        config = model.config
        shape: tuple[int, ...] = (ids.shape[0], 64, getattr(config, "input_feat_per_channel", 80))
        if "Whisper" in type(model).__name__:
            shape = (ids.shape[0], config.num_mel_bins, 2 * config.max_source_positions)
        elif type(model).__name__ == "Pix2StructForConditionalGeneration":
            shape = (ids.shape[0], 6, 2 + config.vision_config.patch_embed_hidden_size)
        elif "SeamlessM4T" in type(model).__name__:
            shape = (ids.shape[0], 64, config.feature_projection_input_dim)
        elif model.main_input_name == "input_values":
            shape = (ids.shape[0], 1600)
        made[model.main_input_name] = torch.randn(shape, generator=generator)
    if decodes:
        made["decoder_input_ids"] = ids
    if type(model).__name__ == "GitForCausalLM":
        size = model.config.vision_config.image_size
        made["pixel_values"] = torch.randn(ids.shape[0], 3, size, size, generator=generator)
    if type(model).__name__ == "VoxtralRealtimeForConditionalGeneration":
        frames, width = ids.shape[1] * model.config.downsample_factor, model.config.audio_config.hidden_size
        made["encoder_inputs_embeds"] = torch.randn(ids.shape[0], frames, width, generator=generator)
    return made


def logits_of(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """`[B, T, V]` logits, float32."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        output = (
            model(**inputs(model, ids), use_cache=False)
            if accepts_cache(model)
            else model(**inputs(model, ids))
        )
    for key in ("logits", "prediction_logits", "language_logits"):
        if getattr(output, key, None) is not None:
            return getattr(output, key).float()
    return output[0].float()


def accepts_cache(model: PreTrainedModel) -> bool:
    """Whether `forward` has a cache to switch off."""
    return "use_cache" in inspect.signature(model.forward).parameters


def sequence_length(name: str) -> int:
    """Tokens a sequence must have for a class to train."""
    return {"ReformerModelWithLMHead": 64, "ReformerForMaskedLM": 64, "PerceiverForMaskedLM": 128}.get(
        name, 16
    )
