"""The commands of `hf-embinit`: each reads its flags, calls the package and returns an `Answer`.

No command computes anything itself or prints (`__main__` does), and slow imports wait until one runs.
"""

from __future__ import annotations

from .analyze import ANALYZE
from .cards import CARDS
from .checkpoints import EXPAND, INIT, SURGERY
from .command import Answer, Command, CommandLineError
from .completion import COMPLETION
from .pruning import PRUNE
from .registries import LIST, MANIFEST
from .retokenizing import EXPLAIN, RETOKENIZE
from .runs import COMPARE, PUBLISH, RESULTS
from .site import SITE
from .train import TRAIN
from .vocabularies import DOCTOR, MERGE

COMMANDS = {
    "list": LIST,
    "init": INIT,
    "expand": EXPAND,
    "merge": MERGE,
    "prune": PRUNE,
    "retokenize": RETOKENIZE,
    "explain": EXPLAIN,
    "doctor": DOCTOR,
    "surgery": SURGERY,
    "train": TRAIN,
    "analyze": ANALYZE,
    "compare": COMPARE,
    "manifest": MANIFEST,
    "results": RESULTS,
    "site": SITE,
    "publish": PUBLISH,
    "cards": CARDS,
    "completion": COMPLETION,
}

__all__ = ["COMMANDS", "Answer", "Command", "CommandLineError"]
