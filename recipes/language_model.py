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

from transformers import TrainingArguments

from hf_embinit import training
from hf_embinit.errors import InvalidArgumentError
from hf_embinit.tasks.language_modeling import ALIASES, DATASETS, TASK, preset
from hf_embinit.training import TestFileArguments, VanillaArguments, flag, parse_arguments, run_main


@dataclass
class ModelArguments(VanillaArguments):
    """The model and where its token embeddings come from."""

    model: str = flag(
        "vanilla",
        "`vanilla`, a new decoder, or a trained causal LM by folder (also one in HF_EMBINIT_DATA) or Hub id.",
    )
    init: str | None = flag(
        None,
        "Name of the initialiser of the input embeddings; `python -m hf_embinit list` shows them. Default: "
        "xavier for a new model; a trained one keeps its embeddings.",
    )
    tokenizer: str | None = flag(
        None,
        "`words` (spaCy rules, lower-cased), `gpt2`, a Hub id or a folder. Default: words for embedded text, "
        "else gpt2; a trained model has its own.",
    )
    min_frequency: int | None = flag(
        None,
        "Tokens seen fewer times than this in the training text become <unk>. Default: 2 for words; a "
        "pre-trained tokenizer keeps its whole vocabulary.",
    )
    vectors: str | None = flag(
        None,
        "Vectors for the init: a file, a checkpoint folder or a Hub id. Default: those behind its name; for "
        "embedded text, GloVe trained on such text.",
    )
    allow_pickle: bool = flag(
        False, "Read a --model or vectors that have no safetensors from their .bin files."
    )
    reinitialize_embeddings: bool = flag(
        False,
        "Draw the input embeddings (--init, default xavier) of a trained --model and the order of data anew.",
    )
    freeze_rest: bool = flag(False, "Train the input embeddings of a trained --model alone.")
    tie_word_embeddings: bool = flag(False, "A new model's output projection is its input table.")


@dataclass
class TwinArguments:
    """Two models side by side, and what is recorded of them."""

    twin_seeds: list[int] | None = flag(
        None,
        "Two seeds of initialisation: train two models on the same batches. --seed is that of the order of "
        "the data and of dropout.",
    )
    knn_k: int = flag(10, "Neighbours a token, for KNN match similarity.")
    knn_tokens: int | None = flag(
        None, "Compare this many of the most frequent tokens among themselves. Default: all."
    )
    records_per_decade: int = flag(8, "Records for each factor of ten in optimizer steps.")


@dataclass
class DataArguments(TestFileArguments):
    """The texts."""

    dataset: str = flag(
        "stories", f"One of {', '.join(DATASETS)}, a folder with train/validation/test files, or a Hub id."
    )
    dataset_config: str | None = flag(None, "Configuration of a Hub data set.")
    language: str = flag("en", "Language of the texts, for --tokenizer words.")
    block_size: int = flag(128, "Length of a sequence, in tokens.")
    max_eval_blocks: int = flag(
        0, "While training, validate on this many sequences, spread over the text; 0 takes all."
    )


def init_of(args: Any) -> str | None:
    """The initialiser of the input embeddings; None keeps those of a trained model."""
    return args.init or ("xavier" if args.model == "vanilla" or args.reinitialize_embeddings else None)


def defaults(known: Namespace) -> dict[str, Any]:
    """What a data set brings along, and when to evaluate and save."""
    dataset = ALIASES.get(known.dataset, known.dataset)
    data, model = (name.rstrip("/").split("/")[-1] for name in (dataset, known.model))
    init = init_of(known) or "kept"
    name = f"{data}-{model}-{init}-seed{known.seed}"
    when = {**training.every_epoch(), **training.BY_LOSS}
    if known.twin_seeds:
        name += "-twins-" + "-".join(map(str, known.twin_seeds))
        when = training.on_this_machine() | {"save_total_limit": 1, "eval_strategy": "no"}
        when |= {"save_strategy": "steps", "save_steps": 500, "logging_steps": 100}
    if known.reinitialize_embeddings:
        when["data_seed"] = known.seed + 1  # not the order that the model was trained in
    return {
        **preset(dataset, known.model, new_embeddings=init != "kept"),
        **when,
        "output_dir": f"runs/language_model/{name}",
        "prediction_loss_only": not known.twin_seeds,
    }


