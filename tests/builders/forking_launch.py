"""`accelerate launch` on CPUs, whose processes are forks of one that has imported what they all need.

Each of them would otherwise spend some twelve seconds on that.
"""

from __future__ import annotations

import importlib
import os
import sys
from argparse import ArgumentParser

import evaluate  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import peft  # noqa: F401
import spacy  # noqa: F401
import transformers.trainer  # noqa: F401
from accelerate.commands.launch import main
from torch.distributed import run

import hf_embinit.models
import hf_embinit.training.loop  # noqa: F401

torch_parser, run_script = run.get_args_parser, run.run_script_path


def forking_parser() -> ArgumentParser:
    """torchrun's parser, with `--run_path --start_method fork`."""
    parser = torch_parser()
    parser.set_defaults(run_path=True, start_method="fork")
    return parser


def run_as_if_started(script: str, *arguments: str) -> None:
    """Runs a script where the environment is the launcher's, which the `sitecustomize` of a test reads."""
    if "SHARDED" in os.environ:
        importlib.reload(sys.modules["sitecustomize"])
    run_script(script, *arguments)


run.get_args_parser, run.run_script_path = forking_parser, run_as_if_started
main()
