"""Measures of embedding tables, vocabulary expansions, translations and classifications: pure functions.

`modules/` wraps some of them as `evaluate` modules. Nothing here loads a model or writes a file. Each
is imported on first use, since `hf_embinit.patch` needs only one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "absorption": ("absorption_curve", "table_4_transformations"),
        "analogies": ("AnalogyTask", "Question", "analogy_score", "read_analogies"),
        "divergence": (
            "expansion_bound",
            "kl_divergence",
            "largest_scale",
            "new_token_mass",
            "top1_agreement",
        ),
        "glue": ("GLUE_METRICS", "spearmanr"),
        "knn": ("Metric", "knn_match_by_k", "knn_match_similarity", "nearest_neighbors"),
        "loading": ("list_metrics", "load_metric", "metric_path"),
        "overlap": ("ENGLISH_LIKE", "english_like", "vocabulary_overlap"),
        "channel": ("PositionChannel", "position_channel", "probe_positions"),
        "positions": ("energy_share", "position_span"),
        "retrieval": ("mean_pooled", "retrieval_accuracy"),
        "statistics": (
            "EmbeddingStatistics",
            "check_table",
            "check_values",
            "embedding_statistics",
            "position_encoding",
            "position_encoding_statistics",
            "row_index",
            "xavier_statistics",
        ),
        "unused": ("unused_distance",),
    },
)

if TYPE_CHECKING:
    from .absorption import absorption_curve as absorption_curve
    from .absorption import table_4_transformations as table_4_transformations
    from .analogies import AnalogyTask as AnalogyTask
    from .analogies import Question as Question
    from .analogies import analogy_score as analogy_score
    from .analogies import read_analogies as read_analogies
    from .channel import PositionChannel as PositionChannel
    from .channel import position_channel as position_channel
    from .channel import probe_positions as probe_positions
    from .divergence import expansion_bound as expansion_bound
    from .divergence import kl_divergence as kl_divergence
    from .divergence import largest_scale as largest_scale
    from .divergence import new_token_mass as new_token_mass
    from .divergence import top1_agreement as top1_agreement
    from .glue import GLUE_METRICS as GLUE_METRICS
    from .glue import spearmanr as spearmanr
    from .knn import Metric as Metric
    from .knn import knn_match_by_k as knn_match_by_k
    from .knn import knn_match_similarity as knn_match_similarity
    from .knn import nearest_neighbors as nearest_neighbors
    from .loading import list_metrics as list_metrics
    from .loading import load_metric as load_metric
    from .loading import metric_path as metric_path
    from .overlap import ENGLISH_LIKE as ENGLISH_LIKE
    from .overlap import english_like as english_like
    from .overlap import vocabulary_overlap as vocabulary_overlap
    from .positions import energy_share as energy_share
    from .positions import position_span as position_span
    from .retrieval import mean_pooled as mean_pooled
    from .retrieval import retrieval_accuracy as retrieval_accuracy
    from .statistics import EmbeddingStatistics as EmbeddingStatistics
    from .statistics import check_table as check_table
    from .statistics import check_values as check_values
    from .statistics import embedding_statistics as embedding_statistics
    from .statistics import position_encoding as position_encoding
    from .statistics import position_encoding_statistics as position_encoding_statistics
    from .statistics import row_index as row_index
    from .statistics import xavier_statistics as xavier_statistics
    from .unused import unused_distance as unused_distance
