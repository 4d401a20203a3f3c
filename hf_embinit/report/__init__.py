"""The report on embedding tables, in Markdown and HTML, the site, and the comparison of two tables.

The measures themselves are in `hf_embinit.measures`; training runs are reported by `hf_embinit.cards`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "comparison": ["Comparison", "compare"],
        "frontier": ["FrontierArguments", "measure_frontier"],
        "run": ["AnalysisArguments", "analyze_embeddings", "summary"],
        "site": ["write_site"],
    },
)

if TYPE_CHECKING:
    from .comparison import Comparison as Comparison
    from .comparison import compare as compare
    from .frontier import FrontierArguments as FrontierArguments
    from .frontier import measure_frontier as measure_frontier
    from .run import AnalysisArguments as AnalysisArguments
    from .run import analyze_embeddings as analyze_embeddings
    from .run import summary as summary
    from .site import write_site as write_site
