"""Operations of a training step on the CPU that are faster than torch's: dropout, attention, cross-entropy.

Each has the values and gradients of the plain operation (each has a test); the model uses them where
`is_plain` is true and torch's operations everywhere else. Shapes: B batch, T length, S source length, D
width, H heads, V vocabulary, N tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def drops_on_cpu(x: Tensor, rate: float, training: bool) -> bool:
    """Whether this is a training step with dropout on the CPU that is not compiled."""
    return training and rate != 0 and x.device.type == "cpu" and not torch.compiler.is_compiling()


NUMBERS_AT_ONCE = 2**22
"""Logits in a block of cross-entropies: 16 MiB of float32."""


def is_plain(x: Tensor, rate: float, training: bool) -> bool:
    """Whether this is a training step with dropout on the CPU, neither compiled nor under autocast."""
    return drops_on_cpu(x, rate, training) and not torch.is_autocast_enabled("cpu")


def keep_mask(like: Tensor, rate: float) -> Tensor:
    """The factors of dropout: 0 with probability `rate` (to 1/65536), else `keep_scale(rate)`.

    Made of 16 random bits a number. For 64 x 14 x 300 numbers on one core, torch's draw alone (`bernoulli_`)
    took 1.2 ms and its dropout 2.2 ms, where this takes 0.3 ms.
    """
    count = like.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    dropped = round(rate * 65536)
    mask = torch.empty(like.shape, dtype=like.dtype)
    torch.ge(bits.view(like.shape), dropped - 32768, out=mask)
    return mask.mul_(keep_scale(rate))


def keep_scale(rate: float) -> float:
    """The factor of entries that dropout keeps, which preserves the mean."""
    return 65536 / (65536 - round(rate * 65536))


def drop(x: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout as in torch, with a faster mask on the CPU."""
    if drops_on_cpu(x, rate, training):
        return x * keep_mask(x, rate)
    return nn.functional.dropout(x, rate, training)


class DroppedRelu(torch.autograd.Function):
    """`dropout(relu(x))`; it is positive where the gradient passes, so backward needs nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        output = x.clamp_min(0).mul_(keep_mask(x, rate))
        ctx.save_for_backward(output)
        ctx.scale = keep_scale(rate)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grad, output, 0).mul_(ctx.scale), None


def add_dropped(x: Tensor, branch: Tensor, rate: float, training: bool) -> Tensor:
    """`x + dropout(branch)`."""
    if drops_on_cpu(x, rate, training):
        return torch.addcmul(x, branch, keep_mask(branch, rate))
    return x + nn.functional.dropout(branch, rate, training)


def additive_mask(mask: Tensor | None, query: Tensor, key: Tensor, is_causal: bool) -> Tensor | None:
    """SDPA's mask (boolean, additive, or `None` with `is_causal`) as a term to add to the scores."""
    length = query.shape[2]
    if mask is None and is_causal and length > 1:
        mask = torch.ones(length, key.shape[2], dtype=torch.bool, device=query.device).tril(
            key.shape[2] - length
        )
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)


class DroppedAttention(torch.autograd.Function):
    """Attention with dropout, for which SDPA has no kernel on the CPU and makes many small operations.

    Queries `[B, H, T, D / H]`, keys and values `[B, H, S, D / H]`, a mask to add that broadcasts to `[B,
    H, T, S]` -> `[B, T, H, D / H]`.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rate: float
    ) -> Tensor:
        batch, heads, length, width = query.shape
        ctx.scaling = width**-0.5
        query, key, value = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
        scores = torch.baddbmm(
            query.new_empty(1, 1, 1), query, key.transpose(1, 2), beta=0, alpha=ctx.scaling
        )
        if mask is not None:
            ctx.mask_shape = mask.shape
            scores.view(batch, heads, length, -1).add_(mask)
        weights = scores.softmax(dim=-1)
        keep = keep_mask(weights, rate)
        ctx.save_for_backward(query, key, value, weights, keep)
        return torch.bmm(weights * keep, value).view(batch, heads, length, width).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, keep = ctx.saved_tensors
        batch, length, heads, width = grad.shape
        grad = grad.transpose(1, 2).reshape(batch * heads, length, width)
        grad_value = torch.bmm((weights * keep).transpose(1, 2), grad)
        grad_weights = torch.bmm(grad, value.transpose(1, 2)).mul_(keep)
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        none = query.new_empty(1, 1, 1)
        grad_query = torch.baddbmm(none, grad_scores, key, beta=0, alpha=ctx.scaling)
        grad_key = torch.baddbmm(none, grad_scores.transpose(1, 2), query, beta=0, alpha=ctx.scaling)
        shape = (batch, heads, -1, width)
        grad_mask = None
        if ctx.needs_input_grad[3]:  # relative positions
            grad_mask = grad_scores.view(batch, heads, length, -1).sum_to_size(ctx.mask_shape)
        return grad_query.view(shape), grad_key.view(shape), grad_value.view(shape), grad_mask, None


class SplitHeads(torch.autograd.Function):
    """`[B, T, n, H, D / H]` -> n contiguous `[B, H, T, D / H]` by one copy each way (autograd makes two)."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor) -> tuple[Tensor, ...]:
        return parts.permute(2, 0, 3, 1, 4).contiguous().unbind(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        batch, heads, length, width = grads[0].shape
        gradient = grads[0].new_empty(batch, length, len(grads), heads, width)
        for i, grad in enumerate(grads):
            gradient[:, :, i] = grad.transpose(1, 2)
        return gradient


class PrivateCrossEntropy(torch.autograd.Function):
    """Sum of cross-entropies of logits `[N, V]` that nothing else reads: their gradient overwrites them.

    The logits are by far the largest tensor of a step; the usual way allocates two more of their size, and
    four of float32 for bfloat16 logits. Here rows are processed in float32, in blocks that fit caches. For
    1,016 x 50,257 logits in bfloat16 on one core, that took 0.12 s instead of 0.56 s.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, scale: float) -> Tensor:
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[-1]:
            wrong = labels[(labels < 0) | (labels >= logits.shape[-1])][0]
            raise IndexError(f"label {int(wrong)} is outside the vocabulary of {logits.shape[-1]} tokens")
        gradient = logits.detach()
        size = max(1, NUMBERS_AT_ONCE // gradient.shape[-1])
        total = torch.zeros((), dtype=torch.float64)
        for block, ids in zip(gradient.split(size), labels.split(size), strict=True):
            rows = torch.arange(len(ids))
            weights = block.float() if block.dtype == torch.bfloat16 else block
            chosen, highest = weights[rows, ids], weights.amax(dim=-1)
            sums = weights.sub_(highest[:, None]).exp_().sum(dim=-1)
            total += (sums.log() + highest - chosen).sum()
            weights.mul_((scale / sums)[:, None])
            weights[rows, ids] -= scale
            if weights is not block:
                block.copy_(weights)
        ctx.save_for_backward(gradient)
        return (total * scale).to(weights.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient if grad == 1 else gradient * grad, None, None
