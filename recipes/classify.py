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
    python recipes/classify.py --task sst2 --init glove_xavier --vectors glove.840B.300d.zip
    python recipes/classify.py --task cola --model google-bert/bert-base-uncased --surgery reversed

The first runs offline on the embedded sentiment corpus in under three minutes on two cores. The settings of a
vanilla encoder are those of Kim et al. 2024, Table 5; those of a pre-trained model are Devlin et al. 2019's;
any flag overrides. The weights kept are those of the epoch with the best validation score: accuracy, or F1
(MRPC, QQP), Matthews (CoLA), Spearman (STS-B). `--resume_from_checkpoint last` continues an interrupted run;
`--push_to_hub --hub_model_id user/name` publishes the finished one.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainingArguments

from hf_embinit.runs.arguments import parse_arguments, run_main
from hf_embinit.tasks.classification import DATASETS, preset


@dataclass
class ModelArguments:
    """The model, where its token embeddings come from, and what is done to it before training."""

    model: str = field(
        default="vanilla",
        metadata={
            "help": "`vanilla` (an encoder built here), or the Hub id or folder of a pre-trained model."
        },
    )
    init: str | None = field(
        default=None,
        metadata={
            "help": "Name of the initialiser of the embedding table; `python -m hf_embinit list` shows them. "
            "Default: xavier for vanilla; a pre-trained model keeps its own."
        },
    )
    surgery: str | None = field(
        default=None,
        metadata={
            "help": "What is done to the model before training, after --init: a name such as `reversed`, "
            "`shuffled_embeddings`, `remove_last_6`, `clean`, or several joined by `+`. "
            "`hf_embinit.surgery.list()` names them."
        },
    )
    donor: str | None = field(
        default=None,
        metadata={
            "help": "Hub id or folder whose tokenizer and embeddings `--surgery donor_embeddings` puts in."
        },
    )
    tokenizer: str | None = field(
        default=None,
        metadata={
            "help": "`words` (spaCy rules, lower-cased), `bert`, `t5`, a Hub id or a folder. Default: words "
            "for vanilla, which counts what the training text has; a pre-trained model's own."
        },
    )
    vectors: str | None = field(
        default=None,
        metadata={
            "help": "Vectors: a file, a checkpoint folder or a Hub id. Default: those behind the name of the "
            "init; for the embedded corpora, GloVe trained on the embedded text."
        },
    )
    allow_pickle: bool = field(
        default=False,
        metadata={"help": "Read a --model or vectors that have no safetensors from their .bin files."},
    )
    freeze_embeddings: bool | None = field(
        default=None, metadata={"help": "Vanilla: keep the embedding table as initialised."}
    )
    position_encoding: str | None = field(
        default=None,
        metadata={
            "help": "Vanilla: how positions enter. Default: sinusoidal.",
            "choices": ["sinusoidal", "learned", "rotary", "relative", "none"],
        },
    )
    norm_position: str | None = field(
        default=None,
        metadata={
            "help": "Vanilla: LayerNorm after or before each block. Default: post.",
            "choices": ["post", "pre"],
        },
    )
    d_model: int | None = field(
        default=None,
        metadata={
            "help": "Vanilla: width of embeddings and layers, in dimensions. Default: 300 for words, 768 for "
            "bert, else 512; 128 on the embedded corpora."
        },
    )
    d_ff: int | None = field(
        default=None,
        metadata={
            "help": "Vanilla: width of the feed-forward layers, in dimensions. Default: 512; 256 on the "
            "embedded corpora."
        },
    )
    num_layers: int | None = field(
        default=None,
        metadata={"help": "Vanilla: encoder layers. Default: 3; 2 on the embedded corpora."},
    )
    num_heads: int | None = field(
        default=None,
        metadata={
            "help": "Vanilla: attention heads a layer; must divide --d_model. Default: 10 for words, else 8; "
            "4 on the embedded corpora."
        },
    )
    dropout_rate: float | None = field(
        default=None, metadata={"help": "Vanilla: dropout probability, 0 to 1. Default: 0.1."}
    )
    min_frequency: int | None = field(
        default=None,
        metadata={
            "help": "Vanilla: tokens seen fewer times than this in the training text become <unk>. "
            "Default: 2."
        },
    )


