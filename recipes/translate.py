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
    accelerate launch recipes/translate.py settings.yaml --init xavier --seed 1

The first runs offline on embedded captions in about three minutes on two cores. The settings of a data set
are those of Kim et al. 2024, Table 5, where the paper has them; any flag overrides. `--resume_from_checkpoint
last` goes on with an interrupted run, `--push_to_hub --hub_model_id user/name` publishes the finished one.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import Seq2SeqTrainingArguments

from hf_embinit import training
from hf_embinit.arguments import AtLeastTwo, Count, Text
from hf_embinit.tasks.translation import DATASETS, TASK, preset
from hf_embinit.training import SampleArguments, VanillaArguments, flag, parse_arguments, run_main


@dataclass
class ModelArguments(VanillaArguments):
    """The model and where its token embeddings come from."""

    init: str = flag(
        "xavier",
        "Name of the initialiser of both embedding tables; `python -m hf_embinit list` shows them.",
    )
    tokenizer: str = flag(
        "words", "`words` (spaCy rules, lower-cased), `bert`, `mbert`, `t5`, `mt5`, a Hub id or a folder."
    )
    target_vectors: str | None = flag(None, "Vectors of the target language. Default: the same as --vectors.")
    freeze_embeddings: bool = flag(False, "Keep both embedding tables as initialised.")


@dataclass
class DataArguments(SampleArguments):
    """The pairs of texts."""

    dataset: str = flag(
        "captions", f"One of {', '.join(DATASETS)}, a folder with train/validation/test files, or a Hub id."
    )
    dataset_config: str | None = flag(None, "Configuration of a Hub data set.")
    source_lang: Text = flag(
        "de", "Language translated from; one that spaCy does not know takes its rules for any."
    )
    target_lang: Text = flag("en", "Language translated into.")
    source_column: str | None = flag(None, "Column of the source texts. Default: that of the language.")
    target_column: str | None = flag(None, "Column of the target texts. Default: that of the language.")
    min_frequency: Count = flag(
        2, "Tokens seen fewer times than this in the training text become <unk>; the data set's own default."
    )
    max_source_length: Count = flag(128, "Longest source, in tokens; longer ones are cut.")
    max_target_length: AtLeastTwo = flag(128, "Longest target, in tokens; generated: with its start token.")
    num_beams: Count = flag(1, "Beams when generating; 1 is greedy search.")


def defaults(known: Namespace) -> dict[str, Any]:
    """What the task, a data set and a tokenizer bring along."""
    return {
        **training.every_epoch(),
        **training.BY_LENGTH,
        **training.BY_LOSS,
        **TASK.settings,
        **preset(known.dataset, known.tokenizer),
        "output_dir": training.default_folder(
            "translate", known.dataset, known.tokenizer, known.init, seed=known.seed
        ),
        "predict_with_generate": True,
        "generation_max_length": known.max_target_length,
        "generation_num_beams": known.num_beams,
    }


def main() -> None:
    """Data, tokenizer, model, embeddings; then training, test and run folder."""
    model_args, data_args, training_args = parse_arguments(
        (ModelArguments, DataArguments, Seq2SeqTrainingArguments), defaults, description=__doc__ or ""
    )
    # after --help, which answers without them
    import hf_embinit
    from hf_embinit.models import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
    from hf_embinit.tasks import find_tokenizer
    from hf_embinit.tasks.translation import TranslationData, load_translation

    init, source, target = model_args.init, data_args.source_lang, data_args.target_lang
    options = model_args.options_of(init, TASK.datasets.get(data_args.dataset))  # or ends before any work
    run = training.start(TASK, training_args, model_args, data_args)

    with training_args.main_process_first(desc="loading data and vectors"):
        texts = load_translation(
            data_args.dataset,
            source_lang=data_args.source_column or source,
            target_lang=data_args.target_column or target,
            config=data_args.dataset_config,
            **data_args.places,
        )
        tokenizer = VanillaTransformerTokenizer.build(
            texts["train"]["source"][:],
            texts["train"]["target"][:],
            tokenizer=find_tokenizer(model_args.tokenizer),
            source_lang=source,
            target_lang=target,
            min_frequency=data_args.min_frequency,
        )
        data = TranslationData(
            texts,
            tokenizer,
            max_source_length=data_args.max_source_length,
            max_target_length=data_args.max_target_length,
        )
        config = model_args.config(
            tokenizer,
            decoder_vocab_size=len(tokenizer.target_encoder),
            decoder_start_token_id=tokenizer.bos_token_id,
            freeze_embeddings=model_args.freeze_embeddings,
        )
        model = VanillaTransformerForConditionalGeneration(config)
        find = partial(model_args.vectors_for, TASK, data_args.dataset, model, tokenizer)
        report = hf_embinit.initialize(
            model,
            init,
            tokenizer=tokenizer,
            vectors=find(source),
            target_vectors=find(target, target=True),
            seed=training_args.seed,
            allow_pickle=model_args.allow_pickle,
            **data.token_counts(),
            **options,
        )
    print(training.run(run, data, model, tokenizer, report=report))


if __name__ == "__main__":
    run_main(main)
