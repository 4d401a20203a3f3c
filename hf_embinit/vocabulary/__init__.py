"""Changes to the vocabulary of a trained model: expand, prune, check, carry with an adapter, propose tokens.

The values of new rows come from `hf_embinit.rows`; layers and weights are changed in `hf_embinit.surgery`.
"""

from __future__ import annotations

from .adapters import VocabularyCallback, carry_vocabulary, load_adapter, save_vocabulary
from .checkup import Finding, doctor, repair
from .expansion import expand_vocabulary
from .merging import merge_adapter
from .new_row_training import peft_config_for_new_tokens, train_new_rows_only
from .proposals import propose_tokens
from .pruning import PruneReport, prune_vocabulary
from .report import DistributionShift, ExpansionReport, TokenPlan
from .shift import shift_by_prefix
from .slots import Slots

__all__ = [
    "DistributionShift",
    "ExpansionReport",
    "Finding",
    "PruneReport",
    "Slots",
    "TokenPlan",
    "VocabularyCallback",
    "carry_vocabulary",
    "doctor",
    "expand_vocabulary",
    "load_adapter",
    "merge_adapter",
    "peft_config_for_new_tokens",
    "propose_tokens",
    "prune_vocabulary",
    "repair",
    "save_vocabulary",
    "shift_by_prefix",
    "train_new_rows_only",
]
