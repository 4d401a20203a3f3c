# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]"]
#
# [tool.hf-jobs]
# flavor = "a10g-small"
# timeout = "2h"
# ///
"""Add tokens to a trained language model in several ways; see what each costs at once and after training.

    python recipes/expand_vocab.py
    python recipes/expand_vocab.py --model gpt2 --dataset wikitext-2-v1
    python recipes/expand_vocab.py settings.yaml --inits zeros mean --seed 1

Hewitt's study (2021): the words that are most frequent in the training text among those that the tokenizer
splits become tokens, their rows are initialised by each of `--inits`, KL(p || p') is taken at every
position of validation text before any training, and the model is fine-tuned with the validation perplexity
every 20 steps. The first command runs offline: it trains a small model on embedded text (once, then
cached) and adds words of the captions to it.

Each initialiser has a run folder of its own, `<output_dir>/<init>`, with the model, `results.json` and a
card; the comparison is in `<output_dir>/README.md`, `summary.json` and `figures/`. Interrupted studies go
on with the same command: finished initialisers are not run again. `--push_to_hub --hub_model_id user/name`
publishes the run folders, each as `user/name-<init>`.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from hf_embinit.errors import RunFolderError
from hf_embinit.runs.arguments import parse_arguments, run_main
from hf_embinit.runs.record import RunRecord, read_record
from hf_embinit.tasks.language_modeling import DATASETS


@dataclass
class ExpansionArguments:
    """The model, the tokens and where their rows come from."""

    model: str = field(
        default="captions",
        metadata={
            "help": "A causal LM by Hub id or folder (also one in HF_EMBINIT_DATA), or `captions`: a "
            "small one trained on embedded text."
        },
    )
    allow_pickle: bool = field(
        default=False, metadata={"help": "Load a --model that has no safetensors from its .bin files."}
    )
    inits: list[str] = field(
        default_factory=lambda: ["default", "zeros", "mean", "mean_cov", "subword_mean"],
        metadata={"help": "Initialisers of the new rows, by name; `python -m hf_embinit list` shows them."},
    )
    num_new_tokens: int = field(default=100, metadata={"help": "Words to add, in tokens."})
    min_count: int = field(default=2, metadata={"help": "Words seen fewer times than this are never added."})


@dataclass
class DataArguments:
    """The texts of the new domain."""

    dataset: str = field(
        default="captions",
        metadata={
            "help": f"One of {', '.join(DATASETS)}, a folder with train/validation files, or a Hub id."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub data set."})
    data_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder that has the data set, or a sub-folder of its name. Then "
            "HF_EMBINIT_DATA, then the Hub."
        },
    )
    train_file: str | None = field(
        default=None, metadata={"help": "Training texts, in place of the data set's."}
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "Validation texts, in place of the data set's."}
    )
    block_size: int = field(default=128, metadata={"help": "Length of a training sequence, in tokens."})
    max_eval_blocks: int = field(
        default=64, metadata={"help": "Validate on this many sequences, spread over the text; 0 takes all."}
    )
    max_kl_positions: int = field(
        default=8192, metadata={"help": "Positions of validation text that KL(p || p') is taken at."}
    )


def defaults(known: Namespace) -> dict[str, Any]:
    """Hewitt's 500 steps with validation every 20; he names no batch size and no learning rate."""
    model, data = (name.rstrip("/").split("/")[-1] for name in (known.model, known.dataset))
    small = (
        {"learning_rate": 1e-3, "block_size": 64} if known.model == "captions" else {"learning_rate": 5e-5}
    )
    return {
        **small,
        "output_dir": f"runs/expand_vocab/{model}-{data}-seed{known.seed}",
        "max_steps": 500,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 16,
        "lr_scheduler_type": "constant",
        "eval_strategy": "steps",
        "eval_steps": 20,
        "eval_on_start": True,
        "logging_steps": 20,
        "save_strategy": "no",
        "ddp_find_unused_parameters": False,
    }


