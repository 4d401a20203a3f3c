# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]"]
#
# [tool.hf-jobs]
# flavor = "a10g-small"
# timeout = "6h"
# ///
"""Train a decoder-only language model from named embeddings, or two of them side by side.

    accelerate launch recipes/language_model.py --init glove_xavier
    python recipes/language_model.py --dataset wikitext-2 --tokenizer gpt2
    python recipes/language_model.py --dataset wikitext-2 --twin_seeds 0 1
    python recipes/language_model.py --dataset wikitext-2 --twin_seeds 2 3 --reinitialize_embeddings \\
        --freeze_rest --model runs/language_model/wikitext-2-v1-vanilla-xavier-seed42-twins-0-1/twin-0
    python recipes/language_model.py --model gpt2 --dataset wikitext-2

The first runs offline on embedded text in about two minutes on two cores. `--twin_seeds` is experiment 1 of
the Butterfly study: two models whose initialisations have these seeds see the same batches under the same
dropout masks, and KNN match similarity, losses and statistics of their embeddings are recorded at steps on a
logarithmic scale. The fourth command is experiment 2: the input embeddings of a trained model are drawn anew,
twice, and trained alone on reshuffled data. A tied output projection is that same table; an untied one stays
frozen with the rest. `--resume_from_checkpoint last` continues an interrupted run;
`--push_to_hub --hub_model_id user/name` publishes the finished one.
"""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from transformers import TrainingArguments

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.runs.arguments import parse_arguments, run_main
from hf_embinit.tasks.language_modeling import ALIASES, DATASETS, preset


@dataclass
class ModelArguments:
    """The model and where its token embeddings come from."""

    model: str = field(
        default="vanilla",
        metadata={
            "help": "`vanilla`, a new decoder, or a trained causal LM by folder (also one in "
            "HF_EMBINIT_DATA) or Hub id."
        },
    )
    init: str | None = field(
        default=None,
        metadata={
            "help": "Name of the initialiser of the input embeddings; `python -m hf_embinit list` shows "
            "them. Default: xavier for a new model; a trained one keeps its embeddings."
        },
    )
    tokenizer: str | None = field(
        default=None,
        metadata={
            "help": "`words` (spaCy rules, lower-cased), `gpt2`, a Hub id or a folder. Default: words for "
            "embedded text, else gpt2; a trained model has its own."
        },
    )
    min_frequency: int | None = field(
        default=None,
        metadata={
            "help": "Tokens seen fewer times than this in the training text become <unk>. Default: 2 for "
            "words; a pre-trained tokenizer keeps its whole vocabulary."
        },
    )
    vectors: str | None = field(
        default=None,
        metadata={
            "help": "Vectors for the init: a file, a checkpoint folder or a Hub id. Default: those behind "
            "its name; for embedded text, GloVe trained on such text."
        },
    )
    allow_pickle: bool = field(
        default=False,
        metadata={"help": "Read a --model or vectors that have no safetensors from their .bin files."},
    )
    reinitialize_embeddings: bool = field(
        default=False,
        metadata={
            "help": "Draw the input embeddings of a trained --model anew, by --init (default xavier), and "
            "reshuffle the data."
        },
    )
    freeze_rest: bool = field(
        default=False, metadata={"help": "Train the input embeddings of a trained --model alone."}
    )
    tie_word_embeddings: bool = field(
        default=False, metadata={"help": "A new model's output projection is its input table."}
    )
    position_encoding: str = field(
        default="sinusoidal",
        metadata={
            "help": "How positions enter a new model.",
            "choices": ["sinusoidal", "learned", "rotary", "relative", "none"],
        },
    )
    norm_position: str = field(
        default="pre", metadata={"help": "LayerNorm after or before each block.", "choices": ["post", "pre"]}
    )
    d_model: int = field(default=512, metadata={"help": "Width of embeddings and layers, in dimensions."})
    d_ff: int = field(default=2048, metadata={"help": "Width of the feed-forward layers, in dimensions."})
    num_layers: int = field(default=4, metadata={"help": "Layers of a new model."})
    num_heads: int = field(default=8, metadata={"help": "Attention heads a layer; must divide --d_model."})
    dropout_rate: float = field(default=0.1, metadata={"help": "Dropout probability, 0 to 1."})


