"""How far a vocabulary expansion moves next-token distributions. `n` old rows, `m` new ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..arguments import Positive, checked
from ..errors import InvalidArgumentError
from .statistics import check_values

_BLOCK_ELEMENTS = 2**22


def _check_logits(before: Tensor, after: Tensor) -> None:
    fits = before.ndim > 0 and before.shape[-1] > 0 and before.shape[:-1] == after.shape[:-1]
    if not fits or after.ndim == 0 or after.shape[-1] < before.shape[-1]:
        raise InvalidArgumentError(
            f"logits before {tuple(before.shape)} and after {tuple(after.shape)}: expected [..., n] "
            "and [..., n + m]"
        )
    for name, logits in (("before", before), ("after", after)):
        _check_probabilities(logits, f"the logits {name}")


def _check_probabilities(logits: Tensor, name: str) -> None:
    check_values(logits, name)
    if bool((torch.isnan(logits) | (logits == math.inf)).any()):
        raise InvalidArgumentError(f"{name} have NaN or +inf: they are no probabilities")
    if bool((logits == -math.inf).all(-1).any()):
        raise InvalidArgumentError(f"{name} have a row that is -inf throughout: it is no probabilities")


@checked
def kl_divergence(before: Tensor, after: Tensor) -> Tensor:
    """KL(p || p') in nats, `[...]` float64, from logits `before` `[..., n]` and `after` `[..., n + m]`.

    The first n columns of both are the same tokens; p' puts some of its probability on the m others, so the
    divergence is 0 at the least and log(1 + sum_j exp(z_j) / Z) when the first n logits did not change
    (Hewitt 2021). Raises `InvalidArgumentError` when `after` has fewer columns or other prefixes,
    for NaN and +inf, and for a row of -inf alone.
    """
    _check_logits(before, after)
    n = before.shape[-1]
    parts = []
    size = max(1, _BLOCK_ELEMENTS // after.shape[-1])
    rows = zip(before.reshape(-1, n).split(size), after.reshape(-1, after.shape[-1]).split(size), strict=True)
    for old, new in rows:
        log_p = old.double().log_softmax(-1)
        log_q = new.double().log_softmax(-1)[:, :n]
        terms = torch.where(log_p == -torch.inf, 0.0, log_p.exp() * (log_p - log_q))
        parts.append(terms.sum(-1).clamp_min(0.0))
    return (
        torch.cat(parts).reshape(before.shape[:-1]) if parts else before.new_zeros(before.shape[:-1]).double()
    )


@checked
def expansion_bound(new: int, old: int, *, cap: Positive | None = None, largest: float = math.inf) -> float:
    """log(1 + m / n): what KL(p || p') cannot exceed when m new rows (and biases) are the mean of n old ones.

    By Jensen's inequality (Hewitt 2021, for m = 1), for any prefix: exp is convex, so that a new token has at
    most the mean probability of the old ones.

    `cap` is c of a head that gives c tanh(z / c) for the logit z. exp(c tanh(z / c)) is convex as long as the
    capped logit is at most sqrt(1 + c^2) - 1 (29.02 for Gemma 2's 30), and the bound holds where the
    `largest` of the capped old logits is no more. Elsewhere it can be broken, and the smallest number that
    never is is log(1 + m / (1 + (n - 1) exp(-2c))), nearly log(1 + m) for the caps in use: the new logit is
    at most the largest old one, the others are at least -c, and one huge logit beside low ones comes as near
    as one likes.

    It is of exact arithmetic; in float16 rounding can pass it, by 9% with a head chosen for that.
    """
    if new < 0 or old < 1:
        raise InvalidArgumentError(
            f"expansion_bound of {new} new and {old} old tokens: expected m >= 0 and n >= 1"
        )
    if cap is None or largest <= math.sqrt(1 + cap * cap) - 1:
        return math.log1p(new / old)
    return math.log1p(new / (1 + (old - 1) * math.exp(-2 * cap)))


@checked
def largest_scale(logits: Tensor) -> float:
    """The largest scale of `mean_cov` whose expected loss of probability stays inside the bound, measured.

    From logits `[..., n]` over the old tokens. A draw from N(mean, scale * Sigma) has a logit that is normal
    with the mean of a prefix's logits and scale times their variance (1/n), so its exponential is
    exp(mean + scale * variance / 2) in expectation. Hewitt's bound asks that to be at most the mean of the
    old exponentials: scale <= 2 (logsumexp - log n - mean) / variance, here the smallest over the prefixes.
    Normal logits give 1, and prefixes whose logits are all equal have no bound: infinity, where all are.
    Single draws exceed their expectation: `scale="auto"` never passes the bound.

    Raises `InvalidArgumentError` for fewer than two tokens, no prefix, and logits that are not finite.
    """
    if logits.ndim == 0 or logits.shape[-1] < 2 or not logits.numel():
        raise InvalidArgumentError(
            f"logits {tuple(logits.shape)}: expected [..., n], at least one prefix and two tokens"
        )
    check_values(logits, "logits")
    z = logits.double()
    if not bool(torch.isfinite(z).all()):
        raise InvalidArgumentError("logits have NaN or infinite values, so they have no variance")
    z = z - z.mean(-1, keepdim=True)
    variance = z.var(-1, correction=0)
    # where logits are nearly equal, the logarithm of their mean exponential is lost beside log n
    near = torch.log1p((torch.expm1(z.clamp_max(1.0)) - z).mean(-1))
    gap = torch.where(z.abs().amax(-1) < 1, near, z.logsumexp(-1) - math.log(z.shape[-1]))
    return float(torch.where((logits == logits[..., :1]).all(-1), math.inf, 2 * gap / variance).min())


@checked
def new_token_mass(after: Tensor, old: int) -> Tensor:
    """Probability `[...]`, float64, that logits `after` `[..., n + m]` give to columns from `old` = n on."""
    if after.ndim == 0:
        raise InvalidArgumentError("after is a single number: expected logits [..., n + m]")
    if not 0 <= old <= after.shape[-1]:
        raise InvalidArgumentError(f"old must be between 0 and the {after.shape[-1]} columns, got {old}")
    _check_probabilities(after, "the logits after")
    z = after.double()
    if old == after.shape[-1]:
        return torch.zeros(after.shape[:-1], dtype=torch.float64, device=after.device)
    return (z[..., old:].logsumexp(-1) - z.logsumexp(-1)).exp()


@checked
def top1_agreement(before: Tensor, after: Tensor) -> float:
    """Share, 0 to 1, of prefixes with the same likeliest token before `[..., n]` and after `[..., n + m]`."""
    _check_logits(before, after)
    if not before.numel():
        raise InvalidArgumentError(f"logits before {tuple(before.shape)}: expected at least one prefix")
    return float((before.argmax(-1) == after.argmax(-1)).double().mean())
