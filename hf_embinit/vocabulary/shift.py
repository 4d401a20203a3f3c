"""Next-token distributions before and after new rows, over prefixes of old tokens."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..arguments import as_called, checked
from ..errors import UnsupportedModelError, VocabularyWarning
from ..measures import kl_divergence, new_token_mass, top1_agreement
from ..modes import evaluating
from .report import DistributionShift

logger = logging.getLogger(__name__)

GENERATED_TEXTS, GENERATED_LENGTH = 4, 16
"""Texts and tokens in each when no prefixes are given."""

_MAX_LOGITS = 2**24
"""Logits kept from before the change (64 MiB in float32): longer lists of prefixes are cut."""


_MAX_PAIRED = 2048
"""Rows whose distances are taken pair by pair."""

_MAX_RANKED = 1024
"""Rows that an effective rank is taken of."""


class ShiftMeter:
    """Reads the distributions of a model before its vocabulary grows, and compares them afterwards.

    Every position of every prefix gives one distribution. For `"generated"` it takes texts that the model
    itself writes (ids drawn at random for models that do not generate from a prefix alone), without the ids
    `avoid`, whose rows will change.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        prefixes: Sequence[str],
        num_rows: int,
        seed: int,
        avoid: Sequence[int] = (),
    ):
        self.model = model
        generator = torch.Generator().manual_seed(seed)
        limit = max(16, _MAX_LOGITS // num_rows)
        if prefixes == "generated":
            self.ids = [_generated(model, tokenizer, num_rows, generator, avoid)]
        else:
            self.ids = [torch.tensor([i]) for i in tokenizer(list(prefixes))["input_ids"] if i]
        total = sum(i.numel() for i in self.ids)
        if total > limit:
            logger.info("comparing distributions at the first %d of %d positions", limit, total)
        self.before: list[Tensor] = []
        for ids in self.ids:
            logits = next_token_logits(model, ids)
            left = limit - sum(len(b) for b in self.before)
            if logits is None or left <= 0:
                break
            if not _is_distribution(logits):
                self.before = []
                _warn_of_no_distribution(model)
                break
            self.before.append(logits[:left])

    def compare(self, filled: Sequence[int]) -> DistributionShift | None:
        """The shift once the rows `filled` are in; None when the model gives no logits over its vocabulary,
        or, with a warning, such as are no distribution.

        p is over the old rows that were not overwritten, p' over those and the new ones.
        """
        kl, mass, same = [], [], []
        for ids, before in zip(self.ids, self.before, strict=False):
            logits = next_token_logits(self.model, ids)
            assert logits is not None
            if not _is_distribution(logits):
                _warn_of_no_distribution(self.model)
                return None
            old, after = paired_logits(before, logits[: len(before)], filled)
            kl.append(kl_divergence(old, after))
            mass.append(new_token_mass(after, old.shape[-1]))
            same.append(top1_agreement(old, after) * len(old))
        if not kl:
            return None
        kls, masses = torch.cat(kl), torch.cat(mass)
        return DistributionShift(
            prefixes=len(kls),
            kl_mean=float(kls.mean()),
            kl_max=float(kls.max()),
            mass_mean=float(masses.mean()),
            mass_max=float(masses.max()),
            top1_agreement=sum(same) / len(kls),
            largest_logit=max(float(logits.max()) for logits in self.before if len(logits)),
        )


def _is_distribution(logits: Tensor) -> bool:
    """Whether logits `[P, V]` give probabilities; -inf for some tokens is a probability of zero."""
    return bool(torch.isfinite(logits.logsumexp(-1)).all())


def _warn_of_no_distribution(model: PreTrainedModel) -> None:
    warnings.warn(
        f"{type(model).__name__} gives logits that are NaN or infinite, of its padding rows perhaps or in "
        f"float16: next-token distributions are not compared (hf_embinit.doctor looks for such rows; "
        f"prefixes=() compares nothing)",
        VocabularyWarning,
        stacklevel=6,
    )


def paired_logits(before: Tensor, after: Tensor, filled: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Logits `[P, n]` of the old rows that were not overwritten, `[P, n + m]` with the rows `filled` last."""
    new = torch.zeros(after.shape[-1], dtype=torch.bool)
    new[list(filled)] = True
    kept = (~new[: before.shape[-1]]).nonzero().flatten()
    return before[:, kept], torch.cat([after[:, kept], after[:, new]], dim=-1)


@checked
def shift_by_prefix(
    before: PreTrainedModel, after: PreTrainedModel, blocks: Iterable[Tensor], filled: Sequence[int]
) -> Tensor:
    """KL(p || p') `[P]` in nats at every position of blocks of old ids `[B, T]`, between two models.

    Raises `UnsupportedModelError` when a model gives no logits over its vocabulary.
    """
    divergences = []
    for ids in blocks:
        old, new = next_token_logits(before, ids), next_token_logits(after, ids)
        if old is None or new is None:
            raise UnsupportedModelError(f"{type(before).__name__} gives no logits over its vocabulary")
        divergences.append(kl_divergence(*paired_logits(old, new, filled)))
    return torch.cat(divergences)


def next_token_logits(model: PreTrainedModel, ids: Tensor) -> Tensor | None:
    """`[B * T, V]` logits on the CPU for ids `[B, T]`, without dropout; encoder-decoders read them twice.

    None for a model that gives no logits over its vocabulary.
    """
    from_files = "disk" in (getattr(model, "hf_device_map", None) or {}).values()
    moved = from_files or model.device.type == "meta"  # by accelerate's hooks, where weights are offloaded
    inputs = {"input_ids": ids if moved else ids.to(model.device)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    try:
        with torch.no_grad(), evaluating(model), as_called():
            logits = getattr(model(**inputs), "logits", None)
    except Exception as error:
        if from_files:
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be run layer by layer from its files ({error}): load it with "
                f"from_pretrained and give expand_vocabulary that, or leave --measure (prefixes=) out"
            ) from error
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be run on token ids alone ({error}); "
            "prefixes=(), or no --measure, leaves the comparison out"
        ) from error
    if not isinstance(logits, Tensor) or logits.dim() != 3 or model.get_output_embeddings() is None:
        return None
    return logits.flatten(0, 1).float().cpu()


def _generated(
    model: PreTrainedModel, tokenizer: Any, num_rows: int, generator: torch.Generator, avoid: Sequence[int]
) -> Tensor:
    """Ids `[B, T]` of texts to compare on."""
    vocabulary = min(len(tokenizer), num_rows)
    allowed = torch.ones(vocabulary, dtype=torch.bool)
    allowed[[i for i in avoid if i < vocabulary]] = False
    choice = allowed.nonzero().flatten()
    ids = choice[torch.randint(len(choice), (GENERATED_TEXTS, GENERATED_LENGTH), generator=generator)]
    if not model.can_generate() or model.config.is_encoder_decoder:
        return ids
    if tokenizer.bos_token_id is not None:
        ids[:, 0] = tokenizer.bos_token_id
    for length in range(1, GENERATED_LENGTH):
        logits = next_token_logits(model, ids[:, :length])
        if logits is None:
            break
        last = logits.view(GENERATED_TEXTS, length, -1)[:, -1, :vocabulary].masked_fill(~allowed, -torch.inf)
        if not _is_distribution(last):
            break
        ids[:, length] = torch.multinomial(last.softmax(-1), 1, generator=generator).flatten()
    return ids


def smallest_distance(rows: Tensor) -> float:
    """The smallest Euclidean distance between two of at least two rows `[R, D]`.

    Of more than 2,048 rows whether two are equal, and the smallest distance among the first 2,048: that of
    all pairs would cost more than everything else.
    """
    rows = rows.float()
    if len(rows.unique(dim=0)) < len(rows):
        return 0.0
    rows = rows[:_MAX_PAIRED].double()  # in float32 rows of one tight cluster are as near as rounding has it
    centered = rows - rows.mean(0)
    squares = centered.square().sum(1)
    smallest = math.inf
    for start in range(0, len(rows), 1024):
        block = centered[start : start + 1024]
        scores = squares - 2 * block @ centered.T  # squared distances up to a constant of the row
        scores[range(len(block)), range(start, start + len(block))] = math.inf
        nearest = rows[scores.argmin(1)]
        smallest = min(smallest, float((rows[start : start + 1024] - nearest).norm(dim=1).min()))
    return smallest


def effective_rank(rows: Tensor) -> float:
    """exp(entropy) of the singular values of rows `[R, D]` around their mean: 0 if equal, at most R - 1.

    Of the first 1,024 rows, as more would cost more than everything else (Roy & Vetterli 2007, The effective
    rank).
    """
    exact = rows[:_MAX_RANKED].double()
    centered = exact - exact.mean(0)
    gram = centered @ centered.T if len(exact) <= exact.shape[1] else centered.T @ centered
    values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    rounding = 1e-7 * centered.norm() + 1e-14 * exact.norm()  # of the singular values, and of the mean
    values = values[values > rounding]
    if not len(values):
        return 0.0
    shares = values / values.sum()
    return float(torch.exp(-(shares * shares.log()).sum()))
