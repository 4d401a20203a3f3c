"""Model cards from a run record and a manifest: how embeddings were initialised, on what data, what scores.

A card says only what was measured or recorded: a sentence whose facts are missing is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..display import markdown_table, one_line
from ..errors import RunFolderError
from ..foreign import read_json
from ..records import (
    RunRecord,
    is_local_data,
    model_folders,
    public_record,
    scored_split,
    shorten,
    write_text,
)
from ..studies import other_settings, paper_rows
from ..tasks import TaskSpec, task_of
from . import text as words
from .text import describe_manifest

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, EvalResultEntry, ModelCard

    from ..measures import EmbeddingStatistics

CARD_SAMPLES = 5
"""How many of a run's predictions a card shows."""
_AUTO_CLASSES = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
}
"""Auto class -> transformers' own map from model types to the classes that it loads."""
_TEMPLATE = Path(__file__).with_name("model_card.md.jinja")


def render_card(
    record: RunRecord,
    *,
    manifest: Sequence[Mapping[str, Any]] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    config: Mapping[str, Any] | None = None,
    figures: Mapping[str, str] | None = None,
    initialized_at: str | None = None,
    repo_id: str | None = None,
    model_folder: str = "",
    folder: str = "path/to/this/folder",
    record_at: str = "results.json",
    license: str | None = None,
) -> ModelCard:
    """The card of one run: YAML metadata with the evaluation results, and the text.

    `manifest` is the checkpoint's `config.embinit`, `config` its `config.json`, `samples` rows with the same
    keys, `figures` caption -> path in the repository, `initialized_at` where the checkpoint of step 0 is.
    `repo_id` is where the card says to load the model from; `license` a
    Hub license identifier for the weights, left out when unknown. The same arguments give the same text.
    """
    from huggingface_hub import ModelCard, ModelCardData

    config, record, manifest = dict(config or {}), public_record(record), shorten(list(manifest))
    name = one_line(f"{words.base_name(record.dataset)}-{record.init}-seed{record.seed}")
    if repo_id:
        name = repo_id.split("/")[-1]
    hub_id, task = hub_dataset(record), task_of(record.task, record.metrics)
    languages = [
        one_line(record.arguments[k])
        for k in ("source_lang", "target_lang", "language")
        if record.arguments.get(k)
        and (k != "language" or hub_id or record.tokenizer == "words")  # else unread
    ]
    data = ModelCardData(
        language=sorted(set(languages)) or None,
        license=license,
        library_name="transformers",
        base_model=(record.runtime.get("base_model") or {}).get("name"),
        pipeline_tag=task.pipeline_tag if task else None,
        tags=[
            "hf_embinit",
            one_line(f"init:{record.init}"),
            *([config["model_type"]] if config.get("model_type") else []),
        ],
        datasets=[hub_id] if hub_id else None,
        metrics=sorted({_hub_name(task, m) for m, _, _ in _scores(record)} - {"loss"}) or None,
        eval_results=eval_results(record) or None,
        model_name=name,
    )
    paper, auto = paper_rows(record), words.auto_class(record)
    # on disk each model lies with its code, which a `subfolder` would be looked for beside
    place = (repo_id, model_folder) if repo_id else (f"{folder}/{model_folder}".rstrip("/"), "")
    columns = [column for column in samples[0] if column != "row"] if samples else []
    return ModelCard.from_template(
        data,
        template_path=str(_TEMPLATE),
        table=markdown_table,
        title=words.cell(name),
        summary=words.summary(record, config, initialized_at),
        provenance=describe_manifest(manifest),
        statistics=words.statistics_rows(record),
        results=shown_scores(record),
        selection=words.selection(record),
        paper=[(r.what, f"{r.ours:.4g}", r.paper, r.source) for r in paper],
        other_settings=other_settings(record) if paper else [],
        figures=list((figures or {}).items()),
        sample_columns=columns,
        sample_split=scored_split(record),
        samples=[[words.cell(sample[column]) for column in columns] for sample in samples],
        usage=words.usage(auto, config, *place) + words.example(auto, config, samples),
        settings=words.settings_rows(record, hub_id),
        record_at=record_at,
        versions=", ".join(f"{k} {v}" for k, v in record.versions.items()),
        limits=words.limits(record),
        license_text=words.license_text(license),
        citations=words.citations(record, manifest),
    )


def shown_scores(record: RunRecord) -> list[tuple[str, str, str]]:
    """(metric and split, value, signature) of each score on a card, the task's first score first."""
    task = task_of(record.task, record.metrics)
    names, also = (task.metrics, task.also) if task else ({}, {})
    scores = [
        (f"{names[m].title}, {split}", f"{value:.4g}", words.signature(record.signature.get(f"{split}_{m}")))
        for m, split, value in _scores(record)
    ]
    return scores + [
        (score.title, f"{record.metrics[name]:.4g}", "")
        for name, score in also.items()
        if record.metrics.get(name) is not None
    ]


