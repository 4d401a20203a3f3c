"""The wording of a model card: manifest, settings, limits and citations, as lines and cells of Markdown."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..display import markdown_code, markdown_text, printable
from ..errors import UnknownNameError
from ..initializers import Initializer, get_initializer
from ..manifest import row_ids
from ..records import RunRecord
from ..tasks import task_of

_CODE_WIDTH = 110
_CAPTIONS = {
    "learning_curve": "Learning curve: losses and score by epoch; the dotted line is the epoch that was kept",
    "kl_before_training": "How far new rows move the next-token probabilities before training: right of "
    "the dashed line is more than rows at the mean ever do",
    "bits_per_byte": "Bits per byte of validation text by training step: lower is better",
    "trajectory": "Two models that differ in their seed: shared neighbors of their tables, losses and spread",
}
_SETTINGS = {
    "model": "model",
    "surgery": "surgery",
    "donor": "donor of embeddings",
    "tokenizer": "tokenizer",
    "train_file": "training file, in place of the data set's",
    "validation_file": "validation file, in place of the data set's",
    "test_file": "test file, in place of the data set's",
    "source_lang": "source language",
    "target_lang": "target language",
    "max_length": "tokens a text at most",
    "learning_rate": "learning rate",
    "lr_scheduler_type": "schedule",
    "optim": "optimizer",
    "adam_beta1": "Adam beta 1",
    "adam_beta2": "Adam beta 2",
    "adam_epsilon": "Adam epsilon",
    "warmup_steps": "warm-up (steps, or share of them)",
    "weight_decay": "weight decay",
    "num_train_epochs": "epochs",
    "max_steps": "steps at most",
    "per_device_train_batch_size": "batch size per device",
    "gradient_accumulation_steps": "gradient accumulation",
    "d_model": "width",
    "d_ff": "feed-forward width",
    "num_layers": "layers a stack",
    "num_heads": "heads",
    "norm_position": "layer norm",
    "dropout_rate": "dropout",
    "position_encoding": "positions",
    "position_scale": "factor of the positions",
    "freeze_embeddings": "embeddings frozen",
    "generation_num_beams": "beams",
    "bf16": "bf16",
    "fp16": "fp16",
}
_ANSWERS = ("row", "reference", "label", "prediction")
"""Columns of a sample that the model is not given."""
_TRACKERS = ("wandb", "trackio")
"""Entries of a record's `runtime` that are pages of the run."""
_BIBTEX = {
    "Kim et al. 2024": """@misc{kim2024initializing,
  title  = {On Initializing Transformers with Pre-trained Embeddings},
  author = {Kim, Ha Young and Balasubramanian, Niranjan and Kang, Byungkon},
  year   = {2024},
  eprint = {2407.12514},
  archivePrefix = {arXiv}
}""",
    "Hewitt 2021": """@misc{hewitt2021initializing,
  title  = {Initializing New Word Embeddings for Pretrained Language Models},
  author = {Hewitt, John},
  year   = {2021}
}""",
    "Zhang 2021": """@mastersthesis{zhang2021general,
  title  = {General Benefits of Mono-lingual Pre-training in Transformers},
  author = {Zhang, Jiacheng},
  school = {The University of Arizona},
  year   = {2021}
}""",
    "Glorot & Bengio 2010": """@inproceedings{glorot2010understanding,
  title     = {Understanding the difficulty of training deep feedforward neural networks},
  author    = {Glorot, Xavier and Bengio, Yoshua},
  booktitle = {AISTATS},
  year      = {2010}
}""",
    "sacreBLEU": """@inproceedings{post2018call,
  title     = {A Call for Clarity in Reporting BLEU Scores},
  author    = {Post, Matt},
  booktitle = {WMT},
  year      = {2018}
}""",
}


def base_name(dataset: str) -> str:
    """The last part of a Hub id or path."""
    return dataset.rstrip("/").split("/")[-1]


def describe_manifest(manifest: Sequence[Mapping[str, Any]]) -> list[str]:
    """The events of `config.embinit` in words, one Markdown list item each, oldest first."""
    lines = []
    for event in manifest:
        kind, init, options = event.get("event"), event.get("init"), event.get("options") or {}
        told = {"event", "init", "tables", "version"}
        told |= {"options"} if init else {"surgery"} if kind == "surgery" else set()
        facts = [
            f"{cell(k)} {cell(v)}" for k, v in event.items() if k not in told and v not in ({}, [], None)
        ]
        if kind == "surgery":
            facts.insert(0, markdown_code(event.get("surgery")))
        if init:
            known, by_default = _registered(init), "by default " if options else ""
            about = f" ({by_default}{known.summary}; {known.reference})" if known else ""
            facts.insert(0, named_init(init, options) + about)
        lines.append(f"- **{cell(event.get('event', 'event'))}**: {', '.join(facts)}.")
        lines += [f"  - {_describe_table(table)}" for table in event.get("tables") or ()]
    return lines or ["The checkpoint carries no record of how it was initialized."]


