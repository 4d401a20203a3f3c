"""The Hugging Face Hub: files fetched from it (from its cache when it is out of reach), commits made to it.

What to commit is the caller's choice: nothing here knows of runs, models or cards.
"""

from .access import (
    cache_only,
    checkpoint_file,
    hub_file,
    hub_is_offline,
    hub_is_reachable,
    hub_snapshot,
    load_pretrained,
    load_pretrained_tokenizer,
)
from .classes import model_class
from .collections import add_to_collection
from .repository import INIT_BRANCH, LIST_NAME, Branch, HubRepository, RepoType, check_repo_id

__all__ = [
    "INIT_BRANCH",
    "LIST_NAME",
    "Branch",
    "HubRepository",
    "RepoType",
    "add_to_collection",
    "cache_only",
    "check_repo_id",
    "checkpoint_file",
    "hub_file",
    "hub_is_offline",
    "hub_is_reachable",
    "hub_snapshot",
    "load_pretrained",
    "load_pretrained_tokenizer",
    "model_class",
]
