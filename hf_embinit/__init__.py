"""hf_embinit: where token embeddings come from."""

from __future__ import annotations

__version__ = "0.1.0"
