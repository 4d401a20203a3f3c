"""Training: the one `run` that every recipe hands over to, with its arguments, callbacks and figures.

A task is described in `hf_embinit.tasks`, a finished run in `hf_embinit.records`. Names are imported on first
use, so that a recipe's `--help` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "arguments": (
            "default_folder",
            "flag",
            "parse_arguments",
            "run_main",
        ),
        "expansion": (
            "BaseModel",
            "ExpansionData",
            "finished_record",
            "write_comparison",
        ),
        "figures": ("plot_embedding_distribution",),
        "loop": (
            "run",
            "start",
        ),
        "shared_arguments": (
            "BY_LENGTH",
            "BY_LOSS",
            "FileArguments",
            "InitArguments",
            "SampleArguments",
            "SurgeryArguments",
            "TestFileArguments",
            "TwinArguments",
            "VanillaArguments",
            "at_steps",
            "changed_by",
            "chosen_init",
            "every_epoch",
        ),
        "twins": (
            "TwinData",
            "check_experiment",
        ),
    },
)

if TYPE_CHECKING:
    from .arguments import default_folder as default_folder
    from .arguments import flag as flag
    from .arguments import parse_arguments as parse_arguments
    from .arguments import run_main as run_main
    from .expansion import BaseModel as BaseModel
    from .expansion import ExpansionData as ExpansionData
    from .expansion import finished_record as finished_record
    from .expansion import write_comparison as write_comparison
    from .figures import plot_embedding_distribution as plot_embedding_distribution
    from .loop import run as run
    from .loop import start as start
    from .shared_arguments import BY_LENGTH as BY_LENGTH
    from .shared_arguments import BY_LOSS as BY_LOSS
    from .shared_arguments import FileArguments as FileArguments
    from .shared_arguments import InitArguments as InitArguments
    from .shared_arguments import SampleArguments as SampleArguments
    from .shared_arguments import SurgeryArguments as SurgeryArguments
    from .shared_arguments import TestFileArguments as TestFileArguments
    from .shared_arguments import TwinArguments as TwinArguments
    from .shared_arguments import VanillaArguments as VanillaArguments
    from .shared_arguments import at_steps as at_steps
    from .shared_arguments import changed_by as changed_by
    from .shared_arguments import chosen_init as chosen_init
    from .shared_arguments import every_epoch as every_epoch
    from .twins import TwinData as TwinData
    from .twins import check_experiment as check_experiment
