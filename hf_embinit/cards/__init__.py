"""What a stranger sees of a run or a table: its model card, and its repository on the Hub.

Also the pages of a project that are made from records: reference cards, the README's tables. Nothing here
trains, and numbers are only told, not made.
"""

from .cards import CARD_SAMPLES, hub_dataset, render_card, run_pages, write_card
from .embeddings_publishing import publish_embeddings
from .publishing import Publication, PushTarget, planned_files, publish, take_push_to_hub, take_pushes_to_hub
from .readme import PAPERS, render_readme
from .reference_cards import reference_cards, write_reference_cards

__all__ = [
    "CARD_SAMPLES",
    "PAPERS",
    "Publication",
    "PushTarget",
    "hub_dataset",
    "planned_files",
    "publish",
    "publish_embeddings",
    "reference_cards",
    "render_card",
    "render_readme",
    "run_pages",
    "take_push_to_hub",
    "take_pushes_to_hub",
    "write_card",
    "write_reference_cards",
]
