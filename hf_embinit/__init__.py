"""hf_embinit: where token embeddings come from."""

from __future__ import annotations

from . import models as models  # registers the vanilla transformers with the Auto classes

__version__ = "0.1.0"
