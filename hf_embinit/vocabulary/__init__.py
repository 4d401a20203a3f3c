"""Changes to the vocabulary of a trained model: expand, prune, replace, check, propose, carry by an adapter.

The values of new rows come from `hf_embinit.rows`; layers and weights are changed in `hf_embinit.surgery`.
"""

from __future__ import annotations

from .adapters import (
    VocabularyCallback,
    carry_vocabulary,
    check_nothing_left_out,
    load_adapter,
)
from .adapters_on_disk import attach_adapter
from .carried_rows import save_vocabulary
from .checkup import Finding, doctor, repair
from .expansion import expand_vocabulary
from .explanation import explain_tokens
from .merging import merge_adapter
from .new_row_training import train_new_rows_only
from .peft_configuration import peft_config_for_new_tokens
from .proposals import propose_tokens
from .pruning import PruneReport, prune_vocabulary, used_tokens
from .rates import parameter_groups
from .refining import read_refinement
from .replacement import replace_tokenizer
from .replacement_report import ReplacementReport
from .report import DistributionShift, ExpansionReport, TokenPlan
from .shift import effective_rank, shift_by_prefix, smallest_distance
from .slots import Slots
from .token_files import read_tokens_file

__all__ = [
    "DistributionShift",
    "ExpansionReport",
    "Finding",
    "PruneReport",
    "ReplacementReport",
    "Slots",
    "TokenPlan",
    "VocabularyCallback",
    "attach_adapter",
    "carry_vocabulary",
    "check_nothing_left_out",
    "doctor",
    "effective_rank",
    "expand_vocabulary",
    "explain_tokens",
    "load_adapter",
    "merge_adapter",
    "parameter_groups",
    "peft_config_for_new_tokens",
    "propose_tokens",
    "prune_vocabulary",
    "read_refinement",
    "read_tokens_file",
    "repair",
    "replace_tokenizer",
    "save_vocabulary",
    "shift_by_prefix",
    "smallest_distance",
    "train_new_rows_only",
    "used_tokens",
]
