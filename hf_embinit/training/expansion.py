"""A study of new tokens: what each way to initialise them costs before and after training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..display import markdown_table
from ..errors import RunFolderError
from ..measures import expansion_bound
from ..records import NO_EFFECT, RunRecord, read_record, to_plain, write_json, write_text
from ..tasks import Outcome
from ..tasks.language_modeling import TextData, pack_blocks, spread_blocks
from ..vocabulary import ExpansionReport, effective_rank, shift_by_prefix, smallest_distance
from .expansion_figures import plot_curves, plot_kl_histograms

EARLY_STEPS = (0, 20, 100)
"""Steps before the last whose validation scores are metrics of the run, where it evaluates at them."""


def _validation(row: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {f"{prefix}{name}": value for name, value in row.items() if name.startswith("validation_")}


class BaseModel:
    """The model before expansion: its scores on the validation text, and the text for KL(p || p')."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        texts: list[str],
        *,
        block_size: int,
        max_eval_blocks: int,
        max_kl_positions: int,
        batch_size: int,
    ):
        self.model, self.size = model, len(tokenizer)
        packed = pack_blocks(texts, tokenizer, block_size)
        blocks = spread_blocks(packed.blocks, max(1, max_kl_positions // block_size))
        self.kl_ids = torch.tensor(blocks["input_ids"][:]).split(batch_size)
        ids = torch.tensor(spread_blocks(packed.blocks, max_eval_blocks)["input_ids"][:]).to(model.device)
        with torch.no_grad():
            losses = [model(input_ids=i, labels=i).loss.item() * len(i) for i in ids.split(16)]
        scores = packed.scores(sum(losses) / len(ids))
        self.scores = {f"validation_{name}": value for name, value in scores.items()}


class ExpansionData(TextData):
    """Texts for a model with new tokens, scored by perplexities and KL(p || p')."""

    draws_tables = False

    def __init__(
        self,
        data: Mapping[str, Any],
        tokenizer: Any,
        base: BaseModel,
        expanded: PreTrainedModel,
        report: ExpansionReport,
        **settings: Any,
    ):
        super().__init__(data, tokenizer, **settings)
        self.base = base
        self.new_tokens = len(tokenizer) - base.size
        self.filled = report.filled_rows
        self.new_rows = self._rows(expanded)
        self.kl: Tensor = shift_by_prefix(base.model, expanded, base.kl_ids, report.filled_rows)
        bound = report.bound
        self.bound = expansion_bound(self.new_tokens, base.size) if bound is None else bound
        self.coverage = {"new_tokens": report.coverage} if report.coverage else {}

    def outcome(self, trainer: Any, history: Sequence[Mapping[str, float]]) -> Outcome:
        """Perplexities at the first steps and of the weights that are kept; KL(p || p') before training."""
        kept = trainer.predict(self.validation, metric_key_prefix="validation").metrics
        early = {f"step_{row['step']}_": row for row in history if row["step"] in EARLY_STEPS}
        return Outcome(
            {
                **self.scores("validation", kept["validation_loss"]),
                **{k: v for prefix, row in early.items() for k, v in _validation(row, prefix).items()},
                **self.spread(trainer.model),
                "kl_mean": float(self.kl.mean()),
                "kl_median": float(self.kl.median()),
                "kl_max": float(self.kl.max()),
                "kl_bound": self.bound,
                # KL = -log(1 - mass) when old rows stay
                "new_token_mass": float((1 - (-self.kl).exp()).mean()),
                "new_tokens": self.new_tokens,
                "train_tokens": self.packed["train"].tokens,
            }
        )

    def _rows(self, model: PreTrainedModel) -> Tensor:
        """A copy of the rows that were filled."""
        table: Any = model.get_input_embeddings()
        return table.weight.detach()[self.filled].cpu().clone()

    def spread(self, model: PreTrainedModel) -> dict[str, float]:
        """How far apart the new input rows are, in the dtype of the model, before training and after it."""
        before, after = self.new_rows, self._rows(model)
        measured = {}
        for when, rows in (("step_0_", before), ("", after)):
            measured[f"{when}new_rows_smallest_distance"] = smallest_distance(rows)
            finite = bool(rows.isfinite().all())  # else the run diverged
            measured[f"{when}new_rows_effective_rank"] = effective_rank(rows) if finite else math.nan
        return measured

    def figures(self, folder: Path, record: RunRecord) -> None:
        """KL before training, and bits per byte by step."""
        kl, curves = {record.init: self.kl}, {record.init: record.history}
        plot_kl_histograms(kl, folder / "figures" / "kl_before_training.png", bound=self.bound)
        plot_curves(curves, folder / "figures" / "bits_per_byte.png", reference=self.base.scores)


def finished_record(
    folder: Path, arguments: Mapping[str, Any], digests: Mapping[str, Mapping[str, Any]]
) -> RunRecord:
    """The record of an initialiser that was run before. Raises when another argument or other data may have
    changed what it measured."""
    record = read_record(folder)
    now = to_plain(dict(arguments))
    for name in sorted(set(now) & set(record.arguments) - NO_EFFECT - {"inits"}):
        if record.arguments[name] != now[name]:
            raise RunFolderError(
                f"--{name} is {now[name]!r}, but {folder} was run with {record.arguments[name]!r}: "
                f"give the same value or another --output_dir"
            )
    if record.data and any(record.data.get(split) != digest for split, digest in digests.items()):
        raise RunFolderError(
            f"{folder} was run on other texts than --dataset {now['dataset']} has now: bring them back, or "
            f"give another --output_dir"
        )
    return record


def write_comparison(
    folder: Path,
    title: str,
    new_tokens: Sequence[Any],
    before: dict[str, float],
    records: Mapping[str, RunRecord],
    kl: Mapping[str, Tensor],
) -> str:
    """Writes `README.md`, `summary.json` and the figures of a study into `folder`; returns the page."""
    figures, bound = folder / "figures", next(iter(records.values())).metrics["kl_bound"]
    histories = {init: record.history for init, record in records.items()}
    plot_kl_histograms(kl, figures / "kl_before_training.png", bound=bound, title=title)
    plot_curves(histories, figures / "bits_per_byte.png", reference=before, title=title)
    write_json(
        folder / "summary.json",
        {
            "new_tokens": [str(t) for t in new_tokens],
            "before_expansion": before,
            "runs": {init: {"metrics": r.metrics, "history": r.history} for init, r in records.items()},
        },
    )
    text = comparison(title, before, {init: record.metrics for init, record in records.items()})
    write_text(folder / "README.md", text)
    return text


def _shown(value: float | None, form: str) -> str:
    """A score in a cell; a record has none where it is infinite or no number."""
    return "diverged" if value is None else f"{value:{form}}"


def comparison(title: str, before: dict[str, float], runs: dict[str, dict[str, float]]) -> str:
    """A Markdown page: the table of the study, and its figures."""
    columns = {
        "KL mean": ("kl_mean", ".3g"),
        "KL median": ("kl_median", ".3g"),
        "KL max": ("kl_max", ".3g"),
        "mass on new tokens": ("new_token_mass", ".3g"),
        "bits/byte, step 0": ("step_0_validation_bits_per_byte", ".4f"),
        "bits/byte, last step": ("validation_bits_per_byte", ".4f"),
        "perplexity/word, last": ("validation_word_perplexity", ".4g"),
        "perplexity/token, last": ("validation_perplexity", ".4g"),
    }
    columns = {name: one for name, one in columns.items() if all(one[0] in m for m in runs.values())}
    lines = [
        f"# {title}",
        "",
        f"Before expansion: {before['validation_bits_per_byte']:.4f} bits per byte, perplexity "
        f"{before['validation_word_perplexity']:.4g} per word and {before['validation_perplexity']:.4g} per "
        f"token of the old tokenizer. KL(p || p') in nats, before training, is at most "
        f"{next(iter(runs.values()))['kl_bound']:.3g} for rows at the mean.",
        "",
        markdown_table(
            ["init", *columns],
            [
                [init, *(_shown(metrics[key], form) for key, form in columns.values())]
                for init, metrics in runs.items()
            ],
        ),
        "![How far each initialiser moves the model before training](figures/kl_before_training.png)",
        "",
        "![Bits per byte of validation text by step](figures/bits_per_byte.png)",
    ]
    return "\n".join(lines) + "\n"
