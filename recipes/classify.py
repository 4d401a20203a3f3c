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

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from transformers import TrainingArguments

from hf_embinit import training
from hf_embinit.arguments import Count, Text
from hf_embinit.tasks.classification import DATASETS, TASK, preset
from hf_embinit.training import SampleArguments, SurgeryArguments, VanillaArguments, flag, parse_arguments


@dataclass
class ModelArguments(VanillaArguments):
    """The model and where its token embeddings come from."""

    model: str = flag("vanilla", "`vanilla`, an encoder built here, or a trained model by folder or Hub id.")
    freeze_embeddings: bool | None = flag(None, "Vanilla: keep the embedding table as initialised.")
    min_frequency: Count | None = flag(
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
    language: Text = flag("en", "Language of the texts, for `--tokenizer words`.")
    max_length: Count = flag(128, "Longest text or pair, in tokens; longer ones are cut.")


def defaults(known: Namespace) -> dict[str, Any]:
    """What a task, a model and a tokenizer bring along."""
    new = known.model == "vanilla"
    init, tokenizer = training.chosen_init(known), known.tokenizer or ("words" if new else None)
    names = [known.task, None if new else known.model, tokenizer, training.changed_by(init, known.surgery)]
    metric = DATASETS[known.task].metrics[0] if known.task in DATASETS else "accuracy"
    return {
        **training.every_epoch(),
        **training.BY_LENGTH,
        **preset(known.task, known.model, tokenizer or ""),
        "init": init,
        "tokenizer": tokenizer,
        "output_dir": training.default_folder("classify", *names, seed=known.seed),
        "metric_for_best_model": f"eval_{metric}",
    }


def main() -> None:
    """Data, tokenizer, model, embeddings, surgery; then training, predictions and run folder."""
    model_args, surgery_args, data_args, training_args = parse_arguments(
        (ModelArguments, SurgeryArguments, DataArguments, TrainingArguments),
        defaults,
        description=__doc__ or "",
    )
    # after --help, which answers without them
    import hf_embinit
    from hf_embinit import surgery, tasks
    from hf_embinit.models import VanillaTransformerForSequenceClassification, VanillaTransformerTokenizer
    from hf_embinit.tasks.classification import ClassificationData

    model_args.refuse_shapes()
    init, changes = model_args.init, surgery_args.surgery
    init_options = model_args.options_of(init, TASK.datasets.get(data_args.task))  # or ends before any work
    surgery_options = surgery_args.options(init, model_args.vectors)
    run = training.start(
        TASK,
        training_args,
        model_args,
        surgery_args,
        data_args,
        dataset=data_args.task,
        init=training.changed_by(init, changes),
        tokenizer=model_args.tokenizer or surgery_args.donor or model_args.model,
    )

    with training_args.main_process_first(desc="loading data, model and embeddings"):
        task, texts = tasks.load_classification(
            data_args.task, text_columns=data_args.text_columns, **data_args.places
        )
        if model_args.model == "vanilla":
            tokenizer = VanillaTransformerTokenizer.build(
                tasks.training_texts(texts),
                tokenizer=tasks.find_tokenizer(model_args.tokenizer),
                source_lang=data_args.language,
                min_frequency=model_args.min_frequency,
            )
            settings = {"freeze_embeddings": model_args.freeze_embeddings, **task.label_settings}
            model = VanillaTransformerForSequenceClassification(model_args.config(tokenizer, **settings))
        else:
            settings = {"allow_pickle": model_args.allow_pickle, **task.label_settings}
            model, tokenizer = tasks.load_pretrained_classifier(
                model_args.model, model_args.tokenizer, **settings
            )
        tasks.check_length(model, data_args.max_length)
        reader = surgery_args.tokenizer_after(tokenizer)
        data = ClassificationData(task, texts, reader, max_length=data_args.max_length)
        report = None
        if init is not None:
            report = hf_embinit.initialize(
                model,
                init,
                tokenizer=tokenizer,
                vectors=model_args.vectors_for(TASK, data_args.task, model, tokenizer, data_args.language),
                seed=training_args.seed,
                token_counts=data.token_counts(model) if reader is tokenizer else None,
                allow_pickle=model_args.allow_pickle,
                **init_options,
            )
        if changes is not None:
            with run.timed("surgery_seconds"):
                surgery.apply(model, changes, tokenizer, training_args.seed, **surgery_options)
    if data_args.task not in DATASETS and training_args.metric_for_best_model == "eval_accuracy":
        training_args.metric_for_best_model = f"eval_{task.metrics[0]}"  # now the labels are known
    print(training.run(run, data, model, reader, report=report))


if __name__ == "__main__":
    training.run_main(main)