@dataclass
class TwinArguments:
    """Two models side by side, and what is recorded of them."""

    twin_seeds: list[int] | None = field(
        default=None,
        metadata={
            "help": "Two seeds of initialisation: train two models on the same batches. --seed is that of "
            "the order of the data and of dropout."
        },
    )
    knn_k: int = field(default=10, metadata={"help": "Neighbours a token, for KNN match similarity."})
    knn_tokens: int | None = field(
        default=None,
        metadata={"help": "Compare this many of the most frequent tokens among themselves. Default: all."},
    )
    records_per_decade: int = field(
        default=8, metadata={"help": "Records for each factor of ten in optimizer steps."}
    )


@dataclass
class DataArguments:
    """The texts."""

    dataset: str = field(
        default="stories",
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
    language: str = field(default="en", metadata={"help": "Language of the texts, for --tokenizer words."})
    train_file: str | None = field(
        default=None, metadata={"help": "Training texts, in place of the data set's."}
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "Validation texts, in place of the data set's."}
    )
    test_file: str | None = field(default=None, metadata={"help": "Test texts, in place of the data set's."})
    block_size: int = field(default=128, metadata={"help": "Length of a sequence, in tokens."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on this many texts only."})
    max_eval_blocks: int = field(
        default=0,
        metadata={
            "help": "While training, validate on this many sequences, spread over the text; 0 takes all."
        },
    )


def defaults(known: Namespace) -> dict[str, Any]:
    """What a data set brings along, and when to evaluate and save."""
    dataset = ALIASES.get(known.dataset, known.dataset)
    data, model = (name.rstrip("/").split("/")[-1] for name in (dataset, known.model))
    init = known.init or ("xavier" if known.model == "vanilla" or known.reinitialize_embeddings else "kept")
    name = f"{data}-{model}-{init}-seed{known.seed}"
    if known.twin_seeds:
        name += "-twins-" + "-".join(map(str, known.twin_seeds))
        when = {"eval_strategy": "no", "save_strategy": "steps", "save_steps": 500, "logging_steps": 100}
    else:
        when = {
            "eval_strategy": "epoch",
            "save_strategy": "epoch",
            "logging_strategy": "epoch",
            "load_best_model_at_end": True,
            "metric_for_best_model": "eval_loss",
            "greater_is_better": False,
        }
    if known.reinitialize_embeddings:
        when["data_seed"] = known.seed + 1  # not the order that the model was trained in
    return {
        **preset(dataset, known.model, new_embeddings=init != "kept"),
        **when,
        "output_dir": f"runs/language_model/{name}",
        "save_total_limit": 1,  # beside the best one
        "prediction_loss_only": not known.twin_seeds,
        "ddp_find_unused_parameters": False,
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def check(model: ModelArguments, twins: TwinArguments, training: TrainingArguments) -> None:
    """Raises `InvalidArgumentError` for flags that do not go together."""
    new = model.model == "vanilla"
    for name in ("reinitialize_embeddings", "freeze_rest"):
        if new and getattr(model, name):
            raise InvalidArgumentError(
                f"--{name} is for a trained model: --model is 'vanilla', a new one; give a folder or Hub id"
            )
    if not new and model.min_frequency is not None:
        raise InvalidArgumentError(
            f"--min_frequency {model.min_frequency} with --model {model.model}: a trained model has its own "
            "vocabulary (hf_embinit.prune_vocabulary makes it smaller)"
        )
    if (model.freeze_rest or twins.twin_seeds) and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        flag = "--freeze_rest" if model.freeze_rest else "--twin_seeds"
        raise InvalidArgumentError(f"{flag} compares whole tensors, which FSDP has cut up: use DDP")
    if twins.twin_seeds is None:
        return
    if len(set(twins.twin_seeds)) != 2 or len(twins.twin_seeds) != 2:
        seeds = " ".join(map(str, twins.twin_seeds))
        raise InvalidArgumentError(f"--twin_seeds {seeds}: give two different seeds, such as 0 1")
    if not new and model.init is None and not model.reinitialize_embeddings:
        raise InvalidArgumentError(
            f"--twin_seeds with --model {model.model} would train the same model twice: add "
            "--reinitialize_embeddings or --init"
        )
    if twins.records_per_decade < 1:
        raise InvalidArgumentError(f"--records_per_decade {twins.records_per_decade}: give at least 1")
    if training.fp16:
        raise InvalidArgumentError("--fp16 with --twin_seeds would clip scaled gradients: use --bf16")
    if training.load_best_model_at_end:
        raise InvalidArgumentError(
            "--load_best_model_at_end with --twin_seeds: both models are kept as they are after the last step"
        )


def main() -> None:
    """Data, tokenizer, model or models, training, test, run folder."""
    model_args, twin_args, data_args, training_args = parse_arguments(
        (ModelArguments, TwinArguments, DataArguments, TrainingArguments), defaults, description=__doc__ or ""
    )
    check(model_args, twin_args, training_args)
    # after --help, which answers without them
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, default_data_collator, set_seed

    import hf_embinit
    from hf_embinit.hub_access import load_pretrained
    from hf_embinit.models import VanillaTransformerConfig, VanillaTransformerForCausalLM
    from hf_embinit.runs.finish import draw_tables, finish_run, test_scores
    from hf_embinit.runs.folder import prepare_run_folder
    from hf_embinit.runs.publishing import take_push_to_hub
    from hf_embinit.runs.record import RunRecord, device_name, history_from_log
    from hf_embinit.runs.training import (
        EpochClock,
        best_row,
        changed_tensors,
        freeze_all_but_embeddings,
        keep_checkpoints_whole,
        table_statistics,
        train_seconds,
    )
    from hf_embinit.runs.trajectory_figures import plot_trajectory
    from hf_embinit.runs.twins import TwinRecorder, Twins, compared_rows, trajectory, twin_metrics
    from hf_embinit.tasks.data import data_digests, find_folder
    from hf_embinit.tasks.language_modeling import (
        check_fits,
        continuations,
        load_texts,
        load_tokenizer,
        pack_blocks,
        spread_blocks,
        token_counts,
    )

    data_args.dataset = ALIASES.get(data_args.dataset, data_args.dataset)
    new = model_args.model == "vanilla"
    init = model_args.init or ("xavier" if new or model_args.reinitialize_embeddings else None)
    if init is not None:
        hf_embinit.get_initializer(init)  # an unknown name ends here, before any work
    arguments = {**vars(model_args), **vars(twin_args), **vars(data_args), **training_args.to_dict()}
    kept = {**vars(model_args), **vars(twin_args), **vars(data_args)}
    kept |= {name: getattr(training_args, name) for name in ("seed", "data_seed")}
    run = prepare_run_folder(
        training_args.output_dir,
        training_args.resume_from_checkpoint,
        kept,
        is_main_process=training_args.process_index == 0,
    )
    hub = take_push_to_hub(
        training_args,
        task="language_modeling",
        dataset=data_args.dataset,
        init=init or "kept",
        tokenizer=model_args.tokenizer or model_args.model,
        seed=training_args.seed,
    )

    # --- data and tokenizer
    # -------------------------------------------------------------------------------------
    path = str(find_folder(model_args.model, None) or model_args.model)
    with training_args.main_process_first(desc="loading data"):
        data = load_texts(
            data_args.dataset,
            config=data_args.dataset_config,
            data_dir=data_args.data_dir,
            files={s: getattr(data_args, f"{s}_file") for s in ("train", "validation", "test")},
        )
        texts = {split: rows["text"][:] for split, rows in data.items()}
        texts["train"] = texts["train"][: data_args.max_train_samples]
        own = None if new else load_pretrained(AutoTokenizer, path, f"--model {model_args.model}")
        tokenizer: Any = own
        if own is None or model_args.tokenizer is not None:
            tokenizer = load_tokenizer(
                model_args.tokenizer or "gpt2",
                texts["train"],
                language=data_args.language,
                min_frequency=model_args.min_frequency,
            )
        if own is not None and tokenizer.get_vocab() != own.get_vocab():
            raise InvalidArgumentError(
                f"--tokenizer {model_args.tokenizer} has another vocabulary than --model {model_args.model}: "
                "leave it out: a trained model keeps its own"
            )
        packed = {split: pack_blocks(rows, tokenizer, data_args.block_size) for split, rows in texts.items()}
    counts = token_counts(packed["train"].blocks, len(tokenizer))
    vectors = model_args.vectors
    embedded_words = data_args.dataset in ("stories", "captions") and model_args.tokenizer == "words"
    if embedded_words and init and "vectors" in hf_embinit.get_initializer(init).needs and not vectors:
        from hf_embinit.tasks.captions import caption_vectors

        vectors = caption_vectors("en", dim=model_args.d_model)

    # --- models and their embeddings
    # ----------------------------------------------------------------------------
    def build(seed: int) -> tuple[Any, Any]:
        set_seed(seed)
        if new:
            config = VanillaTransformerConfig(
                vocab_size=len(tokenizer),
                d_model=model_args.d_model,
                d_ff=model_args.d_ff,
                num_layers=model_args.num_layers,
                num_heads=model_args.num_heads,
                dropout_rate=model_args.dropout_rate,
                norm_position=model_args.norm_position,
                position_encoding=model_args.position_encoding,
                tie_word_embeddings=model_args.tie_word_embeddings,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
            model = VanillaTransformerForCausalLM(config)
        else:
            flag = f"--model {model_args.model}"
            model = load_pretrained(
                AutoModelForCausalLM,
                path,
                flag,
                dtype=torch.float32,
                use_safetensors=None if model_args.allow_pickle else True,
            )
        check_fits(model, tokenizer, data_args.block_size)
        report = None
        if init is not None:
            report = hf_embinit.initialize(
                model,
                init,
                tokenizer=tokenizer,
                vectors=vectors,
                seed=seed,
                token_counts=counts.tolist(),
                allow_pickle=model_args.allow_pickle,
            )
        return model, report

    twin = twin_args.twin_seeds is not None
    built = {f"seed{seed}": build(seed) for seed in twin_args.twin_seeds or [training_args.seed]}
    models = {name: model for name, (model, _) in built.items()}
    first, init_report = next(iter(built.values()))
    folders = {name: f"twin-{name.removeprefix('seed')}" if twin else "" for name in models}
    parameters = first.num_parameters()
    statistics = {
        f"{folders[name]}/{table}".lstrip("/"): values
        for name, model in models.items()
        for table, values in table_statistics(model).items()
    }
    frozen = {n: freeze_all_but_embeddings(m) for n, m in models.items()} if model_args.freeze_rest else {}
    if twin:
        rows = compared_rows(first, counts, twin_args.knn_tokens, twin_args.knn_k)
    if training_args.should_save and run.checkpoint is None:  # step 0, kept beside the trained model
        for name, model in models.items():
            model.save_pretrained(run.folder / "init" / folders[name])
            tokenizer.save_pretrained(run.folder / "init" / folders[name])
        draw_tables(first, run.folder / "figures", init or "kept")

    # --- training
    # -----------------------------------------------------------------------------------------------
    callbacks: list[Any] = [EpochClock()]
    trained: Any = first
    if twin:
        trained = Twins(models)
        recorder = TwinRecorder(
            trained,
            per_decade=twin_args.records_per_decade,
            rows=rows,
            counts=counts,
            k=twin_args.knn_k,
            max_grad_norm=training_args.max_grad_norm,
        )
        training_args.max_grad_norm = 0.0  # the norm of both together would couple them
        training_args.eval_on_start = run.checkpoint is None  # the record of step 0
        callbacks.insert(0, recorder)  # it asks for evaluations, which stop the clock
    trainer = Trainer(
        model=trained,
        args=training_args,
        train_dataset=packed["train"].blocks,
        eval_dataset=spread_blocks(packed["validation"].blocks, data_args.max_eval_blocks),
        processing_class=tokenizer,
        data_collator=default_data_collator,
        compute_metrics=twin_metrics if twin else None,
        callbacks=callbacks,
    )
    keep_checkpoints_whole(trainer)
    trainer.train(resume_from_checkpoint=run.checkpoint)

    # --- test
    # ---------------------------------------------------------------------------------------------------
    scores: dict[str, float] = {}
    for split in [split for split in packed if split != "train"]:
        found = test_scores(trainer.predict(packed[split].blocks, metric_key_prefix=split).metrics or {})
        names = {f"{split}_loss_{i}": f"_{name}" for i, name in enumerate(models)} if twin else {}
        for key, suffix in (names or {f"{split}_loss": ""}).items():
            scores[f"{split}_loss{suffix}"] = found[key]
            scores |= {f"{split}_{k}{suffix}": v for k, v in packed[split].scores(found[key]).items()}
        for kind in ("loss", "perplexity", "word_perplexity", "bits_per_byte") if twin else ():  # their mean
            scores[f"{split}_{kind}"] = fmean(scores[f"{split}_{kind}_{name}"] for name in models)
    if not twin:
        trainer.save_model()  # every process: it gathers sharded weights
    shown = packed["test" if "test" in packed else "validation"].blocks
    samples = continuations({folders[n] or "prediction": m for n, m in models.items()}, tokenizer, shown)
    if not trainer.is_world_process_zero():
        return
    for name, model in models.items() if twin else ():
        model.save_pretrained(run.folder / folders[name])
        tokenizer.save_pretrained(run.folder / folders[name])
    for name, before in frozen.items():
        changed = changed_tensors(models[name], before)
        assert not changed, f"frozen tensors of {name} changed: {', '.join(changed)}"
        scores[f"frozen_tensors_unchanged{'_' + name if twin else ''}"] = len(before)

    # --- run folder
    # ---------------------------------------------------------------------------------------------
    log = trainer.state.log_history
    if twin:
        history = trajectory(log)
        scores |= {key: value for key, value in history[-1].items() if key.startswith("knn_")}
        scores["knn_peak"] = max(row["knn_input_inner_product"] for row in history)
        scores["knn_peak_step"] = max(history, key=lambda row: row["knn_input_inner_product"])["step"]
        plot_trajectory(
            history,
            list(models),
            run.folder / "figures" / "trajectory.png",
            title=f"{data_args.dataset}, {model_args.model}, init {init}, seeds {twin_args.twin_seeds}",
        )
    else:
        history = history_from_log(log)
        for row in history:
            loss = row["validation_loss"]
            row.update({f"validation_{k}": v for k, v in packed["validation"].scores(loss).items()})
    best = None if twin else best_row(history, "validation_loss", greater_is_better=False)
    seconds = train_seconds(log)
    steps, batch = trainer.state.global_step, training_args.train_batch_size * training_args.world_size
    record = RunRecord(
        task="language_modeling",
        dataset=data_args.dataset,
        init=init or "kept",
        tokenizer=model_args.tokenizer or model_args.model,
        seed=training_args.seed,
        arguments=arguments,
        metrics=scores,
        best_epoch=best["epoch"] if best and training_args.load_best_model_at_end else None,
        history=history,
        parameters=parameters,
        embedding_statistics=statistics,
        coverage={t.table: t.coverage for t in init_report.tables if t.coverage} if init_report else {},
        runtime={
            "train_seconds": seconds,
            "tokens_per_second": steps
            * batch
            * training_args.gradient_accumulation_steps
            * data_args.block_size
            / seconds,
            "device": device_name(training_args.device),
            "world_size": training_args.world_size,
        },
        data=data_digests(data),
    )
    print(finish_run(run.folder, record, samples, models=list(folders.values())))
    if hub is not None:
        print(hub.publish(run.folder))


if __name__ == "__main__":
    run_main(main)
