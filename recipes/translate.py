# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]"]
#
# [tool.hf-jobs]
# flavor = "a10g-small"
# timeout = "6h"
# ///
"""Train a vanilla encoder-decoder for translation from named embeddings, test it, and explain what came out.

    accelerate launch recipes/translate.py --init glove_xavier
    accelerate launch recipes/translate.py --dataset multi30k --init glove_xavier \
        --vectors de.300d.txt --target_vectors glove.840B.300d.zip
    python recipes/translate.py settings.yaml --init xavier --seed 1

The first runs offline on the embedded captions corpus in about three minutes on two cores. The settings of a
data set are those of Kim et al. 2024, Table 5, where the paper has them; any flag overrides.
`--resume_from_checkpoint last` continues an interrupted run. `--push_to_hub --hub_model_id user/name`
publishes the finished one: trained and initialised model, record, figures and card.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Seq2SeqTrainingArguments

from hf_embinit.runs.arguments import parse_arguments, run_main
from hf_embinit.tasks.translation import DATASETS, preset


@dataclass
class ModelArguments:
    """The model and where its token embeddings come from."""

    init: str = field(
        default="xavier",
        metadata={
            "help": "Name of the initialiser of both embedding tables; `python -m hf_embinit list` shows "
            "them."
        },
    )
    tokenizer: str = field(
        default="words",
        metadata={
            "help": "`words` (spaCy rules, lower-cased), `bert`, `mbert`, `t5`, `mt5`, a Hub id or a folder."
        },
    )
    vectors: str | None = field(
        default=None,
        metadata={
            "help": "Vectors of the source language: a file, a checkpoint folder or a Hub id. Default: those "
            "behind the name of the init; for captions, GloVe trained on the embedded text."
        },
    )
    target_vectors: str | None = field(
        default=None, metadata={"help": "Vectors of the target language. Default: the same as --vectors."}
    )
    allow_pickle: bool = field(
        default=False,
        metadata={"help": "Read vectors of a checkpoint that has no safetensors from its .bin files."},
    )
    freeze_embeddings: bool = field(
        default=False, metadata={"help": "Keep both embedding tables as initialised."}
    )
    position_encoding: str = field(
        default="sinusoidal",
        metadata={
            "help": "How positions enter.",
            "choices": ["sinusoidal", "learned", "rotary", "relative", "none"],
        },
    )
    norm_position: str = field(
        default="post", metadata={"help": "LayerNorm after or before each block.", "choices": ["post", "pre"]}
    )
    d_model: int = field(default=300, metadata={"help": "Width of embeddings and layers, in dimensions."})
    d_ff: int = field(default=512, metadata={"help": "Width of the feed-forward layers, in dimensions."})
    num_layers: int = field(default=3, metadata={"help": "Encoder layers, and as many decoder layers."})
    num_heads: int = field(default=10, metadata={"help": "Attention heads a layer; must divide --d_model."})
    dropout_rate: float = field(default=0.1, metadata={"help": "Dropout probability, 0 to 1."})


@dataclass
class DataArguments:
    """The pairs of texts."""

    dataset: str = field(
        default="captions",
        metadata={
            "help": f"One of {', '.join(DATASETS)}, a folder with train/validation/test files, or a Hub id."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub data set."})
    data_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder that has the data set, or a sub-folder of its name. Then HF_EMBINIT_DATA, then "
            "the Hub."
        },
    )
    source_lang: str = field(
        default="de", metadata={"help": "Language translated from: a column of the data."}
    )
    target_lang: str = field(
        default="en", metadata={"help": "Language translated into: a column of the data."}
    )
    train_file: str | None = field(
        default=None, metadata={"help": "Training pairs, in place of the data set's."}
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "Validation pairs, in place of the data set's."}
    )
    test_file: str | None = field(default=None, metadata={"help": "Test pairs, in place of the data set's."})
    min_frequency: int = field(
        default=2, metadata={"help": "Tokens seen fewer times than this in the training text become <unk>."}
    )
    max_source_length: int = field(
        default=128, metadata={"help": "Longest source, in tokens; longer ones are cut."}
    )
    max_target_length: int = field(
        default=128, metadata={"help": "Longest target, in tokens, also when generating."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on this many pairs only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Validate on this many pairs only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Test on this many pairs only."})
    num_beams: int = field(default=1, metadata={"help": "Beams when generating; 1 is greedy search."})


def defaults(known: Namespace) -> dict[str, Any]:
    """What a data set and a tokenizer bring along; the optimizer is that of Kim et al. 2024, section A.2."""
    name = known.dataset.rstrip("/").split("/")[-1]
    tokenizer = known.tokenizer.rstrip("/").split("/")[-1]
    return {
        **preset(known.dataset, known.tokenizer),
        "output_dir": f"runs/translate/{name}-{tokenizer}-{known.init}-seed{known.seed}",
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-9,
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "group_by_length",
        "remove_unused_columns": False,  # the sampler reads `length`
        "predict_with_generate": True,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "save_total_limit": 1,  # beside the best one
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": False,
        "ddp_find_unused_parameters": False,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "generation_max_length": known.max_target_length,
        "generation_num_beams": known.num_beams,
    }


def main() -> None:
    """Data, tokenizer, model, training, test, run folder."""
    model_args, data_args, training_args = parse_arguments(
        (ModelArguments, DataArguments, Seq2SeqTrainingArguments), defaults, description=__doc__ or ""
    )
    # after --help, which answers without them
    from transformers import Seq2SeqTrainer, set_seed

    import hf_embinit
    from hf_embinit.models import (
        VanillaTransformerConfig,
        VanillaTransformerForConditionalGeneration,
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
    from hf_embinit.tasks.data import data_digests
    from hf_embinit.tasks.encoded import sort_by_length, token_counts
    from hf_embinit.tasks.translation import (
        PairCollator,
        bleu_metrics,
        decode_predictions,
        encode_pairs,
        load_translation,
    )
    from hf_embinit.vectors import SOURCES

    hf_embinit.get_initializer(model_args.init)  # an unknown name ends here, before any work
    arguments = {**vars(model_args), **vars(data_args), **training_args.to_dict()}
    run = prepare_run_folder(
        training_args.output_dir,
        training_args.resume_from_checkpoint,
        {**vars(model_args), **vars(data_args), "seed": training_args.seed},
        is_main_process=training_args.process_index == 0,
    )
    hub = take_push_to_hub(
        training_args,
        task="translation",
        dataset=data_args.dataset,
        init=model_args.init,
        tokenizer=model_args.tokenizer,
        seed=training_args.seed,
    )
    set_seed(training_args.seed)

    # --- data and tokenizer
    # -------------------------------------------------------------------------------------
    with training_args.main_process_first(desc="loading data"):
        data = load_translation(
            data_args.dataset,
            source_lang=data_args.source_lang,
            target_lang=data_args.target_lang,
            config=data_args.dataset_config,
            data_dir=data_args.data_dir,
            files={s: getattr(data_args, f"{s}_file") for s in ("train", "validation", "test")},
        )
        limits = {
            "train": data_args.max_train_samples,
            "validation": data_args.max_eval_samples,
            "test": data_args.max_predict_samples,
        }
        for split, limit in limits.items():
            if limit is not None:
                data[split] = data[split].select(range(min(limit, len(data[split]))))
        tokenizer = VanillaTransformerTokenizer.build(
            data["train"]["source"][:],
            data["train"]["target"][:],
            tokenizer=SOURCES.get(model_args.tokenizer, model_args.tokenizer),
            source_lang=data_args.source_lang,
            target_lang=data_args.target_lang,
            min_frequency=data_args.min_frequency,
        )
        encoded = {
            split: encode_pairs(
                data[split],
                tokenizer,
                max_source_length=data_args.max_source_length,
                max_target_length=data_args.max_target_length,
                desc=f"encoding {split}",
            )
            for split in data
        }
        digests = data_digests(data)  # before the splits are put in another order
        for split in ("validation", "test"):
            data[split], encoded[split] = sort_by_length(data[split], encoded[split])
        vectors, target_vectors = model_args.vectors, model_args.target_vectors
        needs_vectors = "vectors" in hf_embinit.get_initializer(model_args.init).needs
        if (
            needs_vectors
            and data_args.dataset == "captions"
            and model_args.tokenizer == "words"
            and not vectors
        ):
            from hf_embinit.tasks.captions import caption_vectors

            vectors = caption_vectors(data_args.source_lang, dim=model_args.d_model)
            target_vectors = target_vectors or caption_vectors(data_args.target_lang, dim=model_args.d_model)

    # --- model and its embeddings
    # -------------------------------------------------------------------------------
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer.encoder),
        decoder_vocab_size=len(tokenizer.target_encoder),
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
        decoder_start_token_id=tokenizer.bos_token_id,
    )
    model = VanillaTransformerForConditionalGeneration(config)
    init_report = hf_embinit.initialize(
        model,
        model_args.init,
        tokenizer=tokenizer,
        vectors=vectors,
        target_vectors=target_vectors,
        seed=training_args.seed,
        token_counts=token_counts(encoded["train"], "input_ids", config.vocab_size),
        target_token_counts=token_counts(encoded["train"], "labels", config.decoder_vocab_size),
        allow_pickle=model_args.allow_pickle,
    )
    statistics, parameters = table_statistics(model), model.num_parameters()
    if training_args.should_save and run.checkpoint is None:  # step 0, kept beside the trained model
        model.save_pretrained(run.folder / "init")
        tokenizer.save_pretrained(run.folder / "init")
        draw_tables(model, run.folder / "figures", model_args.init)

    # --- training
    # -----------------------------------------------------------------------------------------------
    def metrics(split: str) -> Any:
        return bleu_metrics(tokenizer, data[split]["target"][:], lowercase=tokenizer.lowercases)

    class Trainer(SequentialEvaluation, Seq2SeqTrainer):
        """Predictions stay beside their references."""

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        processing_class=tokenizer,
        data_collator=PairCollator(tokenizer, model=model),
        compute_metrics=metrics("validation"),
        callbacks=[EpochClock()],
    )
    keep_checkpoints_whole(trainer)
    trainer.train(resume_from_checkpoint=run.checkpoint)

    # --- test, with the weights of the epoch of lowest validation loss
    # --------------------------------------------
    trainer.compute_metrics = test_metrics = metrics("test")
    predicted = trainer.predict(encoded["test"], metric_key_prefix="test")
    trainer.save_model()  # every process: it gathers sharded weights
    if not trainer.is_world_process_zero():
        return

    # --- run folder
    # ---------------------------------------------------------------------------------------------
    history = history_from_log(trainer.state.log_history)
    best = best_row(history, "validation_loss", greater_is_better=False)
    seconds = train_seconds(trainer.state.log_history)
    tokens = sum(map(len, encoded["train"]["input_ids"][:])) + sum(map(len, encoded["train"]["labels"][:]))
    record = RunRecord(
        task="translation",
        dataset=data_args.dataset,
        init=model_args.init,
        tokenizer=model_args.tokenizer,
        seed=training_args.seed,
        arguments=arguments,
        metrics={
            **test_scores(predicted.metrics),
            **({} if best is None else {k: v for k, v in best.items() if k.startswith("validation_")}),
        },
        best_epoch=None if best is None else best["epoch"],
        history=history,
        parameters=parameters,
        embedding_statistics=statistics,
        coverage={t.table: t.coverage for t in init_report.tables if t.coverage is not None},
        runtime={
            "train_seconds": seconds,
            "tokens_per_second": tokens * trainer.state.epoch / seconds,
            "device": device_name(training_args.device),
            "world_size": training_args.world_size,
        },
        signature={f"test_{name}": text for name, text in test_metrics.signatures.items()},
        data=digests,
    )
    texts, _ = decode_predictions(tokenizer, predicted.predictions)
    samples = [
        {"source": pair["source"], "reference": pair["target"], "prediction": text, "row": pair["row"]}
        for pair, text in zip(data["test"], texts, strict=True)
    ]
    print(finish_run(run.folder, record, sorted(samples, key=lambda sample: sample["row"])))
    if hub is not None:
        print(hub.publish(run.folder))


if __name__ == "__main__":
    run_main(main)
