# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]"]
#
# [tool.hf-jobs]
# flavor = "a10g-small"
# timeout = "6h"
# ///
"""Train a vanilla encoder from named embeddings, or take a pre-trained one apart and fine-tune it.

    accelerate launch recipes/classify.py --init glove_xavier
    accelerate launch recipes/classify.py --task sst2 --init glove_xavier --vectors glove.840B.300d.zip
    accelerate launch recipes/classify.py --task cola --model google-bert/bert-base-uncased --surgery reversed

The first runs offline on the embedded sentiment corpus in under three minutes on two cores. The settings of a
vanilla encoder are those of Kim et al. 2024, Table 5; those of a pre-trained model are Devlin et al. 2019's;
any flag overrides. The weights kept are those of the epoch with the best validation score: accuracy, or F1
(MRPC, QQP), Matthews (CoLA), Spearman (STS-B). `--resume_from_checkpoint last` continues an interrupted run;
`--push_to_hub --hub_model_id user/name` publishes the finished one.
"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from transformers import TrainingArguments

from hf_embinit import training
from hf_embinit.tasks.classification import DATASETS, TASK, preset
from hf_embinit.training import SampleArguments, VanillaArguments, flag, parse_arguments, run_main


@dataclass
class ModelArguments(VanillaArguments):
    """The model, where its token embeddings come from, and what is done to it before training."""

    model: str = flag("vanilla", "`vanilla`, an encoder built here, or a trained model by folder or Hub id.")
    init: str | None = flag(
        None,
        "Name of the initialiser of the embedding table; `python -m hf_embinit list` shows them. Default: "
        "xavier for vanilla; a trained model keeps its own.",
    )
    surgery: str | None = flag(
        None,
        "What is done to the model before training, after --init: a name such as `reversed`, "
        "`shuffled_embeddings`, `remove_last_6`, `clean`, or several joined by `+`. "
        "`hf_embinit.surgery.list()` names them.",
    )
    donor: str | None = flag(
        None, "Hub id or folder whose tokenizer and embeddings `--surgery donor_embeddings` puts in."
    )
    tokenizer: str | None = flag(
        None,
        "`words` (spaCy rules, lower-cased), `bert`, `t5`, a Hub id or a folder. Default: words for vanilla, "
        "which counts what the training text has; a trained model's own.",
    )
    vectors: str | None = flag(
        None,
        "Vectors: a file, a checkpoint folder or a Hub id. Default: those behind the name of the init; for "
        "the embedded corpora, GloVe trained on the embedded text.",
    )
    allow_pickle: bool = flag(
        False, "Read a --model or vectors that have no safetensors from their .bin files."
    )
    freeze_embeddings: bool | None = flag(None, "Vanilla: keep the embedding table as initialised.")
    min_frequency: int | None = flag(
        None,
        "Vanilla: tokens seen fewer times than this in the training text become <unk>. Default: 2.",
    )


@dataclass
class DataArguments(SampleArguments):
    """The texts and their labels."""

    task: str = flag(
        "sentiment",
        f"One of {', '.join(DATASETS)}, or a folder with train, validation and (optional) test files (.csv, "
        ".jsonl, ...): a column `label`, and one or two columns of text. The first two are embedded corpora, "
        "the others GLUE, whose own test labels are not published.",
    )
    text_columns: list[str] | None = flag(None, "The column of the texts, or the two columns of the pairs.")
    language: str = flag("en", "Language of the texts, for `--tokenizer words`.")
    max_length: int = flag(128, "Longest text or pair, in tokens; longer ones are cut.")


def changed_by(args: Any) -> str:
    """What is done to the embeddings and the model before training."""
    return "+".join(step for step in (args.init, args.surgery) if step) or "none"


def defaults(known: Namespace) -> dict[str, Any]:
    """What a task, a model and a tokenizer bring along."""
    new = known.model == "vanilla"
    known.init = known.init or ("xavier" if new else None)
    known.tokenizer = known.tokenizer or ("words" if new else None)
    names = [known.task, "" if new else known.model, known.tokenizer]
    parts = [name.rstrip("/").split("/")[-1] for name in names if name]
    metric = DATASETS[known.task].metrics[0] if known.task in DATASETS else "accuracy"
    return {
        **training.every_epoch(),
        **training.BY_LENGTH,
        **preset(known.task, known.model, known.tokenizer or ""),
        "init": known.init,
        "tokenizer": known.tokenizer,
        "output_dir": f"runs/classify/{'-'.join([*parts, changed_by(known)])}-seed{known.seed}",
        "metric_for_best_model": f"eval_{metric}",
    }


def initialize(
    model: Any, tokenizer: Any, args: ModelArguments, data_args: DataArguments, data: Any, seed: int
) -> Any:
    """Fills the embedding table by --init; gives the report of it. Tokens are counted in `data`, if given."""
    import hf_embinit
    from hf_embinit.tasks import given_vectors

    table = model.get_input_embeddings()
    own = TASK.default_vectors(
        data_args.task, args.init, tokenizer, data_args.language, dim=table.embedding_dim
    )
    return hf_embinit.initialize(
        model,
        args.init,
        tokenizer=tokenizer,
        vectors=given_vectors(args.vectors, tokenizer, allow_pickle=args.allow_pickle) or own,
        seed=seed,
        token_counts=data.token_counts(table.num_embeddings) if data is not None else None,
        allow_pickle=args.allow_pickle,
        **args.options_of(args.init),
    )


def main() -> None:
    """Data, tokenizer, model, embeddings, surgery; then training, predictions and run folder."""
    model_args, data_args, training_args = parse_arguments(
        (ModelArguments, DataArguments, TrainingArguments), defaults, description=__doc__ or ""
    )
    # after --help, which answers without them
    from hf_embinit import surgery
    from hf_embinit.hub import load_pretrained_tokenizer
    from hf_embinit.models import VanillaTransformerForSequenceClassification, VanillaTransformerTokenizer
    from hf_embinit.tasks import (
        check_length,
        find_tokenizer,
        load_classification,
        load_pretrained_classifier,
        surgery_options,
    )
    from hf_embinit.tasks.classification import ClassificationData

    vanilla = model_args.model == "vanilla"
    if not vanilla:
        model_args.refuse_shapes(model_args.model)
    model_args.options_of(model_args.init)  # what does not fit the initialiser ends here
    options = surgery_options(model_args.init, model_args.surgery, model_args.donor, model_args.vectors)
    run = training.start(
        TASK,
        training_args,
        model_args,
        data_args,
        dataset=data_args.task,
        init=changed_by(model_args),
        tokenizer=model_args.tokenizer or model_args.donor or model_args.model,
    )

    with training_args.main_process_first(desc="loading data, model and embeddings"):
        task, texts = load_classification(
            data_args.task, text_columns=data_args.text_columns, **data_args.places
        )
        if vanilla:
            train = texts["train"]
            tokenizer = VanillaTransformerTokenizer.build(
                [text for name in ("text", "text_pair") if name in train.features for text in train[name]],
                tokenizer=find_tokenizer(model_args.tokenizer),
                source_lang=data_args.language,
                min_frequency=model_args.min_frequency,
            )
            config = model_args.config(
                tokenizer, freeze_embeddings=model_args.freeze_embeddings, **task.label_settings
            )
            model: Any = VanillaTransformerForSequenceClassification(config)
        else:
            model, tokenizer = load_pretrained_classifier(
                model_args.model,
                model_args.tokenizer,
                allow_pickle=model_args.allow_pickle,
                **task.label_settings,
            )
        check_length(model, data_args.max_length)
        reader = tokenizer  # of the text, once surgery is done
        if model_args.donor is not None:
            reader = load_pretrained_tokenizer(model_args.donor, f"--donor {model_args.donor!r}")
        data = ClassificationData(task, texts, reader, max_length=data_args.max_length)
        report = None
        if model_args.init is not None:
            counted = data if reader is tokenizer else None  # a donor has other ids
            report = initialize(model, tokenizer, model_args, data_args, counted, training_args.seed)
        if model_args.surgery is not None:
            begin = time.process_time()
            surgery.apply(model, model_args.surgery, tokenizer=tokenizer, seed=training_args.seed, **options)
            run.costs["surgery_seconds"] = time.process_time() - begin
    if data_args.task not in DATASETS and training_args.metric_for_best_model == "eval_accuracy":
        training_args.metric_for_best_model = f"eval_{task.metrics[0]}"  # now the labels are known
    print(training.run(run, data, model, reader, report=report))


if __name__ == "__main__":
    run_main(main)