def named_init(init: str, options: Mapping[str, Any]) -> str:
    """An initialiser with its options, as code: `mean_cov` with `scale=auto`."""
    said = (f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in options.items())
    listed = ", ".join(map(markdown_code, said))
    return markdown_code(init) + (f" with {listed}" if listed else "")


def _describe_table(table: Mapping[str, Any]) -> str:
    text = markdown_code(table.get("name")) + (f" ({cell(table['side'])})" if table.get("side") else "")
    if ids := row_ids(table.get("rows") or []):
        whole = len(ids) == ids[-1] - ids[0] + 1
        text += f", rows {ids[0]} to {ids[-1]}" if whole else f", {len(ids)} rows"
    source = table.get("source")
    if source:
        text += f": vectors from {markdown_code(source.get('name'))}"
        extra = [f"{k} {cell(source[k])}" for k in ("revision", "digest") if source.get(k)]
        text += f" ({', '.join(extra)})" if extra else ""
    covered = table.get("coverage")
    if covered and covered.get("types"):
        found, types = covered["types_found"], covered["types"]
        text += f"; {found:,} of {types:,} tokens found ({100 * found / types:.1f}%)"
        if covered.get("tokens"):
            text += f", {100 * covered['tokens_found'] / covered['tokens']:.1f}% of their occurrences"
        if found < types:
            text += "; the others drawn at random"
    return text + "."


def _registered(init: str) -> Initializer | None:
    try:
        return get_initializer(init)
    except UnknownNameError:
        return None


def citations(record: RunRecord, manifest: Sequence[Mapping[str, Any]]) -> str:
    """BibTeX of the study, of the sources of its initialiser, and of the tools that computed its scores."""
    inits = {record.init, *(str(event.get("init")) for event in manifest)}
    sources = [known.reference for known in map(_registered, inits) if known]
    if any(event.get("event") == "surgery" for event in manifest):
        sources.append("Zhang 2021")
    if any("tok:" in signature for signature in record.signature.values()):
        sources.append("sacreBLEU")
    return "\n\n".join(
        entry
        for name, entry in _BIBTEX.items()
        if name == "Kim et al. 2024" or any(name in source for source in sources)
    )


def settings_rows(record: RunRecord, hub_id: str | None) -> list[tuple[str, str]]:
    """Data, settings and cost of the run."""
    link = f"[{hub_id}](https://huggingface.co/datasets/{hub_id})"
    task = task_of(record.task, record.metrics)
    rows = [("recipe", f"`recipes/{task.recipe}`")] if task else []
    rows.append(("data", link if hub_id else cell(record.dataset)))
    for split, used in record.data.items():
        vectors = split.startswith("vectors")
        label, of = (split, "tokens and rows") if vectors else (f"{split} set", "texts and labels")
        rows.append((label, f"{used['rows']:,} rows, SHA-256 of {of} {markdown_code(used['sha256'])}"))
        if vectors:
            rows.append((f"their text ({split})", _text_of_vectors(used.get("provenance"))))
    for key, label in _SETTINGS.items():
        if record.arguments.get(key) not in (None, "", -1, False):
            rows.append((label, cell(record.arguments[key])))
    cost = record.runtime
    if cost.get("device"):
        processes = cost.get("world_size", 1)
        rows.append(
            ("hardware", cell(cost["device"]) + (f", {processes} processes" if processes > 1 else ""))
        )
    if cost.get("train_seconds"):
        rows.append(("training time", f"{cost['train_seconds']:,.0f} s"))
    if cost.get("tokens_per_second"):
        rows.append(("training speed", f"{cost['tokens_per_second']:,.0f} tokens/s"))
    for tracker in _TRACKERS:
        if str(url := cost.get(tracker, "")).startswith("https://"):
            rows.append(("training curves", f"[{tracker}](<{cell(url)}>)"))
    return rows


