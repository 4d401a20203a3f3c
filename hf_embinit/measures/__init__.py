"""Measures of embedding tables, vocabulary expansions, translations and classifications: pure functions.

`modules/` wraps some of them as `evaluate` modules. Nothing here loads a model or writes a file.
"""

from __future__ import annotations

from .absorption import absorption_curve, position_span, table_4_transformations
from .analogies import AnalogyTask, Question, analogy_score, read_analogies
from .divergence import expansion_bound, kl_divergence, largest_scale, new_token_mass, top1_agreement
from .glue import GLUE_METRICS, spearmanr
from .knn import Metric, knn_match_similarity, nearest_neighbors
from .loading import list_metrics, load_metric, metric_path
from .overlap import ENGLISH_LIKE, english_like, vocabulary_overlap
from .position_channel import PositionChannel, position_channel, probe_positions
from .retrieval import mean_pooled, retrieval_accuracy
from .statistics import (
    EmbeddingStatistics,
    check_table,
    embedding_statistics,
    position_encoding,
    position_encoding_statistics,
    xavier_statistics,
)
from .unused import unused_distance

__all__ = [
    "ENGLISH_LIKE",
    "GLUE_METRICS",
    "AnalogyTask",
    "EmbeddingStatistics",
    "Metric",
    "PositionChannel",
    "Question",
    "absorption_curve",
    "analogy_score",
    "check_table",
    "embedding_statistics",
    "english_like",
    "expansion_bound",
    "kl_divergence",
    "knn_match_similarity",
    "largest_scale",
    "list_metrics",
    "load_metric",
    "mean_pooled",
    "metric_path",
    "nearest_neighbors",
    "new_token_mass",
    "position_channel",
    "position_encoding",
    "position_encoding_statistics",
    "position_span",
    "probe_positions",
    "read_analogies",
    "retrieval_accuracy",
    "spearmanr",
    "table_4_transformations",
    "top1_agreement",
    "unused_distance",
    "vocabulary_overlap",
    "xavier_statistics",
]
