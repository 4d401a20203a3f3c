"""The two stacks of layers, encoder and decoder, and what all vanilla transformers share.

Shapes: B batch, T length, S source length, D width.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .blocks_vanilla_transformer import (
    CACHE,
    FusedLinear,
    PositionEncoding,
    VanillaTransformerAttention,
    VanillaTransformerLayer,
    positions_from_mask,
)
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .cpu_training_vanilla_transformer import drop


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """What all vanilla transformers share: initialisation, ties and how they may be run."""

    config_class = VanillaTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["VanillaTransformerLayer"]  # noqa: RUF012
    _can_compile_fullgraph = True

    def __init__(self, config: VanillaTransformerConfig):
        config.validate()  # a field may have been set after the config was made
        super().__init__(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Xavier-uniform matrices and tables (fans N and D), zero biases and padding rows, LayerNorm 1, 0."""
        if isinstance(module, FusedLinear):
            blocks = [torch.empty_like(block) for block in module.weight.chunk(module.num_blocks)]
            init.copy_(module.weight, torch.cat([init.xavier_uniform_(block) for block in blocks]))
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.xavier_uniform_(module.weight)
            # A slice of the weight does not carry the flag that protects loaded weights.
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, PositionEncoding) and self.config.position_encoding == "sinusoidal":
            # Not in checkpoints, and `from_pretrained` builds on the meta device.
            init.copy_(cast(Tensor, module.table), module.sines())

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, but frozen tables stay frozen, though loading replaces parameters."""
        loaded = super().from_pretrained(*args, **kwargs)
        for module in (loaded[0] if isinstance(loaded, tuple) else loaded).modules():
            if isinstance(module, VanillaTransformerStack):
                module.freeze()
        return loaded

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As in transformers, also for a model that FSDP2 has sharded. `AutoModel` loads it without its head.

        FSDP2 gives a model a class made by torch; while it is saved it has its own class again, whose code
        and name belong in the folder.
        """
        self._say_what_is_tied()
        if self._auto_class is not None:  # the code is saved too
            headless = {"AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel"}
            self.config.auto_map = (getattr(self.config, "auto_map", None) or {}) | headless
        own = type(self)
        if own.__name__.startswith("FSDP"):
            self.__class__ = own.__bases__[1]
        try:
            super().save_pretrained(*args, **kwargs)
        finally:
            self.__class__ = own

    def _say_what_is_tied(self) -> None:
        """A head whose weight is left out of the file has to be tied when that is read.

        PEFT's `merge_and_unload` compares the head with the source table, and sets the config to untied.
        """
        head, base = getattr(self, "lm_head", None), getattr(self, self.base_model_prefix, None)
        if head is not None and base is not None and head.weight is base.decoder.embed_tokens.weight:
            self.config.tie_word_embeddings = True

    def _ties(self) -> dict[str, str]:
        """Parameter -> the parameter that it is tied to, by this config, out of `_tied_weights_keys`."""
        return {}

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # without `tie_word_embeddings` the base class ties nothing, not even a table that both stacks share
        return super().get_expanded_tied_weights_keys(all_submodels) if all_submodels else self._ties()


class VanillaTransformerStack(VanillaTransformerPreTrainedModel):
    """A table of embeddings, positions, and layers: what encoder and decoder have in common."""

    def __init__(self, config: VanillaTransformerConfig, num_rows: int, num_layers: int, is_decoder: bool):
        super().__init__(config)
        has_cross = self.reads_source = is_decoder and config.is_encoder_decoder
        self.embed_tokens = nn.Embedding(num_rows, config.d_model, config.pad_token_id)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.positions = PositionEncoding(config, bidirectional=not is_decoder)
        self.layers = nn.ModuleList(
            VanillaTransformerLayer(config, i, is_causal=is_decoder, has_cross=has_cross)
            for i in range(num_layers)
        )
        pre_norm = config.norm_position == "pre"
        self.layer_norm = (
            nn.LayerNorm(config.d_model, config.layer_norm_epsilon) if pre_norm else nn.Identity()
        )
        self.gradient_checkpointing = False
        self.freeze()
        self.post_init()

    def freeze(self) -> None:
        """Freezes the table if the config says so."""
        if self.config.freeze_embeddings:
            self.embed_tokens.weight.requires_grad_(False)

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """`[B, T, D]`: rows of the table, or `inputs_embeds`, scaled. Both or neither raises."""
        if (input_ids is None) == (inputs_embeds is None):
            names = "token ids or embeddings (inputs_embeds)"
            if self.reads_source:
                names = "decoder_input_ids or decoder_inputs_embeds (labels make the former)"
            raise ValueError(f"Give either {names}, not both and not neither.")
        embeddings = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return embeddings * self.embed_scale

    def dropped(self, x: Tensor) -> Tensor:
        return drop(x, self.config.dropout_rate, self.training)


