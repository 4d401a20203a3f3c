"""Vanilla transformers: encoder-decoder, encoder-only classifier and decoder-only language model, of the same blocks.

Shapes: B batch, T length, S source length, D width, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    CausalLMOutputWithPast,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    SequenceClassifierOutput,
)
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .blocks_vanilla_transformer import (
    FusedLinear,
    PositionEncoding,
    VanillaTransformerAttention,
    VanillaTransformerLayer,
    drop,
    loss_and_logits,
    positions_from_mask,
    sinusoidal_table,
)
from .configuration_vanilla_transformer import VanillaTransformerConfig


def shift_tokens_right(labels: Tensor, pad_token_id: int, decoder_start_token_id: int) -> Tensor:
    """Decoder inputs `[B, T]` for labels `[B, T]`: the start token, then every label but the last; -100 becomes padding.

    The start token stands where the first real label is, so labels padded on the left stay padded on the
    left.
    """
    shifted = labels.new_full(labels.shape, pad_token_id)
    shifted[:, 1:] = labels[:, :-1]
    shifted.masked_fill_(shifted == -100, pad_token_id)
    first = labels.ne(-100).int().argmax(dim=-1, keepdim=True)
    return shifted.scatter_(1, first, decoder_start_token_id)


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """What all vanilla transformers share: initialisation, ties and how they may be run."""

    config_class = VanillaTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["VanillaTransformerLayer"]  # noqa: RUF012
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Xavier-uniform matrices (tables too, with fans N and D), zero biases and padding rows, LayerNorm 1 and 0."""
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
            init.copy_(
                module.table, sinusoidal_table(*module.table.shape, self.config.position_encoding_base)
            )

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; tables that the config freezes stay frozen (loading puts in new parameters)."""
        loaded = super().from_pretrained(*args, **kwargs)
        for module in (loaded[0] if isinstance(loaded, tuple) else loaded).modules():
            if isinstance(module, VanillaTransformerStack):
                module.freeze()
        return loaded

    def _ties(self) -> dict[str, str]:
        """Parameter -> the parameter that it is, by this config (`_tied_weights_keys` has all that may be)."""
        return {}

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # The base class ties nothing unless `tie_word_embeddings`, which would lose a table shared by both stacks.
        return super().get_expanded_tied_weights_keys(all_submodels) if all_submodels else self._ties()


class VanillaTransformerStack(VanillaTransformerPreTrainedModel):
    """A table of embeddings, positions, and layers: what encoder and decoder have in common."""

    def __init__(self, config: VanillaTransformerConfig, num_rows: int, num_layers: int, is_decoder: bool):
        super().__init__(config)
        has_cross = is_decoder and config.is_encoder_decoder
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
        """Stops training the table if the config says so."""
        if self.config.freeze_embeddings:
            self.embed_tokens.weight.requires_grad_(False)

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """`[B, T, D]`: rows of the table, or `inputs_embeds` in their place, scaled. Both or neither raise."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either token ids or embeddings (inputs_embeds), not both and not neither.")
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
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=x, attention_mask=attention_mask)
        mask = self.positions.biased_mask(mask, 0, x, length)
        for layer in self.layers:
            x = layer(x, mask, rotation=rotation, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(x))