def check(model: ModelArguments, twins: TwinArguments, args: TrainingArguments) -> None:
    """Raises `InvalidArgumentError` for flags that do not go together, before any work."""
    import hf_embinit
    from hf_embinit.training import check_sharded, check_twins

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
    init = init_of(model)
    if init is not None:
        hf_embinit.get_initializer(init)
    if model.freeze_rest or twins.twin_seeds:
        check_sharded("--freeze_rest" if model.freeze_rest else "--twin_seeds")
    if twins.twin_seeds is not None:
        check_twins(twins.twin_seeds, args, twins.records_per_decade, model=model.model, init=init)


def build(args: ModelArguments, data_args: DataArguments, data: Any, seed: int) -> tuple[Any, Any]:
    """A model, its embeddings initialised, and the report of that."""
    from transformers import set_seed

    import hf_embinit
    from hf_embinit.models import VanillaTransformerForCausalLM
    from hf_embinit.tasks.language_modeling import check_fits, load_causal_lm

    set_seed(seed)
    tokenizer, init = data.tokenizer, init_of(args)
    if args.model == "vanilla":
        config = args.config(tokenizer, tie_word_embeddings=args.tie_word_embeddings)
        model: Any = VanillaTransformerForCausalLM(config)
    else:
        model = load_causal_lm(args.model, allow_pickle=args.allow_pickle)
    check_fits(model, tokenizer, data_args.block_size)
    if init is None:
        return model, None
    width = model.get_input_embeddings().embedding_dim
    own = TASK.default_vectors(data_args.dataset, init, tokenizer, data_args.language, dim=width)
    return model, hf_embinit.initialize(
        model,
        init,
        tokenizer=tokenizer,
        vectors=args.vectors or own,
        seed=seed,
        token_counts=data.token_counts().tolist(),
        allow_pickle=args.allow_pickle,
        **args.options_of(init),
    )


def main() -> None:
    """Data, tokenizer, model or models, embeddings; then training, test and run folder."""
    model_args, twin_args, data_args, training_args = parse_arguments(
        (ModelArguments, TwinArguments, DataArguments, TrainingArguments), defaults, description=__doc__ or ""
    )
    check(model_args, twin_args, training_args)
    # after --help, which answers without them
    from hf_embinit.tasks.language_modeling import TextData, build_tokenizer, load_texts, own_tokenizer
    from hf_embinit.training import TwinData, freeze_all_but_embeddings

    data_args.dataset = ALIASES.get(data_args.dataset, data_args.dataset)
    run = training.start(
        TASK,
        training_args,
        model_args,
        twin_args,
        data_args,
        init=init_of(model_args) or "kept",
        tokenizer=model_args.tokenizer or model_args.model,
    )

    with training_args.main_process_first(desc="loading data and vectors"):
        texts = load_texts(data_args.dataset, config=data_args.dataset_config, **data_args.places)
        train = texts["train"]["text"][: data_args.max_train_samples]
        words = {"language": data_args.language, "min_frequency": model_args.min_frequency}
        if model_args.model == "vanilla":
            tokenizer = build_tokenizer(model_args.tokenizer or "gpt2", train, **words)
        else:
            tokenizer = own_tokenizer(model_args.model, model_args.tokenizer, train, **words)
        data: Any = TextData(
            texts,
            tokenizer,
            block_size=data_args.block_size,
            max_eval_blocks=data_args.max_eval_blocks,
            max_train_samples=data_args.max_train_samples,
        )
        seeds = {f"twin-{seed}": seed for seed in twin_args.twin_seeds or ()} or {"": training_args.seed}
        built = {name: build(model_args, data_args, data, seed) for name, seed in seeds.items()}
    models = {name: model for name, (model, _) in built.items()}
    frozen = {n: freeze_all_but_embeddings(m) for n, m in models.items()} if model_args.freeze_rest else {}
    if twin_args.twin_seeds:
        data = TwinData(
            data,
            models,
            training_args,
            knn_k=twin_args.knn_k,
            knn_tokens=twin_args.knn_tokens,
            records_per_decade=twin_args.records_per_decade,
            goes_on=run.checkpoint is not None,
        )
    report = next(iter(built.values()))[1]
    print(training.run(run, data, models, tokenizer, report=report, frozen=frozen))


if __name__ == "__main__":
    run_main(main)