class VanillaTransformerEncoder(VanillaTransformerStack):
    """The encoder: every token sees every real token."""

    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": VanillaTransformerLayer,
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config, config.vocab_size, config.num_layers, is_decoder=False)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Token ids `[B, S]` (or embeddings before scaling) and their mask `[B, S]` -> states `[B, S, D]`."""
        x = self.embed(input_ids, inputs_embeds)
        length = x.shape[1]
        position_ids = positions_from_mask(attention_mask, 0, length, x.device)
        x = self.dropped(self.positions.add(x, position_ids, length))
        rotation = self.positions.rotation(position_ids, x.dtype)
        mask: Any = create_bidirectional_mask(
            config=self.config, inputs_embeds=x, attention_mask=attention_mask
        )
        mask = self.positions.biased_mask(mask, 0, x, length)
        for layer in self.layers:
            x = layer(x, mask, rotation=rotation, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(x))


class VanillaTransformerDecoder(VanillaTransformerStack):
    """The decoder: every token sees itself, earlier tokens and, with an encoder, the whole source."""

    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": VanillaTransformerLayer,
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        if config.is_encoder_decoder:
            target = config.get_text_config(decoder=True)
            super().__init__(config, target.vocab_size, target.num_layers, is_decoder=True)
        else:
            super().__init__(config, config.vocab_size, config.num_layers, is_decoder=True)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Token ids `[B, T]` after those cached -> states `[B, T, D]`; the mask covers cached tokens too."""
        x = self.embed(input_ids, inputs_embeds)
        cache = past_key_values if cache is None else cache
        if use_cache and cache is None:
            cache = DynamicCache()
            if self.config.is_encoder_decoder:
                cache = EncoderDecoderCache(cache, DynamicCache())
        elif self.reads_source and isinstance(cache, DynamicCache):
            cache = EncoderDecoderCache(cache, DynamicCache())
        own_cache: Any = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        past_length = own_cache.get_seq_length() if own_cache is not None else 0
        length, given = x.shape[1], position_ids
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, past_length, length, x.device)
        x = self.dropped(self.positions.add(x, position_ids, past_length + length))
        rotation = self.positions.rotation(position_ids, x.dtype)
        mask: Any = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            position_ids=given,  # where they start anew, so does the text: packed rows, without a cache
            **{CACHE: own_cache},
        )
        if mask is not None:
            key_length = mask.shape[-1]
        else:  # a cache of fixed size gives all its keys
            key_length = length if own_cache is None else own_cache.get_mask_sizes(length, 0)[0]
        mask = self.positions.biased_mask(mask, past_length, x, key_length)
        if encoder_hidden_states is not None:
            encoder_attention_mask = create_bidirectional_mask(
                config=self.config,
                inputs_embeds=x,
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
            )
        for layer in self.layers:
            x = layer(
                x,
                mask,
                encoder_hidden_states,
                encoder_attention_mask=encoder_attention_mask,
                rotation=rotation,
                **{CACHE: cache},
                **kwargs,
            )
        outputs: dict[str, Any] = {"last_hidden_state": self.layer_norm(x), CACHE: cache}
        return BaseModelOutputWithPastAndCrossAttentions(**outputs)