class VanillaTransformerDecoder(VanillaTransformerStack):
    """The decoder: every token sees itself and those before it, and in an encoder-decoder the whole source."""

    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": VanillaTransformerLayer,
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        if config.is_encoder_decoder:
            super().__init__(config, config.decoder_vocab_size, config.num_decoder_layers, is_decoder=True)
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
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Token ids `[B, T]` after those in the cache -> states `[B, T, D]`; the mask covers cached tokens too."""
        x = self.embed(input_ids, inputs_embeds)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
            if self.config.is_encoder_decoder:
                past_key_values = EncoderDecoderCache(past_key_values, DynamicCache())
        own_cache = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            own_cache = past_key_values.self_attention_cache
        past_length = own_cache.get_seq_length() if own_cache is not None else 0
        length = x.shape[1]
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, past_length, length, x.device)
        x = self.dropped(self.positions.add(x, position_ids, past_length + length))
        rotation = self.positions.rotation(position_ids, x.dtype)
        mask = create_causal_mask(
            config=self.config, inputs_embeds=x, attention_mask=attention_mask, past_key_values=own_cache
        )
        key_length = mask.shape[-1] if mask is not None else past_length + length
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
                past_key_values=past_key_values,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(x), past_key_values=past_key_values
        )


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """The stacks without a head: `.encoder` and `.decoder`, or the one of them that the config asks for."""

    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        if config.is_encoder_decoder or not config.is_decoder:
            self.encoder = VanillaTransformerEncoder(config)
        if config.is_encoder_decoder or config.is_decoder:
            self.decoder = VanillaTransformerDecoder(config)
        self.post_init()

    def _ties(self) -> dict[str, str]:
        shared = self.config.is_encoder_decoder and self.config.share_encoder_decoder_embeddings
        return dict(self._tied_weights_keys) if shared else {}

    def get_input_embeddings(self) -> nn.Embedding:
        """The source table, or the only one."""
        return (self.encoder if hasattr(self, "encoder") else self.decoder).embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Puts in a source table; in both stacks when they share it."""
        if hasattr(self, "encoder"):
            self.encoder.embed_tokens = value
        if hasattr(self, "decoder") and (
            not self.config.is_encoder_decoder or self.config.share_encoder_decoder_embeddings
        ):
            self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput | BaseModelOutput | BaseModelOutputWithPastAndCrossAttentions:
        """Source ids `[B, S]` and target ids `[B, T]` -> decoder states `[B, T, D]`; one stack takes its ids alone."""
        if not self.config.is_encoder_decoder:
            stack = self.decoder if self.config.is_decoder else self.encoder
            if self.config.is_decoder:
                kwargs |= {"past_key_values": past_key_values, "use_cache": use_cache}
            return stack(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoded = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


def with_parts(
    config: VanillaTransformerConfig, is_encoder_decoder: bool, is_decoder: bool
) -> VanillaTransformerConfig:
    """The config, or a copy of it where it asks for other stacks than a model class has."""
    if (config.is_encoder_decoder, config.is_decoder) != (is_encoder_decoder, is_decoder):
        config = copy.deepcopy(config)
        config.is_encoder_decoder, config.is_decoder = is_encoder_decoder, is_decoder
    return config


class VanillaTransformerForConditionalGeneration(VanillaTransformerPreTrainedModel, GenerationMixin):
    """Encoder-decoder with an output projection (with bias) onto the target vocabulary: translation."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: VanillaTransformerConfig):
        config = with_parts(config, is_encoder_decoder=True, is_decoder=False)
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size)
        self.post_init()

    def _ties(self) -> dict[str, str]:
        stack = "encoder" if self.config.share_encoder_decoder_embeddings else "decoder"
        return (
            {"lm_head.weight": f"model.{stack}.embed_tokens.weight"}
            if self.config.tie_word_embeddings
            else {}
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Decoder inputs `[B, T]` for labels `[B, T]`; data collators call this."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """Resizes the source side alone, as Marian does: the encoder's table and `vocab_size`.

        The target side has `resize_decoder_token_embeddings`. With `share_encoder_decoder_embeddings` there
        is one vocabulary, and this resizes the table and the output projection with its bias.
        """
        return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)

    def _resize_token_embeddings(
        self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True
    ) -> nn.Embedding:
        if self.config.share_encoder_decoder_embeddings:
            table = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
            self.config.decoder_vocab_size = table.num_embeddings
            return table
        old = self.get_input_embeddings()
        trainable = old.weight.requires_grad
        table = self._get_resized_embeddings(old, new_num_tokens, pad_to_multiple_of, mean_resizing)
        table.requires_grad_(trainable)
        self.set_input_embeddings(table)
        return table

    def resize_decoder_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """Resizes the target side: the decoder's table, the output projection with its bias, `decoder_vocab_size`.

        Raises `ValueError` when both sides share one table; `resize_token_embeddings` then does both.
        """
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "resize_decoder_token_embeddings: share_encoder_decoder_embeddings=True gives both sides one table; "
                "call resize_token_embeddings."
            )
        decoder = self.model.decoder
        trainable = decoder.embed_tokens.weight.requires_grad
        table = self._get_resized_embeddings(
            decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
        ).requires_grad_(trainable)
        decoder.embed_tokens = table
        head = self._get_resized_lm_head(self.lm_head, table.num_embeddings, mean_resizing=mean_resizing)
        self.lm_head = head
        self.config.decoder_vocab_size = table.num_embeddings
        self.tie_weights()
        return table

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits `[B, T, V]`, and the loss where `labels` `[B, T]` are given (-100 is ignored).

        In training mode with labels, `logits` is `None` (see `loss_and_logits`); call `.eval()` or leave
        labels out to get logits. Labels padded on the left mask their padding.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            pad, start = self.config.pad_token_id, self.config.decoder_start_token_id
            if decoder_attention_mask is None and decoder_input_ids is not None and pad != start:
                decoder_attention_mask = decoder_input_ids.ne(pad).cumsum(-1).ne(0)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        states = outputs.last_hidden_state
        if labels is None:
            loss, logits = None, self.lm_head(states)
        else:
            loss, logits = loss_and_logits(self.lm_head, states, labels, num_items_in_batch, self.training)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )


class VanillaTransformerForSequenceClassification(VanillaTransformerPreTrainedModel):
    """Encoder with a linear classifier on the pooled states.

    `config.pooling` is `mean` (over real tokens, the default) or `first` (the first real token, wherever the
    padding).
    """

    def __init__(self, config: VanillaTransformerConfig):
        config = with_parts(config, is_encoder_decoder=False, is_decoder=False)
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = VanillaTransformerModel(config)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    def pool(self, states: Tensor, attention_mask: Tensor | None) -> Tensor:
        """`[B, T, D]` -> `[B, D]`, reading real tokens only."""
        if self.config.pooling == "first":
            if attention_mask is None:
                return states[:, 0]
            first = attention_mask.int().argmax(dim=-1)
            return states[torch.arange(states.shape[0], device=states.device), first]
        if attention_mask is None:
            return states.mean(dim=1)
        weights = attention_mask.to(states.dtype)[..., None]
        return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Logits `[B, num_labels]`, and the loss of `config.problem_type` where `labels` are given."""
        loss_kwargs = {k: kwargs.pop(k) for k in ("num_items_in_batch",) if k in kwargs}
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
        )
        logits = self.classifier(self.dropped(self.pool(outputs.last_hidden_state, attention_mask)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **loss_kwargs)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def dropped(self, x: Tensor) -> Tensor:
        return drop(x, self.config.dropout_rate, self.training)


class VanillaTransformerForCausalLM(VanillaTransformerPreTrainedModel, GenerationMixin):
    """Decoder alone with an output projection (with bias) onto its vocabulary: language modelling."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: VanillaTransformerConfig):
        config = with_parts(config, is_encoder_decoder=False, is_decoder=True)
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size)
        self.post_init()

    def _ties(self) -> dict[str, str]:
        return dict(self._tied_weights_keys) if self.config.tie_word_embeddings else {}

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits `[B, T, V]`, and the loss where `labels` `[B, T]` are given: the input ids, -100 ignored.

        Labels are shifted here, as usual. In training mode with labels, `logits` is `None` (see
        `loss_and_logits`).
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache if labels is None else False,
            **kwargs,
        )
        states = outputs.last_hidden_state
        if labels is None:
            keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            loss, logits = None, self.lm_head(states[:, keep])
        else:
            shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
            loss, logits = loss_and_logits(self.lm_head, states, shifted, num_items_in_batch, self.training)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


__all__ = [
    "VanillaTransformerForCausalLM",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
