# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]"]
#
# [tool.hf-jobs]
# flavor = "a10g-small"
# timeout = "2h"
# ///
"""Add tokens to a trained language model in several ways; see what each costs at once and after training.

    accelerate launch recipes/expand_vocab.py
    accelerate launch recipes/expand_vocab.py --model gpt2 --dataset wikitext-2-v1
    accelerate launch recipes/expand_vocab.py settings.yaml --inits zeros mean --seed 1

Hewitt's study (2021): the words that are most frequent in the training text among those that the tokenizer
splits become tokens, their rows are initialised by each of `--inits`, KL(p || p') is taken at every
position of validation text before any training, and the model is fine-tuned with the validation perplexity
every 20 steps. The first command runs offline: it trains a small model on embedded text (once, then
cached) and adds words of the captions to it.

Each initialiser has a run folder of its own, `<output_dir>/<init>` (`mean_cov:scale=auto` in
`mean_cov-scale-auto`), with the model, `results.json` and a card; the comparison is in
`<output_dir>/README.md`, `summary.json` and `figures/`. Interrupted studies go on with the same command.
`--push_to_hub --hub_model_id user/name` publishes the run folders, each as `user/name-<init>`.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from hf_embinit import training
from hf_embinit.arguments import AtLeastTwo, Count, CountOrZero
from hf_embinit.tasks.expansion import TASK, preset
from hf_embinit.training import FileArguments, flag, parse_arguments, run_main


@dataclass
class ExpansionArguments:
    """The model, the tokens and where their rows come from."""

    model: str = flag(
        "captions",
        "A causal LM by Hub id or folder (also one in HF_EMBINIT_DATA), or `captions`: a small one trained "
        "on embedded text.",
    )
    allow_pickle: bool = flag(False, "Load a --model that has no safetensors from its .bin files.")
    inits: list[str] = flag(
        ["default", "zeros", "mean", "mean_cov", "subword_mean"],
        "Initialisers of the new rows, each a name or name:option=value, such as mean_cov:scale=auto; "
        "`python -m hf_embinit list` shows them.",
    )
    num_new_tokens: Count = flag(100, "Words to add, in tokens.")
    min_count: Count = flag(2, "Words seen fewer times than this are never added.")


@dataclass
class DataArguments(FileArguments):
    """The texts of the new domain."""

    dataset: str = flag(
        "captions", f"One of {', '.join(TASK.datasets)}, a folder with train/validation files, or a Hub id."
    )
    dataset_config: str | None = flag(None, "Configuration of a Hub data set.")
    block_size: AtLeastTwo = flag(128, "Length of a training sequence, in tokens.")
    max_eval_blocks: CountOrZero = flag(64, "Validate on this many sequences of all the text; 0 takes all.")
    max_kl_positions: Count = flag(8192, "Positions of validation text that KL(p || p') is taken at.")


def defaults(known: Namespace) -> dict[str, Any]:
    """Hewitt's schedule, and a learning rate by model."""
    model, data = (name.rstrip("/").split("/")[-1] for name in (known.model, known.dataset))
    return {**preset(known.model), "output_dir": f"runs/expand_vocab/{model}-{data}-seed{known.seed}"}


def main() -> None:
    """Data, new tokens, then for each initialiser: expansion, KL, fine-tuning, run folder."""
    args, data_args, training_args = parse_arguments(
        (ExpansionArguments, DataArguments, TrainingArguments), defaults, description=__doc__ or ""
    )
    # after --help, which answers without them
    import copy
    import re

    from hf_embinit.cards import prepare_push
    from hf_embinit.initializers import read_inits
    from hf_embinit.records import is_finished
    from hf_embinit.tasks import caption_language_model, load_causal_lm, own_tokenizer
    from hf_embinit.tasks.language_modeling import load_texts
    from hf_embinit.training import BaseModel, ExpansionData, finished_record, write_comparison
    from hf_embinit.vocabulary import expand_vocabulary, propose_tokens

    read = read_inits(args.inits)  # an unknown name ends here, before any work
    folders = [re.sub("[:=,]", "-", init) for init in args.inits]
    output, seed = Path(training_args.output_dir), training_args.seed
    names = {"dataset": data_args.dataset, "tokenizer": args.model}
    hubs = prepare_push(training_args, args.inits, task=TASK.record_name, seed=seed, **names)

    with training_args.main_process_first(desc="loading model and data"):
        source = str(caption_language_model()) if args.model == "captions" else args.model
        tokenizer = own_tokenizer(source, None, [])
        model = load_causal_lm(source, allow_pickle=args.allow_pickle, dtype="auto")
        model = model.to(training_args.device).eval()
        texts = load_texts(data_args.dataset, config=data_args.dataset_config, **data_args.places)
    new_tokens = propose_tokens(
        tokenizer, texts["train"]["text"][:], args.num_new_tokens, min_count=args.min_count
    )
    print(f"{len(new_tokens)} new tokens, such as {', '.join(str(t).strip() for t in new_tokens[:10])}")
    sizes = {"block_size": data_args.block_size, "max_eval_blocks": data_args.max_eval_blocks}
    base = BaseModel(
        model,
        tokenizer,
        texts["validation"]["text"][:],
        max_kl_positions=data_args.max_kl_positions,
        batch_size=training_args.per_device_eval_batch_size,
        **sizes,
    )

    # each initialiser: expand, compare, fine-tune, record
    kl, records = {}, {}
    for init, (name, options), folder, hub in zip(args.inits, read, folders, hubs, strict=True):
        run_args = copy.copy(training_args)
        run_args.output_dir = str(output / folder)
        finished = is_finished(output / folder)
        run = None
        if not finished:
            run = training.start(TASK, run_args, args, data_args, init=init, hub=hub, **names)
        model, expanded = copy.deepcopy(base.model), copy.deepcopy(tokenizer)
        report = expand_vocabulary(model, expanded, new_tokens, name, seed=seed, prefixes=(), **options)
        data = ExpansionData(texts, expanded, base, model, report, **sizes)
        kl[init] = data.kl
        if run is not None:
            training.run(run, data, model, expanded)
        if training_args.process_index == 0:
            arguments = {**vars(args), **vars(data_args), **training_args.to_dict()}
            records[init] = finished_record(output / folder, arguments, data.digests)
            if finished and hub is not None:
                print(hub.publish(output / folder))  # again, if it is there already: nothing new is sent
    if training_args.process_index == 0:
        title = f"{len(new_tokens)} new tokens in {args.model}, {data_args.dataset}, seed {seed}"
        text = write_comparison(output, title, new_tokens, base.scores, records, kl)
        print(f"\n{text}\nsummary, figures, runs: {output}")


if __name__ == "__main__":
    run_main(main)
