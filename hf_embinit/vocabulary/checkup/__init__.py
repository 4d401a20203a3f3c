"""`doctor`: what is wrong between tables, configurations, files and tokenizer; `repair` refills rows.

A check is a function from a `Case` to findings; each file keeps a list of its checks.
"""

from __future__ import annotations

from .diagnosis import doctor, repair
from .finding import Finding

__all__ = ["Finding", "doctor", "repair"]