@dataclass
class DataArguments:
    """The texts and their labels."""

    task: str = field(
        default="sentiment",
        metadata={
            "help": f"One of {', '.join(DATASETS)}, or a folder with train, validation and (optional) test "
            "files (.csv, .jsonl, ...): a column `label`, and one or two columns of text. The first two are "
            "embedded corpora, the others GLUE."
        },
    )
    data_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder that has the task's files, or a sub-folder of its name. Then HF_EMBINIT_DATA, "
            "then the Hub."
        },
    )
    train_file: str | None = field(default=None, metadata={"help": "Training texts, in place of the task's."})
    validation_file: str | None = field(
        default=None, metadata={"help": "Validation texts, in place of the task's."}
    )
    test_file: str | None = field(
        default=None, metadata={"help": "Test texts with labels; GLUE's own are not published."}
    )
    text_columns: list[str] | None = field(
        default=None, metadata={"help": "The column of the texts, or the two columns of the pairs."}
    )
    language: str = field(default="en", metadata={"help": "Language of the texts, for `--tokenizer words`."})
    max_length: int = field(
        default=128, metadata={"help": "Longest text or pair, in tokens; longer ones are cut."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on this many texts only."})
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Validate on this many texts only (of matched and mismatched, each)."}
    )
    max_predict_samples: int | None = field(default=None, metadata={"help": "Test on this many texts only."})


def defaults(known: Namespace) -> dict[str, Any]:
    """What a task, a model and a tokenizer bring along."""
    vanilla = known.model == "vanilla"
    init = known.init or ("xavier" if vanilla else None)
    tokenizer = known.tokenizer or ("words" if vanilla else None)
    metric = DATASETS[known.task].metrics[0] if known.task in DATASETS else "accuracy"
    names = [known.task, "" if vanilla else known.model, tokenizer]
    parts = [name.rstrip("/").split("/")[-1] for name in names if name]
    parts.append("+".join(step for step in (init, known.surgery) if step) or "none")
    return {
        **preset(known.task, known.model, tokenizer or ""),
        "init": init,
        "tokenizer": tokenizer,
        "output_dir": f"runs/classify/{'-'.join(parts)}-seed{known.seed}",
        "train_sampling_strategy": "group_by_length",
        "remove_unused_columns": False,  # the sampler reads `length`
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "save_total_limit": 1,  # beside the best one
        "load_best_model_at_end": True,
        "metric_for_best_model": f"eval_{metric}",
        "ddp_find_unused_parameters": False,
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def refuse_vanilla_flags(model_args: ModelArguments) -> None:
    """Raises `InvalidArgumentError` when a flag that shapes the vanilla encoder comes with another model."""
    from hf_embinit.errors import InvalidArgumentError

    for name, value in vars(model_args).items():
        about = ModelArguments.__dataclass_fields__[name].metadata["help"]
        if value is not None and about.startswith("Vanilla:"):
            raise InvalidArgumentError(
                f"--{name} {value} shapes the vanilla encoder; --model {model_args.model} has its own"
            )


def main() -> None:
    """Data, tokenizer, model, surgery, training, test, run folder."""
    model_args, data_args, training_args = parse_arguments(
        (ModelArguments, DataArguments, TrainingArguments), defaults, description=__doc__ or ""
    )
    # after --help, which answers without them
    from transformers import Trainer as PlainTrainer
    from transformers import set_seed

    import hf_embinit
    from hf_embinit import surgery
    from hf_embinit.errors import InvalidArgumentError
    from hf_embinit.hub_access import load_pretrained_tokenizer
    from hf_embinit.models import (
        VanillaTransformerConfig,
        VanillaTransformerForSequenceClassification,
        VanillaTransformerTokenizer,
    )
    from hf_embinit.runs.finish import draw_tables, finish_run, test_scores
    from hf_embinit.runs.folder import prepare_run_folder
    from hf_embinit.runs.publishing import take_push_to_hub
    from hf_embinit.runs.record import RunRecord, device_name, history_from_log
    from hf_embinit.runs.training import (
        EpochClock,
        SequentialEvaluation,
        best_row,
        keep_checkpoints_whole,
        table_statistics,
        train_seconds,
    )
    from hf_embinit.tasks.classification import (
        classification_metrics,
        encode_texts,
        first_samples,
        prediction_rows,
    )
    from hf_embinit.tasks.classification_data import load_classification
    from hf_embinit.tasks.classification_vectors import classification_vectors
    from hf_embinit.tasks.data import data_digests
    from hf_embinit.tasks.encoded import TextCollator, sort_by_length, token_counts
    from hf_embinit.tasks.pretrained_classifier import (
        check_length,
        load_pretrained_classifier,
    )
    from hf_embinit.vectors import SOURCES

    # --- names and options: what cannot work ends here, before any work
    # -----------------------------------------
    vanilla = model_args.model == "vanilla"
    if not vanilla:
        refuse_vanilla_flags(model_args)
    if model_args.init is not None:
        hf_embinit.get_initializer(model_args.init)
    options = {} if model_args.donor is None else {"donor": model_args.donor}
    if model_args.init is None and model_args.vectors is not None:
        options["vectors"] = model_args.vectors  # for an initialiser among the steps of the surgery
    if model_args.surgery is not None:
        surgery.check(model_args.surgery, tokenizer=object(), **options)
    elif options:
        flag = next(iter(options))
        reader = "--init" if flag == "vectors" else "--surgery donor_embeddings"
        raise InvalidArgumentError(f"--{flag} {options[flag]!r} is given, but not {reader}, which reads it")
    arguments = {**vars(model_args), **vars(data_args), **training_args.to_dict()}
    run = prepare_run_folder(
        training_args.output_dir,
        training_args.resume_from_checkpoint,
        {**vars(model_args), **vars(data_args), "seed": training_args.seed},
        is_main_process=training_args.process_index == 0,
    )
    done = "+".join(step for step in (model_args.init, model_args.surgery) if step) or "none"
    source = model_args.tokenizer or model_args.donor or model_args.model
    hub = take_push_to_hub(
        training_args,
        task="classification",
        dataset=data_args.task,
        init=done,
        tokenizer=source,
        seed=training_args.seed,
    )
    set_seed(training_args.seed)

    # --- data, tokenizer, model
    # ---------------------------------------------------------------------------------
    with training_args.main_process_first(desc="loading data"):
        task, data = load_classification(
            data_args.task,
            data_dir=data_args.data_dir,
            files={s: getattr(data_args, f"{s}_file") for s in ("train", "validation", "test")},
            text_columns=data_args.text_columns,
        )
        limits = {
            "train": data_args.max_train_samples,
            "validation": data_args.max_eval_samples,
            "test": data_args.max_predict_samples,
        }
        for split in data:
            data[split] = first_samples(data[split], limits[split])
        digests = data_digests(data)
        label_settings: dict[str, Any] = {
            "num_labels": len(task.labels) or 1,
            "problem_type": "single_label_classification" if task.labels else "regression",
        }
        if task.labels:
            label_settings["id2label"] = dict(enumerate(task.labels))
            label_settings["label2id"] = {label: i for i, label in enumerate(task.labels)}
        if vanilla:
            columns = [data["train"][c][:] for c in ("text", "text_pair") if c in data["train"].column_names]
            name = SOURCES.get(model_args.tokenizer, model_args.tokenizer)
            tokenizer: Any = VanillaTransformerTokenizer.build(
                [text for column in columns for text in column],
                tokenizer=name
                if name == "words"
                else load_pretrained_tokenizer(name, f"--tokenizer {name!r}"),
                source_lang=data_args.language,
                min_frequency=model_args.min_frequency,
            )
            config = VanillaTransformerConfig(
                vocab_size=len(tokenizer.encoder),
                d_model=model_args.d_model,
                d_ff=model_args.d_ff,
                num_layers=model_args.num_layers,
                num_heads=model_args.num_heads,
                dropout_rate=model_args.dropout_rate,
                norm_position=model_args.norm_position,
                position_encoding=model_args.position_encoding,
                freeze_embeddings=model_args.freeze_embeddings,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                **label_settings,
            )
            model: Any = VanillaTransformerForSequenceClassification(config)
        else:
            model, tokenizer = load_pretrained_classifier(
                model_args.model,
                model_args.tokenizer,
                allow_pickle=model_args.allow_pickle,
                **label_settings,
            )
        check_length(model, data_args.max_length)

        # --- embeddings and surgery
        # -----------------------------------------------------------------------------
        reader = tokenizer  # of the text, once surgery is done
        if model_args.donor is not None:
            reader = load_pretrained_tokenizer(model_args.donor, f"--donor {model_args.donor!r}")
        encoded = {
            split: encode_texts(
                data[split], reader, max_length=data_args.max_length, desc=f"encoding {split}"
            )
            for split in data
        }
        for split in data:
            if split != "train":
                data[split], encoded[split] = sort_by_length(data[split], encoded[split])
        coverage = {}
        if model_args.init is not None:
            table = model.get_input_embeddings()
            vectors = None
            if "vectors" in hf_embinit.get_initializer(model_args.init).needs:
                vectors = classification_vectors(
                    data_args.task,
                    model_args.vectors,
                    tokenizer=tokenizer,
                    dim=table.embedding_dim,
                    allow_pickle=model_args.allow_pickle,
                )
            counts = token_counts(encoded["train"], "input_ids", table.num_embeddings)
            report = hf_embinit.initialize(
                model,
                model_args.init,
                tokenizer=tokenizer,
                vectors=vectors or model_args.vectors,
                seed=training_args.seed,
                token_counts=counts if reader is tokenizer else None,  # a donor has other ids
                allow_pickle=model_args.allow_pickle,
            )
            coverage = {t.table: t.coverage for t in report.tables if t.coverage is not None}
        if model_args.surgery is not None:
            surgery.apply(model, model_args.surgery, tokenizer=tokenizer, seed=training_args.seed, **options)
    statistics, parameters = table_statistics(model), model.num_parameters()
    if training_args.should_save and run.checkpoint is None:  # step 0, kept beside the trained model
        model.save_pretrained(run.folder / "init")
        reader.save_pretrained(run.folder / "init")
        draw_tables(model, run.folder / "figures", done)

    # --- training
    # -----------------------------------------------------------------------------------------------
    class Trainer(SequentialEvaluation, PlainTrainer):
        """Predictions stay beside their texts."""

    if data_args.task not in DATASETS and training_args.metric_for_best_model == "eval_accuracy":
        training_args.metric_for_best_model = f"eval_{task.metrics[0]}"  # now the labels are known
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        processing_class=reader,
        data_collator=TextCollator(reader),
        compute_metrics=classification_metrics(task, data["validation"]),
        callbacks=[EpochClock()],
    )
    keep_checkpoints_whole(trainer)
    trainer.train(resume_from_checkpoint=run.checkpoint)

    # --- predictions, with the weights of the epoch of the best validation score
    # ----------------------------------
    split = "test" if "test" in data else "validation"
    trainer.compute_metrics = classification_metrics(task, data[split])
    predicted = trainer.predict(encoded[split], metric_key_prefix=split)
    trainer.save_model()  # every process: it gathers sharded weights
    if not trainer.is_world_process_zero():
        return

    # --- run folder
    # ---------------------------------------------------------------------------------------------
    history = history_from_log(trainer.state.log_history)
    best = None
    if training_args.load_best_model_at_end:
        metric = training_args.metric_for_best_model.removeprefix("eval_")
        greater = training_args.greater_is_better
        best = best_row(history, f"validation_{metric}", greater_is_better=greater)
    seconds = train_seconds(trainer.state.log_history)
    tokens = sum(encoded["train"]["length"][:])
    record = RunRecord(
        task="classification",
        dataset=data_args.task,
        init=done,
        tokenizer=source,
        seed=training_args.seed,
        arguments=arguments,
        metrics={
            **({} if best is None else {k: v for k, v in best.items() if k.startswith("validation_")}),
            **test_scores(predicted.metrics),
        },
        best_epoch=None if best is None else best["epoch"],
        history=history,
        parameters=parameters,
        embedding_statistics=statistics,
        coverage=coverage,
        runtime={
            "train_seconds": seconds,
            "tokens_per_second": tokens * trainer.state.epoch / seconds,
            "device": device_name(training_args.device),
            "world_size": training_args.world_size,
        },
        data=digests,
    )
    print(finish_run(run.folder, record, prediction_rows(task, data[split], predicted.predictions)))
    if hub is not None:
        print(hub.publish(run.folder))


if __name__ == "__main__":
    run_main(main)
