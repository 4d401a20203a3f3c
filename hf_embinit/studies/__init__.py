"""The papers' tables as matrices of runs: plan, schedule, table; one yaml file a study beside the code.

What a single run does is decided by its recipe.
"""

from __future__ import annotations

from .clusters import run_on_ray, slurm_script
from .matrix import list_studies, load_study
from .paper_results import other_settings, paper_rows
from .report import plan_text, write_smoke_files, write_study
from .requirements import list_requirements
from .scheduling import Launch, Outcome, outcome_of, run_here

__all__ = [
    "Launch",
    "Outcome",
    "list_requirements",
    "list_studies",
    "load_study",
    "other_settings",
    "outcome_of",
    "paper_rows",
    "plan_text",
    "run_here",
    "run_on_ray",
    "slurm_script",
    "write_smoke_files",
    "write_study",
]
