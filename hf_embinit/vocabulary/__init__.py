"""Changing the vocabulary of a trained model: expand it, propose what to add, prune it."""

from __future__ import annotations

from .expansion import expand_vocabulary
from .pruning import PruneReport, prune_vocabulary
from .report import DistributionShift, ExpansionReport, TokenPlan
from .words import propose_tokens

__all__ = [
    "DistributionShift",
    "ExpansionReport",
    "PruneReport",
    "TokenPlan",
    "expand_vocabulary",
    "propose_tokens",
    "prune_vocabulary",
]