def run_pages(
    folder: str | os.PathLike[str],
    record: RunRecord,
    *,
    manifest: Sequence[Mapping[str, Any]] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    figures: Sequence[str] | None = None,
    repo_id: str | None = None,
    license: str | None = None,
    initialized_at: str | None = None,
) -> dict[str, str]:
    """`README.md` and, for a data set of the Hub, `.eval_results/*.yaml` of a run folder: path -> text.

    `figures` are paths in the folder, by default all of `folder/figures`. The config is that of the model, or
    of the first of several.
    """
    folder = Path(folder)
    model_folder = model_folders(folder)[0]
    config_file = folder / model_folder / "config.json"
    config = read_json(config_file, error=RunFolderError) if config_file.is_file() else {}
    if figures is None:
        figures = [f"figures/{path.name}" for path in sorted((folder / "figures").glob("*.png"))]
    card = render_card(
        record,
        manifest=manifest,
        samples=samples,
        config=config,
        figures={words.caption(path): path for path in figures},
        initialized_at=initialized_at,
        repo_id=repo_id,
        model_folder=model_folder,
        license=license,
    )
    pages = {"README.md": str(card)}
    entries = eval_result_entries(record)
    if entries:
        import yaml
        from huggingface_hub import eval_result_entries_to_yaml

        path = f".eval_results/{entries[0].dataset_id.replace('/', '--')}.yaml"
        pages[path] = yaml.safe_dump(
            eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True
        )
    return pages


def init_page(
    record: RunRecord,
    config: Mapping[str, Any],
    repo_id: str,
    model_folder: str = "",
    license: str | None = None,
) -> str:
    """The card of the branch with the model before step 1."""
    from huggingface_hub import ModelCard, ModelCardData

    data = ModelCardData(
        license=license, library_name="transformers", tags=["hf_embinit", f"init:{record.init}"]
    )
    usage = words.usage(words.auto_class(record), config, repo_id, model_folder, revision="init")
    return str(
        ModelCard(
            f"---\n{data}\n---\n\n# {repo_id.split('/')[-1]}, before training\n\n"
            f"The model of [{repo_id}](https://huggingface.co/{repo_id}) as it was before step 1, its "
            f"embeddings initialized by `{record.init}` with seed {record.seed}. The trained model, its "
            f"results and its card are on the branch `main`.\n\n```python\n{usage}\n```\n"
        )
    )


def checkpoint_page(
    repo_id: str,
    manifest: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    license: str | None = None,
    record: RunRecord | None = None,
) -> str:
    """The card of a checkpoint whose vocabulary or rows were changed; `record` is that of the run of
    `recipes/retokenize.py` that did it, if one did."""
    from huggingface_hub import ModelCard, ModelCardData

    inits = dict.fromkeys(f"init:{event['init']}" for event in manifest if event.get("init"))
    base = next((event["base_model"] for event in reversed(manifest) if event.get("base_model")), None)
    data = ModelCardData(
        license=license, library_name="transformers", tags=["hf_embinit", *inits], base_model=base
    )
    usage = words.usage(_auto_class(config), config, repo_id)
    return str(
        ModelCard(
            "\n".join(
                [
                    f"---\n{data}\n---\n\n# {repo_id.split('/')[-1]}\n",
                    f"A {words.cell(config.get('model_type', 'model'))} model whose token embeddings were "
                    f"changed as this page says. {words.retokenized(record)}\n",
                    "## How the embeddings came about\n",
                    *describe_manifest(manifest),
                    f"\n## Load it\n\n```python\n{usage}\n```\n",
                    "`hf_embinit.read_manifest` reads the list above from the checkpoint.\n",
                    f"## License\n\n{words.license_text(license, of_a_run=False)}\n",
                ]
            )
        )
    )


def _auto_class(config: Mapping[str, Any]) -> str:
    """The Auto class that loads the class which a checkpoint names."""
    from transformers.models.auto import modeling_auto

    model_type, named = config.get("model_type"), config.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    remote = config.get("auto_map")
    for auto, place in (remote if isinstance(remote, dict) else {}).items():
        if str(place).endswith(f".{architecture}") and auto != "AutoConfig":
            return str(auto)
    for auto, mapping in _AUTO_CLASSES.items():
        classes = getattr(modeling_auto, mapping).get(model_type)
        if architecture in ([classes] if isinstance(classes, str) else classes or ()):
            return auto
    return "AutoModel"


