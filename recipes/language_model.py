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
    accelerate launch recipes/language_model.py --dataset wikitext-2 --tokenizer gpt2
    accelerate launch recipes/language_model.py --dataset wikitext-2 --twin_seeds 0 1
    accelerate launch recipes/language_model.py --dataset wikitext-2 --twin_seeds 2 3 \\
        --reinitialize_embeddings --freeze_rest \\
        --model runs/language_model/wikitext-2-v1-vanilla-xavier-seed42-twins-0-1/twin-0
    accelerate launch recipes/language_model.py --model gpt2 --dataset wikitext-2

The first runs offline on embedded text in about two minutes on two cores. `--twin_seeds` is experiment 1 of
the Butterfly study: two models whose initialisations have these seeds see the same batches under the same
dropout masks, and KNN match similarity, losses and statistics of their embeddings are recorded at steps on a
logarithmic scale. The fourth command is experiment 2: the input embeddings of a trained model are drawn anew,
twice, and trained alone on reshuffled data. A tied output projection is that same table; an untied one stays
frozen with the rest. `--resume_from_checkpoint last` continues an interrupted run;
`--push_to_hub --hub_model_id user/name` publishes the finished one.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

from transformers import TrainingArguments, set_seed

from hf_embinit import training
from hf_embinit.arguments import AtLeastTwo, Count, CountOrZero, Text
from hf_embinit.tasks.language_modeling import ALIASES, DATASETS, TASK, preset
from hf_embinit.training import TestFileArguments, TwinArguments, VanillaArguments, flag, parse_arguments


@dataclass
class ModelArguments(VanillaArguments):
    """The model and where its token embeddings come from."""

    model: str = flag(
        "vanilla",
        "`vanilla`, a new decoder, or a trained causal LM by folder (also one in HF_EMBINIT_DATA) or Hub id.",
    )
    min_frequency: Count | None = flag(
        None,
        "Tokens seen fewer times than this in the training text become <unk>. Default: 2 for words; a "
        "pre-trained tokenizer keeps its whole vocabulary.",
    )
    reinitialize_embeddings: bool = flag(
        False,
        "Draw the input embeddings (--init, default xavier) of a trained --model and the order of data anew.",
    )
    freeze_rest: bool = flag(False, "Train the input embeddings of a trained --model alone.")
    tie_word_embeddings: bool = flag(False, "A new model's output projection is its input table.")


@dataclass
class DataArguments(TestFileArguments):
    """The texts."""

    dataset: str = flag(
        "stories", f"One of {', '.join(DATASETS)}, a folder with train/validation/test files, or a Hub id."
    )
    dataset_config: str | None = flag(None, "Configuration of a Hub data set.")
    language: Text = flag("en", "Language of the texts, for --tokenizer words.")
    block_size: AtLeastTwo = flag(128, "Length of a sequence, in tokens.")
    max_eval_blocks: CountOrZero = flag(
        0, "While training, validate on this many sequences, spread over the text; 0 takes all."
    )


def defaults(known: Namespace) -> dict[str, Any]:
    """What a data set brings along, and when to evaluate and save."""
    dataset, init = ALIASES.get(known.dataset, known.dataset), training.chosen_init(known) or "kept"
    parts = (dataset, known.model, known.tokenizer, init)
    folder = training.default_folder("language_model", *parts, seed=known.seed)
    when = {**training.every_epoch(), **training.BY_LOSS, "prediction_loss_only": True}
    if known.twin_seeds:
        folder, when = "-".join([folder, "twins", *map(str, known.twin_seeds)]), training.at_steps()
    if known.reinitialize_embeddings:
        when["data_seed"] = known.seed + 1  # not the order that the model was trained in
    usual = preset(dataset, known.model, new_embeddings=init != "kept")
    return {**usual, **when, "output_dir": folder}


def main() -> None:
    """Data, tokenizer, model or models, embeddings; then training, test and run folder."""
    model_args, twin_args, data_args, training_args = parse_arguments(
        (ModelArguments, TwinArguments, DataArguments, TrainingArguments), defaults, description=__doc__ or ""
    )
    # after --help, which answers without them
    import hf_embinit
    from hf_embinit.models import VanillaTransformerForCausalLM
    from hf_embinit.tasks import check_fits, choose_tokenizer, load_causal_lm
    from hf_embinit.tasks.language_modeling import TextData, load_texts

    init = training.chosen_init(model_args)
    dataset = data_args.dataset = ALIASES.get(data_args.dataset, data_args.dataset)
    options = model_args.options_of(init, TASK.datasets.get(dataset))  # what does not fit ends here
    training.check_experiment(model_args, twin_args, training_args)
    names = {"init": init or "kept", "tokenizer": model_args.tokenizer or model_args.model}
    run = training.start(TASK, training_args, model_args, twin_args, data_args, **names)

    with training_args.main_process_first(desc="loading data and vectors"):
        texts = load_texts(dataset, config=data_args.dataset_config, **data_args.places)
        train = texts["train"]["text"][: data_args.max_train_samples]
        words = {"language": data_args.language, "min_frequency": model_args.min_frequency}
        tokenizer = choose_tokenizer(model_args.model, model_args.tokenizer, train, **words)
        data = TextData(
            texts,
            tokenizer,
            block_size=data_args.block_size,
            max_eval_blocks=data_args.max_eval_blocks,
            max_train_samples=data_args.max_train_samples,
        )
        models, report = {}, None
        for name, seed in twin_args.seeds(training_args.seed).items():
            set_seed(seed)
            if model_args.model == "vanilla":
                config = model_args.config(tokenizer, tie_word_embeddings=model_args.tie_word_embeddings)
                models[name] = model = VanillaTransformerForCausalLM(config)
            else:
                models[name] = model = load_causal_lm(model_args.model, allow_pickle=model_args.allow_pickle)
            check_fits(model, tokenizer, data_args.block_size)
            if init is not None:
                report = hf_embinit.initialize(
                    model,
                    init,
                    tokenizer=tokenizer,
                    vectors=model_args.vectors_for(TASK, dataset, model, tokenizer, data_args.language),
                    seed=seed,
                    token_counts=data.token_counts().tolist(),
                    allow_pickle=model_args.allow_pickle,
                    **options,
                )
    if twin_args.twin_seeds:
        data = training.TwinData(data, models, run, twin_args)
    print(training.run(run, data, models, tokenizer, report=report, freeze_rest=model_args.freeze_rest))


if __name__ == "__main__":
    training.run_main(main)
