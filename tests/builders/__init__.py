"""What several test files build: tiny models, tokenizers, run folders, a Hub on this machine, a browser."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout."""
