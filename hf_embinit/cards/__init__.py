"""Model cards of runs and tables, their publication on the Hub, and pages made from records.

Nothing here trains or measures: numbers come from records. Commits are made by `hf_embinit.hub`.
"""

from .cards import CARD_SAMPLES, hub_dataset, render_card, write_card
from .embeddings_publishing import prepare_vectors_push, publish_embeddings
from .pages import PAPERS, render_page
from .picture import draw_why
from .publishing import Publication, PushTarget, planned_files, prepare_push, publish
from .publishing_all import PublishedRuns, planned_runs, publish_all
from .reference_cards import reference_cards, write_reference_cards

__all__ = [
    "CARD_SAMPLES",
    "PAPERS",
    "Publication",
    "PublishedRuns",
    "PushTarget",
    "draw_why",
    "hub_dataset",
    "planned_files",
    "planned_runs",
    "prepare_push",
    "prepare_vectors_push",
    "publish",
    "publish_all",
    "publish_embeddings",
    "reference_cards",
    "render_card",
    "render_page",
    "write_card",
    "write_reference_cards",
]
