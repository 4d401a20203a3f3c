"""The parts of all vanilla transformers: positions, attention, the layer, the loss at real tokens.

Shapes: B batch, T length, S source length, D width, H heads, V vocabulary.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import EncoderDecoderCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .cpu_training_vanilla_transformer import (
    NUMBERS_AT_ONCE,
    DroppedAttention,
    DroppedRelu,
    PrivateCrossEntropy,
    SplitHeads,
    add_dropped,
    additive_mask,
    drop,
    drops_on_cpu,
    is_plain,
)

Rotation = tuple[Tensor, Tensor]

CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
"""What transformers calls the cache of generation: `past_key_values` before 5.24."""


def sinusoidal_table(num_positions: int, width: int, base: float = 10000.0) -> Tensor:
    """Position encodings `[positions, width]`: sin in even columns, cos in odd ones, float32.

    Vaswani et al. 2017, section 3.5. Computed in float64: angles of late positions need its precision.
    """
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies
    table = torch.zeros(num_positions, width, dtype=torch.float64)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()[:, : width // 2]
    return table.float()


def positions_from_mask(
    attention_mask: Tensor | None, past_length: int | Tensor, length: int, device: torch.device
) -> Tensor:
    """Position of each of the last `length` tokens, `[B or 1, length]`: 0 at the first real token of its row.

    So padding on the left changes nothing. Padding itself gets some valid position, which is never read.
    """
    if attention_mask is not None and attention_mask.ndim == 2:
        if isinstance(past_length, int) and past_length == 0 and attention_mask.shape[1] != length:
            raise ValueError(
                f"attention_mask has {attention_mask.shape[1]} columns for {length} tokens: give one a token"
            )
        return (attention_mask.long().cumsum(-1) - 1).clamp_(min=0)[:, -length:]
    return (torch.arange(length, device=device) + past_length)[None]


class PositionEncoding(nn.Module):
    """Positions: rows added to the input, a rotation of queries and keys, or a bias of attention scores."""

    def __init__(self, config: VanillaTransformerConfig, bidirectional: bool):
        super().__init__()
        self.config = config
        self.bidirectional = bidirectional
        if config.position_encoding == "sinusoidal":
            self.register_buffer("table", self.sines(), persistent=False)
        elif config.position_encoding == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.d_model)
        elif config.position_encoding == "relative":
            self.relative_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_heads)

    def sines(self) -> Tensor:
        """`[positions, D]`: the sinusoidal encodings of the config, as they are added."""
        config = self.config
        table = sinusoidal_table(
            config.max_position_embeddings, config.d_model, config.position_encoding_base
        )
        return table * config.position_scale

    def add(self, hidden_states: Tensor, position_ids: Tensor, length: int | Tensor) -> Tensor:
        """`[B, T, D]` plus the row of each position; a `length` (with past tokens) over the limit raises."""
        kind, limit = self.config.position_encoding, self.config.max_position_embeddings
        if kind not in ("sinusoidal", "learned"):
            return hidden_states
        if isinstance(length, int) and length > limit:
            raise ValueError(
                f"The input has {length} positions, but max_position_embeddings is {limit}; "
                "truncate it, or build the model with a larger max_position_embeddings."
            )
        table: Any = self.table if kind == "sinusoidal" else self.embed_positions.weight
        return hidden_states + nn.functional.embedding(position_ids, table).to(hidden_states.dtype)

    def rotation(self, position_ids: Tensor, dtype: torch.dtype) -> Rotation | None:
        """Cosines and sines `[B or 1, 1, T, D / H]` of the rotary encoding (Su et al. 2021), or `None`."""
        if self.config.position_encoding != "rotary":
            return None
        width = self.config.d_model // self.config.num_heads
        exponents = torch.arange(0, width, 2, device=position_ids.device, dtype=torch.float32) / width
        angles = position_ids[..., None].float() * self.config.position_encoding_base**-exponents
        angles = torch.cat([angles, angles], dim=-1)[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def biased_mask(
        self, mask: Tensor | None, past_length: int | Tensor, like: Tensor, key_length: int
    ) -> Tensor | None:
        """The attention mask plus T5's relative bias (Raffel et al. 2020, 2.1), or the mask unchanged.

        Differences of positions do not depend on padding on the left, so indices in the batch
        serve as positions.
        """
        if self.config.position_encoding != "relative":
            return mask
        queries = torch.arange(like.shape[1], device=like.device) + past_length
        distance = torch.arange(key_length, device=like.device)[None] - queries[:, None]
        bias = self.relative_bias(self.bucket(distance)).permute(2, 0, 1)[None].to(like.dtype)
        lowest = torch.finfo(like.dtype).min
        if not self.bidirectional and mask is None:
            mask = (distance <= 0)[None, None]
        if mask is None:
            return bias
        return bias.masked_fill(~mask, lowest) if mask.dtype == torch.bool else bias + mask

    def bucket(self, distance: Tensor) -> Tensor:
        """Bucket of each key - query distance: exact when near, logarithmic up to the maximal distance."""
        buckets, furthest = (
            self.config.relative_attention_num_buckets,
            self.config.relative_attention_max_distance,
        )
        offset = torch.zeros_like(distance)
        if self.bidirectional:
            buckets //= 2
            offset = (distance > 0).long() * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = buckets // 2
        ratio = (distance.float().clamp(min=1) / exact).log() / math.log(furthest / exact)
        far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
        return offset + torch.where(distance < exact, distance, far)


class FusedLinear(nn.Linear):
    """Several projections of one input in one product, each initialised as the matrix that it replaces."""

    def __init__(self, in_features: int, out_features: int, num_blocks: int):
        super().__init__(in_features, out_features * num_blocks)
        self.num_blocks = num_blocks


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """`[B, H, T, D / H]` rotated by the angle of each position."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention in torch operations: output `[B, T, H, D / H]` and the weights `[B, H, T, S]`."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = drop(scores.softmax(dim=-1), dropout, module.training)
    return torch.matmul(weights, value).transpose(1, 2), weights


