"""`patch`, `patched`, `unpatch`: transformers' own methods fill rows by an initialiser.

Only what replaces or wraps methods of transformers (and TRL) belongs here; rows are
made in `hf_embinit.rows`.
"""

from __future__ import annotations

from .everywhere import patched
from .instances import patch, unpatch

__all__ = ["patch", "patched", "unpatch"]
