"""Files of the Hugging Face Hub, or of its cache where it is out of reach, and commits of what is handed in.

Nothing here knows of runs, models or cards, and nothing is chosen for publication here.
"""

from .access import (
    cache_only,
    hub_file,
    hub_is_offline,
    hub_is_reachable,
    hub_snapshot,
    load_pretrained,
    load_pretrained_tokenizer,
)
from .repository import INIT_BRANCH, LIST_NAME, Branch, HubRepository

__all__ = [
    "INIT_BRANCH",
    "LIST_NAME",
    "Branch",
    "HubRepository",
    "cache_only",
    "hub_file",
    "hub_is_offline",
    "hub_is_reachable",
    "hub_snapshot",
    "load_pretrained",
    "load_pretrained_tokenizer",
]
