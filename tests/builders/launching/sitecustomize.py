"""Imported at the start of each process of a test in which two processes train on CPUs.

The launcher of accelerate makes its processes forks of itself, once it has imported what they all need, which
would take each of them some twelve seconds; and processes that accelerate wants sharded are sharded.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from typing import Any


def fork_processes() -> None:
    """Has torchrun, which accelerate calls, run with `--run_path --start_method fork`."""
    import evaluate  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import peft  # noqa: F401
    import spacy  # noqa: F401
    import transformers.trainer  # noqa: F401
    from torch.distributed import run

    import hf_embinit.models
    import hf_embinit.training.loop  # noqa: F401

    torch_parser, run_script = run.get_args_parser, run.run_script_path

    def parser() -> ArgumentParser:
        parser = torch_parser()
        parser.set_defaults(run_path=True, start_method="fork")
        return parser

    def run_sharded(script: str, *arguments: str) -> None:
        if os.environ.get("ACCELERATE_USE_FSDP") == "true":
            shard_on_cpus()
        run_script(script, *arguments)

    run.get_args_parser, run.run_script_path = parser, run_sharded


def shard_on_cpus() -> None:
    """Lets CPUs use FSDP, which each process tells in the file `SHARDED`.

    accelerate would train with DDP, without a word: to it, processes without an accelerator are never FSDP's.
    """
    from accelerate import state
    from accelerate.utils import DistributedType

    original = state.AcceleratorState.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not state.AcceleratorState._shared_state:
            state.PartialState(cpu=True)
            state.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        original(self, *args, **kwargs)
        with open(os.environ["SHARDED"], "a") as file:
            file.write(f"{self.distributed_type.name} {self.fsdp_plugin.fsdp_version}\n")

    state.AcceleratorState.__init__ = init


if "accelerate.commands.launch" in sys.orig_argv:
    fork_processes()