def main() -> None:
    """Data, new tokens, then for each initialiser: expansion, KL, fine-tuning, run folder."""
    args, data_args, training_args = parse_arguments(
        (ExpansionArguments, DataArguments, TrainingArguments), defaults, description=__doc__ or ""
    )
    # after --help, which answers without them
    import copy

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, default_data_collator, set_seed

    from hf_embinit.hub_access import load_pretrained
    from hf_embinit.manifest import read_manifest
    from hf_embinit.measures.divergence import expansion_bound
    from hf_embinit.new_rows import check_init
    from hf_embinit.runs.cards import write_card
    from hf_embinit.runs.expansion_figures import plot_curves, plot_kl_histograms
    from hf_embinit.runs.publishing import take_pushes_to_hub
    from hf_embinit.runs.record import (
        device_name,
        history_from_log,
        is_finished,
        write_json,
        write_record,
    )
    from hf_embinit.runs.training import keep_checkpoints_whole, table_statistics
    from hf_embinit.tasks.caption_model import caption_language_model
    from hf_embinit.tasks.data import data_digests, find_folder
    from hf_embinit.tasks.language_modeling import load_texts, pack_blocks
    from hf_embinit.vocabulary import expand_vocabulary, propose_tokens
    from hf_embinit.vocabulary.shift import shift_by_prefix

    for init in args.inits:  # an unknown name ends here, before any work
        check_init(init, {})
    output = Path(training_args.output_dir)
    arguments = {**vars(args), **vars(data_args), **training_args.to_dict()}
    identity = {"dataset": data_args.dataset, "tokenizer": args.model, "seed": training_args.seed}
    hubs = take_pushes_to_hub(training_args, args.inits, task="language_modeling", **identity)

    # --- model, data, new tokens
    # --------------------------------------------------------------------------------
    with training_args.main_process_first(desc="loading model and data"):
        path = caption_language_model() if args.model == "captions" else find_folder(args.model, None)
        path = path or args.model
        tokenizer = load_pretrained(AutoTokenizer, str(path), f"--model {args.model}")
        safe = None if args.allow_pickle else True
        base = load_pretrained(AutoModelForCausalLM, str(path), f"--model {args.model}", use_safetensors=safe)
        base = base.to(training_args.device).eval()
        data = load_texts(
            data_args.dataset,
            config=data_args.dataset_config,
            data_dir=data_args.data_dir,
            files={s: getattr(data_args, f"{s}_file") for s in ("train", "validation")},
        )
    train_texts, validation_texts = data["train"]["text"][:], data["validation"]["text"][:]
    new_tokens = propose_tokens(tokenizer, train_texts, args.num_new_tokens, min_count=args.min_count)
    print(f"{len(new_tokens)} new tokens, such as {', '.join(str(t).strip() for t in new_tokens[:10])}")

    def spread(blocks: Any, count: int) -> Any:
        step = max(1, len(blocks) // count) if count else 1
        return blocks.select(range(0, len(blocks), step)[: count or None])

    before = pack_blocks(validation_texts, tokenizer, data_args.block_size)
    kl_blocks = spread(before.blocks, max(1, data_args.max_kl_positions // data_args.block_size))
    kl_ids = torch.tensor(kl_blocks["input_ids"][:]).split(training_args.per_device_eval_batch_size)
    eval_ids = torch.tensor(spread(before.blocks, data_args.max_eval_blocks)["input_ids"][:])
    with torch.no_grad():
        losses = [
            base(input_ids=i, labels=i).loss.item() * len(i) for i in eval_ids.to(base.device).split(16)
        ]
    reference = {f"validation_{k}": v for k, v in before.scores(sum(losses) / len(eval_ids)).items()}

    # --- each initialiser: expand, compare, fine-tune, record
    # -----------------------------------------------------
    kl_by_init: dict[str, torch.Tensor] = {}
    records: dict[str, RunRecord] = {}
    for init, hub in zip(args.inits, hubs, strict=True):
        folder = output / init
        set_seed(training_args.seed)
        model, expanded = copy.deepcopy(base), copy.deepcopy(tokenizer)
        report = expand_vocabulary(model, expanded, new_tokens, init, seed=training_args.seed, prefixes=())
        bound = report.bound if report.bound is not None else expansion_bound(len(new_tokens), len(tokenizer))
        kl = kl_by_init[init] = shift_by_prefix(base, model, kl_ids, report.filled_rows)
        if is_finished(folder):
            records[init] = finished_record(folder, arguments)
            if hub is not None and training_args.process_index == 0:
                print(hub.publish(folder))  # again, if it is there already: nothing new is sent
            continue
        statistics, parameters = table_statistics(model), model.num_parameters()
        if training_args.should_save:  # step 0, kept beside the trained model
            model.save_pretrained(folder / "init")
            expanded.save_pretrained(folder / "init")
        train = pack_blocks(train_texts, expanded, data_args.block_size)
        validation = pack_blocks(validation_texts, expanded, data_args.block_size)
        run_args = copy.copy(training_args)
        run_args.output_dir = str(folder)
        trainer = Trainer(
            model=model,
            args=run_args,
            train_dataset=train.blocks,
            eval_dataset=spread(validation.blocks, data_args.max_eval_blocks),
            processing_class=expanded,
            data_collator=default_data_collator,
        )
        keep_checkpoints_whole(trainer)
        trained = trainer.train()
        trainer.save_model()  # every process: it gathers sharded weights
        if not trainer.is_world_process_zero():
            continue
        history = history_from_log(trainer.state.log_history)
        for row in history:
            row.update({f"validation_{k}": v for k, v in validation.scores(row["validation_loss"]).items()})
        seconds = trained.metrics["train_runtime"]
        seconds -= sum(entry.get("eval_runtime", 0.0) for entry in trainer.state.log_history)
        records[init] = record = RunRecord(
            task="language_modeling",
            dataset=data_args.dataset,
            init=init,
            tokenizer=args.model,
            seed=training_args.seed,
            arguments=arguments,
            metrics={
                **{k: v for k, v in history[-1].items() if k.startswith("validation_")},
                **{f"step_0_{k}": v for k, v in history[0].items() if k.startswith("validation_")},
                "kl_mean": float(kl.mean()),
                "kl_median": float(kl.median()),
                "kl_max": float(kl.max()),
                "kl_bound": bound,
                "new_token_mass": float((1 - (-kl).exp()).mean()),  # KL = -log(1 - mass) when old rows stay
                "new_tokens": len(new_tokens),
                "train_tokens": train.tokens,
            },
            best_epoch=None,
            history=history,
            parameters=parameters,
            embedding_statistics=statistics,
            coverage={"new_tokens": report.coverage} if report.coverage else {},
            runtime={
                "train_seconds": seconds,
                "tokens_per_second": trainer.state.max_steps
                * training_args.train_batch_size
                * training_args.gradient_accumulation_steps
                * training_args.world_size
                * data_args.block_size
                / seconds,
                "device": device_name(training_args.device),
                "world_size": training_args.world_size,
            },
            data=data_digests(data),
        )
        plot_kl_histograms({init: kl}, folder / "figures" / "kl_before_training.png", bound=bound)
        plot_curves({init: history}, folder / "figures" / "perplexity.png", reference=reference)
        write_card(folder, record, manifest=read_manifest(folder))
        write_record(folder, record)
        if hub is not None:
            print(hub.publish(folder))

    # --- the comparison
    # -----------------------------------------------------------------------------------------
    if training_args.process_index:
        return
    title = f"{len(new_tokens)} new tokens in {args.model}, {data_args.dataset}, seed {training_args.seed}"
    bound = next(iter(records.values())).metrics["kl_bound"]
    plot_kl_histograms(kl_by_init, output / "figures" / "kl_before_training.png", bound=bound, title=title)
    histories = {init: record.history for init, record in records.items()}
    plot_curves(histories, output / "figures" / "perplexity.png", reference=reference, title=title)
    write_json(
        output / "summary.json",
        {
            "new_tokens": [str(t) for t in new_tokens],
            "before_expansion": reference,
            "runs": {init: {"metrics": r.metrics, "history": r.history} for init, r in records.items()},
        },
    )
    text = comparison(title, reference, {init: record.metrics for init, record in records.items()})
    (output / "README.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\nsummary, figures, runs: {output}")


def finished_record(folder: Path, arguments: dict[str, Any]) -> RunRecord:
    """The record of an initialiser that was run before, with the same settings."""
    record = read_record(folder)
    for name in ("model", "num_new_tokens", "dataset", "block_size", "learning_rate", "max_steps", "seed"):
        if record.arguments[name] != arguments[name]:
            raise RunFolderError(
                f"--{name} is {arguments[name]!r}, but {folder} was run with {record.arguments[name]!r}: "
                f"give the same value or another --output_dir"
            )
    return record


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
    lines = [
        f"# {title}",
        "",
        f"Before expansion: {before['validation_bits_per_byte']:.4f} bits per byte, perplexity "
        f"{before['validation_word_perplexity']:.4g} per word and "
        f"{before['validation_perplexity']:.4g} per token of the "
        f"old tokenizer. KL(p || p') in nats, before training; the bound for rows at the mean is "
        f"{next(iter(runs.values()))['kl_bound']:.3g}.",
        "",
        f"| init | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for init, metrics in runs.items():
        lines.append(f"| {init} | {' | '.join(f'{metrics[key]:{form}}' for key, form in columns.values())} |")
    lines += [
        "",
        "![KL before training](figures/kl_before_training.png)",
        "",
        "![Perplexity](figures/perplexity.png)",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_main(main)