def embeddings_page(
    repo_id: str,
    manifest: Sequence[Mapping[str, Any]],
    statistics: EmbeddingStatistics,
    digest: str,
    license: str | None = None,
) -> str:
    """The card of one published embedding table."""
    from huggingface_hub import ModelCard, ModelCardData

    data = ModelCardData(
        license=license, pipeline_tag="feature-extraction", tags=["hf_embinit", "embeddings"]
    )
    shown = (
        "num_embeddings",
        "embedding_dim",
        "min",
        "max",
        "mean",
        "std",
        "row_norm_mean",
        "effective_rank",
    )
    rows = [[name.replace("_", " "), f"{getattr(statistics, name):.6g}"] for name in shown]
    usage = f"""from hf_embinit.vectors import load_vectors
vectors = load_vectors("{repo_id}")
print(vectors.tokens[:5], vectors.matrix.shape)"""
    return str(
        ModelCard(
            "\n".join(
                [
                    f"---\n{data}\n---\n\n# {repo_id.split('/')[-1]}\n",
                    "One table of token embeddings: `model.safetensors` has the rows, the tokenizer beside "
                    f"it names them. `{digest}` is the digest of tokens and rows.\n",
                    "## Where it comes from\n",
                    *describe_manifest(manifest),
                    f"\n## Load it\n\n```python\n{usage}\n```\n",
                    f"The recipes of hf_embinit read it with `--vectors {repo_id}`.\n",
                    "## Statistics\n",
                    markdown_table(["of all entries", ""], rows),
                    f"## License\n\n{words.license_text(license)}\n",
                ]
            )
        )
    )


def write_card(
    folder: str | os.PathLike[str],
    record: RunRecord,
    *,
    manifest: Sequence[Mapping[str, Any]] = (),
    samples: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Writes the pages of `run_pages` into a run folder and returns the path of the card."""
    folder = Path(folder)
    pages = run_pages(
        folder,
        record,
        manifest=manifest,
        samples=samples,
        initialized_at="the folder `init`" if (folder / "init").is_dir() else None,
    )
    for path, text in pages.items():
        write_text(folder / path, text)
    return folder / "README.md"


def hub_dataset(record: RunRecord) -> str | None:
    """The Hub id of the data of a run; None for embedded data and for folders and files on disk."""
    if any(record.arguments.get(f"{split}_file") for split in ("train", "validation", "test")):
        return None
    task = task_of(record.task, record.metrics)
    if task and record.dataset in task.datasets:
        return task.datasets[record.dataset].hub_id
    looks_like_id = re.fullmatch(r"\w[\w.-]*/[\w.-]+", record.dataset)
    local = is_local_data(record.dataset, record.arguments.get("data_dir"))
    return record.dataset if looks_like_id and not local else None


def _scored_dataset(record: RunRecord, split: str) -> str | None:
    """The Hub id of the data that scores of a split are of; None where it was cut, whose scores are not its
    own."""
    limits = {"validation": ("max_eval_samples", "max_eval_blocks"), "test": ("max_predict_samples",)}
    cut = any(record.arguments.get(name) for name in limits[split])
    return None if cut else hub_dataset(record)


def eval_results(record: RunRecord) -> list[EvalResult]:
    """The scores of a run as the `model-index` of a card's metadata has them."""
    from huggingface_hub import EvalResult

    task = task_of(record.task, record.metrics)
    return [
        EvalResult(
            task_type=task.pipeline_tag if task else record.task,
            dataset_type=_scored_dataset(record, split) or one_line(words.base_name(record.dataset)),
            dataset_name=one_line(words.base_name(record.dataset)),
            dataset_split=split,
            metric_type=_hub_name(task, metric),
            metric_name=task.metrics[metric].title if task else metric,
            metric_value=value,
            metric_args={"signature": record.signature[f"{split}_{metric}"]}
            if f"{split}_{metric}" in record.signature
            else None,
        )
        for metric, split, value in _scores(record)
    ]


def eval_result_entries(record: RunRecord) -> list[EvalResultEntry]:
    """The scores of a run for `.eval_results/*.yaml`; none when the data are not on the Hub, or are a part
    of it."""
    from huggingface_hub import EvalResultEntry

    return [
        EvalResultEntry(
            dataset_id=hub_id,
            task_id=metric,
            value=value,
            notes=", ".join(
                [f"{split} split", f"init {record.init}", f"seed {record.seed}"]
                + [s for s in [record.signature.get(f"{split}_{metric}")] if s]
            ),
        )
        for metric, split, value in _scores(record)
        if metric != "loss" and (hub_id := _scored_dataset(record, split)) is not None
    ]


def _scores(record: RunRecord) -> list[tuple[str, str, float]]:
    """(metric, split, value) of the test split, or of validation for what the test split lacks.

    Empty for a run that diverged.
    """
    scores: list[tuple[str, str, float]] = []
    if record.diverged:
        return scores
    for metric in task.metrics if (task := task_of(record.task, record.metrics)) else ():
        for split in ("test", "validation"):
            value = record.metrics.get(f"{split}_{metric}")
            if value is not None:
                scores.append((metric, split, value))
                break
    return scores


def _hub_name(task: TaskSpec | None, metric: str) -> str:
    return (task.metrics[metric].hub_name if task else "") or metric