def _text_of_vectors(provenance: Any) -> str:
    """What vectors were trained on, and how, as far as the file beside theirs says."""
    known = provenance if isinstance(provenance, dict) else {}
    corpora = known.get("corpora")
    listed = corpora if isinstance(corpora, list) else []
    names = [cell(corpus.get("corpus")) for corpus in listed if isinstance(corpus, dict)]
    text = ", ".join(names) or cell(known.get("text") or "not recorded")
    if isinstance(known.get("corpus_tokens"), int):
        text += f" ({known['corpus_tokens']:,} tokens)"
    return f"{text}; {cell(known['method'])}" if known.get("method") else text


def signature(text: str | None) -> str:
    """A metric's signature as a table cell."""
    return markdown_code(text) if text else ""


def cell(value: Any) -> str:
    """`value` as plain words of Markdown on one line, fit for a table cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False)
    return markdown_text(value)


def _count(parameters: int) -> str:
    return f"{parameters / 1e6:.1f} million" if parameters >= 1e5 else f"{parameters:,}"


def _pretrained(record: RunRecord) -> str | None:
    """The trained model that a run went on from."""
    task, model = task_of(record.task, record.metrics), record.arguments.get("model") or "vanilla"
    return model if task is not None and model not in task.models else None


def summary(record: RunRecord, config: Mapping[str, Any], initialized_at: str | None) -> str:
    """What the model is, in two sentences."""
    kind = f"A `{config['model_type']}` model" if config.get("model_type") else "A model"
    task = record.task.replace("_", " ")
    languages = [record.arguments.get(k) for k in ("source_lang", "target_lang")]
    between = f" from `{languages[0]}` to `{languages[1]}`" if all(languages) else ""
    text = (
        f"{kind} of {_count(record.parameters)} parameters, trained on {cell(base_name(record.dataset))} for "
    )
    start = _pretrained(record)
    added = record.metrics.get("new_tokens")
    if added:
        tokenizer = markdown_code(base_name(record.tokenizer))
        text += f"{task}. Before that {added:.0f} tokens were added to {tokenizer}, "
        text += f"their rows initialized by {markdown_code(record.init)}"
    elif start is None:
        text += f"{task}{between}. Its embeddings were initialized by {markdown_code(record.init)}"
    else:
        text += f"{task}. It started from {markdown_code(base_name(start))}"
        init = markdown_code(record.init)
        of_task = task_of(record.task, record.metrics)
        if of_task is not None and of_task.takes_models_apart:
            text += f", changed by {init}" if record.init != "none" else ""
        else:
            text += (
                ", its embeddings kept"
                if record.init == "kept"
                else f", its embeddings initialized by {init}"
            )
    if initialized_at:
        text += f"; the model as it was before the first step is in {initialized_at}"
    return text + "."


def retokenized(record: RunRecord | None) -> str:
    """What a run of `recipes/retokenize.py` did to a checkpoint beside its rows, and what it scored."""
    if record is None:
        return "What else was done to it is not recorded."
    steps, data = record.arguments.get("max_steps"), cell(base_name(record.dataset))
    trained = f"trained on {data} for {steps} steps" if steps else "not trained"
    costs = ("seconds", "transfer_mib", "peak_mib")
    scores = [
        f"{cell(name.replace('_', ' '))} {cell(value)}"
        for name, value in record.metrics.items()
        if value is not None and name not in costs
    ]
    told = f" Its scores on {data}: {', '.join(scores)}." if scores else ""
    return f"A run of `recipes/retokenize.py`, seed {record.seed}; after the change it was {trained}.{told}"


def selection(record: RunRecord) -> str:
    """The seed and the epoch of the weights; for a run that diverged, that it did."""
    epochs = [row["epoch"] for row in record.history if "epoch" in row]
    if record.diverged:
        return (
            f"One run, seed {record.seed}. **It diverged**: a loss was no finite number. The scores and "
            "weights are those of no trained model."
        )
    kept = (
        f" The weights are those after epoch {record.best_epoch:g}" if record.best_epoch is not None else ""
    )
    if kept:
        kept += f" of {max(epochs):g}." if epochs else "."
    return f"One run, seed {record.seed}.{kept}"


def statistics_rows(record: RunRecord) -> list[list[str]]:
    """Each table before and after the input scaling; one row where the model does not scale."""
    rows = []
    for table, stages in record.embedding_statistics.items():
        for stage in ("before_scaling", "after_scaling"):
            s = (stages or {}).get(stage)
            if s and not (stage == "after_scaling" and s == stages.get("before_scaling")):
                values = [s.get(k) for k in ("scale", "min", "max", "mean", "std", "row_norm_mean")]
                rows.append([f"`{table}`", *("" if v is None else f"{v:.3g}" for v in values)])
    return rows


def auto_class(record: RunRecord) -> str:
    """The Auto class of transformers that loads the model of a run."""
    task = task_of(record.task, record.metrics)
    return task.auto_class if task else "AutoModel"


def example(auto: str, config: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> str:
    """Python that gives the model the first of its samples, and what the run's model said."""
    sample = dict(samples[0]) if samples else {}
    texts = [value for key, value in sample.items() if key not in _ANSWERS and isinstance(value, str)]
    told = str(sample.get("prediction", ""))
    if not texts or "\n" in told:
        return ""
    given = ", ".join(json.dumps(printable(text), ensure_ascii=False) for text in texts)
    if auto == "AutoModelForSeq2SeqLM":
        answer = "tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True)"
    elif told in (config.get("id2label") or {}).values():
        answer = "model.config.id2label[int(model(**inputs).logits.argmax())]"
    else:
        return ""
    return f'\n\ninputs = tokenizer({given}, return_tensors="pt")\nprint({answer})\n# {printable(told)}'