class VanillaTransformerAttention(nn.Module):
    """Multi-head attention of a sequence to itself (one fused projection) or to the encoder (`is_cross`)."""

    def __init__(
        self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool, is_cross: bool = False
    ):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.is_causal, self.is_cross = is_causal, is_cross
        self.head_dim = config.d_model // config.num_heads
        self.scaling = self.head_dim**-0.5
        if is_cross:
            self.q_proj = nn.Linear(config.d_model, config.d_model)
            self.kv_proj = FusedLinear(config.d_model, config.d_model, 2)
        else:
            self.qkv_proj = FusedLinear(config.d_model, config.d_model, 3)
        self.out_proj = nn.Linear(config.d_model, config.d_model)

    def heads(self, projected: Tensor, blocks: int) -> tuple[Tensor, ...]:
        """`[B, T, blocks * D]` -> that many `[B, H, T, D / H]`."""
        batch, length, _ = projected.shape
        parts = projected.view(batch, length, blocks, -1, self.head_dim)
        return SplitHeads.apply(parts) if self.is_plain(projected) else parts.permute(2, 0, 3, 1, 4).unbind(0)

    def is_plain(self, x: Tensor) -> bool:
        """Whether to bypass SDPA, which has no kernel for dropout on the CPU."""
        is_sdpa = self.config._attn_implementation == "sdpa"
        return is_sdpa and is_plain(x, self.config.dropout_rate, self.training)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotation: Rotation | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        both = cache
        if isinstance(cache, EncoderDecoderCache):
            cache = cache.cross_attention_cache if self.is_cross else cache.self_attention_cache
        if self.is_cross:
            (query,) = self.heads(self.q_proj(hidden_states), 1)
            if cache is not None and both.is_updated.get(self.layer_idx):
                key, value = cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values
            else:
                key, value = self.heads(self.kv_proj(encoder_hidden_states), 2)
                if cache is not None:
                    key, value = cache.update(key, value, self.layer_idx)
                    both.is_updated[self.layer_idx] = True
        else:
            query, key, value = self.heads(self.qkv_proj(hidden_states), 3)
            if rotation is not None:
                query, key = rotate(query, rotation), rotate(key, rotation)
            if cache is not None:
                key, value = cache.update(key, value, self.layer_idx)

        rate = self.config.dropout_rate if self.training else 0.0
        if self.is_plain(query):
            mask = additive_mask(attention_mask, query, key, self.is_causal)
            output, weights = DroppedAttention.apply(query, key, value, mask, rate), None
        else:
            attend = ALL_ATTENTION_FUNCTIONS.get_interface(
                self.config._attn_implementation, eager_attention_forward
            )
            output, weights = attend(
                self, query, key, value, attention_mask, dropout=rate, scaling=self.scaling, **kwargs
            )
        return self.out_proj(output.reshape(*hidden_states.shape)), weights


