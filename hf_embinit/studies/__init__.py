"""The papers' tables, each a study in a YAML file here: its runs, their scheduling, the table made of them.

What a single run does is the business of its recipe.
"""

from __future__ import annotations

from .clusters import run_on_ray, slurm_script
from .comparisons import t_interval
from .paper_results import other_settings, paper_rows
from .report import failures_text, list_text, plan_text, waiting_text, write_smoke_files, write_study
from .requirements import check_flags, list_requirements
from .scheduling import Launch, Outcome, missing_runs, outcome_of, run_here, threads_of_a_run
from .study import list_studies, load_study

__all__ = [
    "Launch",
    "Outcome",
    "check_flags",
    "failures_text",
    "list_requirements",
    "list_studies",
    "list_text",
    "load_study",
    "missing_runs",
    "other_settings",
    "outcome_of",
    "paper_rows",
    "plan_text",
    "run_here",
    "run_on_ray",
    "slurm_script",
    "t_interval",
    "threads_of_a_run",
    "waiting_text",
    "write_smoke_files",
    "write_study",
]