def usage(
    auto: str, config: Mapping[str, Any], repo: str, folder: str = "", revision: str | None = None
) -> str:
    """Python that loads model and tokenizer by an Auto class."""
    options = f', subfolder="{folder}"' if folder else ""
    options += f', revision="{revision}"' if revision else ""
    options += ", trust_remote_code=True" if config.get("auto_map") else ""
    lines = [f"from transformers import {auto}, AutoTokenizer"]
    if config.get("model_type") == "vanilla_transformer" and not config.get("auto_map"):
        lines.append("import hf_embinit  # registers the model")
    lines.append("")
    for name, loader in (("model", auto), ("tokenizer", "AutoTokenizer")):
        call, given = f"{name} = {loader}.from_pretrained", f'"{repo}"{options}'
        line = f"{call}({given})"
        lines.append(line if len(line) <= _CODE_WIDTH else f"{call}(\n    {given}\n)")
    return "\n".join(lines)


def limits(record: RunRecord) -> list[str]:
    """What the run does not show, one sentence each."""
    limits = [
        f"One run with one seed ({record.seed}): how much scores vary with it is not measured here.",
        f"Scored on {cell(base_name(record.dataset))} alone; how it does on other text is not measured.",
    ]
    for split, name in (("validation", "max_eval_samples"), ("test", "max_predict_samples")):
        scored = any(metric.startswith(split) for metric in record.metrics)
        if (most := record.arguments.get(name)) and scored and _was_cut(record, split, most):
            limits.append(f"Of the {split} set the first {most} samples were scored.")
    blocks = record.arguments.get("max_eval_blocks")
    if blocks and any(metric.startswith("validation") for metric in record.metrics):
        limits.append(f"Of the validation set at most {blocks} sequences, spread over it, were scored.")
    most, steps = record.arguments.get("max_train_samples"), record.arguments.get("max_steps")
    if most and _was_cut(record, "train", most):
        limits.append(f"Trained on {most} samples, not on the whole training set.")
    if steps and steps > 0:
        limits.append(f"Stopped after {steps} steps.")
    return limits


def _was_cut(record: RunRecord, split: str, most: int) -> bool:
    """Whether a limit was reached in a split, or, of matched and mismatched ones, in each part of it."""
    rows = [about.get("rows", most) for name, about in record.data.items() if name.startswith(split)]
    return max(rows, default=most) >= most


def license_text(license: str | None, *, of_a_run: bool = True) -> str:
    """The license terms of the code and of the weights: of a run, or of a checkpoint that was changed."""
    code = "The code that made it, hf_embinit, is under Apache-2.0."
    if license:
        return f"The weights are under {license}. {code}"
    if not of_a_run:
        return f"{code} For the weights, the terms of the model that was changed apply."
    return f"{code} For the weights, the terms of the data and of the vectors named above apply."


def caption(picture: str | os.PathLike[str]) -> str:
    """What a figure of a run shows and how to read it, by its file name."""
    name = Path(picture).stem
    kind, _, side = name.rpartition("_")
    if kind == "embedding_distribution":
        return (
            f"Values of the {side} table at step 0, beside Xavier's and the position encodings'. Right: as "
            "they are added; a blue hill much wider than the green one drowns the positions"
        )
    return _CAPTIONS.get(name, name.replace("_", " ").capitalize())