class VanillaTransformerLayer(GradientCheckpointingLayer):
    """Self-attention, cross-attention where there is an encoder, feed-forward: one layer of either stack."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool, has_cross: bool):
        super().__init__()
        width, eps = config.d_model, config.layer_norm_epsilon
        self.dropout_rate, self.pre_norm = config.dropout_rate, config.norm_position == "pre"
        self.self_attn = VanillaTransformerAttention(config, layer_idx, is_causal)
        self.self_attn_layer_norm = nn.LayerNorm(width, eps)
        self.has_cross = has_cross
        if has_cross:
            self.encoder_attn = VanillaTransformerAttention(config, layer_idx, is_causal=False, is_cross=True)
            self.encoder_attn_layer_norm = nn.LayerNorm(width, eps)
        self.fc1 = nn.Linear(width, config.d_ff)
        self.activation_fn = ACT2FN[config.activation_function]
        self.is_relu = config.activation_function == "relu"
        self.fc2 = nn.Linear(config.d_ff, width)
        self.final_layer_norm = nn.LayerNorm(width, eps)

    def activate(self, x: Tensor) -> Tensor:
        if self.is_relu and drops_on_cpu(x, self.dropout_rate, self.training):
            return DroppedRelu.apply(x, self.dropout_rate)
        return drop(self.activation_fn(x), self.dropout_rate, self.training)

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        return add_dropped(x, branch, self.dropout_rate, self.training)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        rotation: Rotation | None = None,
        **kwargs: Any,
    ) -> Tensor:
        kwargs["cache"] = kwargs.pop(CACHE, None)  # gradient checkpointing looks for it by that name
        x = hidden_states
        y = self.self_attn_layer_norm(x) if self.pre_norm else x
        y, _ = self.self_attn(y, attention_mask=attention_mask, rotation=rotation, **kwargs)
        x = self.add(x, y)
        x = x if self.pre_norm else self.self_attn_layer_norm(x)
        if self.has_cross:
            y = self.encoder_attn_layer_norm(x) if self.pre_norm else x
            y, _ = self.encoder_attn(
                y, encoder_hidden_states, attention_mask=encoder_attention_mask, **kwargs
            )
            x = self.add(x, y)
            x = x if self.pre_norm else self.encoder_attn_layer_norm(x)
        y = self.final_layer_norm(x) if self.pre_norm else x
        y = self.fc2(self.activate(self.fc1(y)))
        x = self.add(x, y)
        return x if self.pre_norm else self.final_layer_norm(x)


def is_recorded(x: Tensor) -> bool:
    """Whether operations on `x` are recorded for later: compiled, or captured as a CUDA graph."""
    return torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing())


def token_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Float32 cross-entropy summed over labels other than -100, divided by their number.

    The divisor is `num_items_in_batch` if given: the Trainer passes the number of labels of all accumulated
    batches, which makes accumulation exact.
    """
    logits, labels = logits.flatten(0, -2), labels.flatten()
    blocks, ids = [logits], [labels]
    if logits.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        rows = max(1, NUMBERS_AT_ONCE // logits.shape[-1])  # caches hold a block; no copies of all logits
        blocks, ids = list(logits.split(rows)), list(labels.split(rows))
    total = torch.zeros((), device=logits.device)
    for i in range(len(blocks)):
        total = total + nn.functional.cross_entropy(
            blocks[i].float(), ids[i], ignore_index=-100, reduction="sum"
        )
    count = labels.ne(-100).sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    return total / (count.to(total.device) if torch.is_tensor(count) else count)


def loss_and_logits(
    head: nn.Module,
    hidden_states: Tensor,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None,
    training: bool,
) -> tuple[Tensor, Tensor | None]:
    """The loss and, outside training, the logits `[B, T, V]`.

    In training the vocabulary projection runs at tokens that have a label and the logits are not returned:
    they are the largest tensor of a step, and nothing in a training step reads them. While compiling, or
    captured as a CUDA graph, shapes must not depend on data, so every token is projected.
    """
    if labels.shape != hidden_states.shape[:2]:
        raise ValueError(
            f"labels have the shape {tuple(labels.shape)}, but there are states for "
            f"{tuple(hidden_states.shape[:2])} tokens: give one label a token, -100 where there is none"
        )
    labels = labels.to(hidden_states.device)
    if training and not is_recorded(labels):
        real = labels.flatten().ne(-100).nonzero().squeeze(1)
        labels = labels.flatten().index_select(0, real)
        logits = head(hidden_states.flatten(0, 1).index_select(0, real))
        if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.bfloat16):
            count = max(len(labels), 1) if num_items_in_batch is None else int(num_items_in_batch)
            return PrivateCrossEntropy.apply(logits, labels, 1 / count), None
        return token_loss(logits, labels, num_items_in_batch), None
    logits = head(hidden_states)
    return token_loss(logits, labels, num_items_in_batch), None if training else logits
