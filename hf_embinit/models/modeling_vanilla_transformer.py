"""Vanilla transformers of one set of blocks: encoder-decoder, encoder-only classifier, decoder-only LM.

Shapes: B batch, T length, S source length, D width, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    CausalLMOutputWithPast,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    SequenceClassifierOutput,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import can_return_tuple

from .blocks_vanilla_transformer import CACHE, loss_and_logits
from .configuration_vanilla_transformer import AS_DECODER, VanillaTransformerConfig
from .cpu_training_vanilla_transformer import drop
from .stacks_vanilla_transformer import (
    VanillaTransformerDecoder,
    VanillaTransformerEncoder,
    VanillaTransformerPreTrainedModel,
)


def shift_tokens_right(labels: Tensor, pad_token_id: int, decoder_start_token_id: int) -> Tensor:
    """Decoder inputs `[B, T]` for labels `[B, T]`: the start token, then all but the last; -100 is padding.

    The start token is where the first real label is, so that padding on the left stays there.
    """
    for name, value in (
        ("pad_token_id", pad_token_id),
        ("decoder_start_token_id", decoder_start_token_id),
    ):
        if value is None:
            raise ValueError(f"config.{name} is None, but labels need it: set it, or give decoder inputs")
    shifted = labels.new_full(labels.shape, pad_token_id)
    shifted[:, 1:] = labels[:, :-1]
    shifted.masked_fill_(shifted == -100, pad_token_id)
    first = labels.ne(-100).int().argmax(dim=-1, keepdim=True)
    return shifted.scatter_(1, first, decoder_start_token_id)


@contextmanager
def as_decoder() -> Iterator[None]:
    """Inside, and in this thread alone, configs answer for their decoders; none is changed."""
    token = AS_DECODER.set(True)
    try:
        yield
    finally:
        AS_DECODER.reset(token)


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """The stacks without a head: `.encoder` and `.decoder`, or the only one that the config asks for."""

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

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replaces the source table, in both stacks when they share it."""
        if hasattr(self, "encoder"):
            self.encoder.embed_tokens = cast(nn.Embedding, value)
        if hasattr(self, "decoder") and (
            not self.config.is_encoder_decoder or self.config.share_encoder_decoder_embeddings
        ):
            self.decoder.embed_tokens = cast(nn.Embedding, value)

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        table = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self._ties():  # one table, so one vocabulary
            self.config.decoder_vocab_size = table.num_embeddings
        return table

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput | BaseModelOutput | BaseModelOutputWithPastAndCrossAttentions:
        """Source ids `[B, S]`, target ids `[B, T]` -> states `[B, T, D]`; a stack alone takes `input_ids`."""
        if not self.config.is_encoder_decoder:
            stack = self.decoder if self.config.is_decoder else self.encoder
            if self.config.is_decoder:
                kwargs |= {"past_key_values": past_key_values, "use_cache": use_cache, "cache": cache}
            elif past_key_values is not None:
                raise ValueError("past_key_values: an encoder has no cache, so there is no prefix tuning")
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
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            **{CACHE: getattr(decoded, CACHE)},
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
    """The config, or a copy with the stacks that a model class has."""
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
        self.lm_head = nn.Linear(config.d_model, config.get_text_config(decoder=True).vocab_size)
        self.post_init()

    def _ties(self) -> dict[str, str]:
        stack = "encoder" if self.config.share_encoder_decoder_embeddings else "decoder"
        return (
            {"lm_head.weight": f"model.{stack}.embed_tokens.weight"}
            if self.config.tie_word_embeddings
            else {}
        )

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, which would in places take the source's vocabulary size for the target's."""
        with as_decoder():
            return cast(Any, super()).generate(*args, **kwargs)

    def compute_transition_scores(self, *args: Any, **kwargs: Any) -> Tensor:
        """As in transformers; see `generate`."""
        with as_decoder():
            return cast(Any, super()).compute_transition_scores(*args, **kwargs)

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
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        if self.config.share_encoder_decoder_embeddings:
            table = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
            self.config.decoder_vocab_size = table.num_embeddings
            return table
        old = self.model.get_input_embeddings()
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
        """Resizes the target side: decoder table, output projection with bias, `decoder_vocab_size`.

        Raises `ValueError` when both sides share one table; `resize_token_embeddings` then does both.
        """
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "resize_decoder_token_embeddings: share_encoder_decoder_embeddings=True gives both sides one "
                "table; call resize_token_embeddings."
            )
        old = self.model.decoder.embed_tokens
        trainable = old.weight.requires_grad
        table = self._get_resized_embeddings(old, new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.model.decoder.embed_tokens = table.requires_grad_(trainable)
        self.lm_head = self._get_resized_lm_head(
            self.lm_head, table.num_embeddings, mean_resizing=mean_resizing
        )
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
        encoder_outputs: Any = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        cache: Cache | None = None,
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
            cache=cache,
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
            **{CACHE: getattr(outputs, CACHE)},
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )


class VanillaTransformerForSequenceClassification(VanillaTransformerPreTrainedModel):
    """Encoder with a linear classifier on the pooled states.

    `config.pooling` is `mean` (over real tokens, the default) or `first` (the first real token).
    """

    def __init__(self, config: VanillaTransformerConfig):
        config = with_parts(config, is_encoder_decoder=False, is_decoder=False)
        super().__init__(config)
        self.num_labels = config.num_labels or 0
        if self.num_labels < 1:
            raise ValueError(f"num_labels is {self.num_labels}; a classifier needs at least 1")
        self.model = VanillaTransformerModel(config)
        self.classifier = nn.Linear(config.d_model, self.num_labels)
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
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Logits `[B, num_labels]`, and the loss of `config.problem_type` where `labels` are given.

        The loss is a mean over the labels of the batch; with `num_items_in_batch`, the number of labels of
        all accumulated batches, their sum divided by it, so that accumulation is exact.
        """
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
        )
        logits = self.classifier(self.dropped(self.pool(outputs.last_hidden_state, attention_mask)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
            if num_items_in_batch is not None:
                loss = loss * (labels.ne(-100).sum() / num_items_in_batch).to(loss.device)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def dropped(self, x: Tensor) -> Tensor:
        return drop(x, self.config.dropout_rate, self.training)


class VanillaTransformerForCausalLM(VanillaTransformerPreTrainedModel, GenerationMixin):
    """Decoder alone with an output projection (with bias) onto its vocabulary: language modelling.

    Its tokenizer ends every text by `</s>`. A prompt to go on from has none: `tokenizer(text,
    add_special_tokens=False)`, or `pipeline(text, add_special_tokens=False, return_full_text=False)`.
    """

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
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits `[B, T, V]`, and the loss where `labels` `[B, T]` are given: the input ids, -100 ignored.

        The model shifts the labels. In training mode with labels `logits` is `None`: see `loss_and_logits`.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            cache=cache,
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
            **{CACHE: getattr(outputs, CACHE)},
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


# by this the Trainer knows whose labels its label smoothing has to shift
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(
    VanillaTransformerConfig.model_type, VanillaTransformerForCausalLM.__name__
)

__all__ = [
    "VanillaTransformerForCausalLM",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
