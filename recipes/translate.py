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

The first runs offline on the embedded captions corpus in about three minutes on two cores. The settings of a
data set are those of Kim et al. 2024, Table 5, where the paper has them; any flag overrides.
`--resume_from_checkpoint last` continues an interrupted run. `--push_to_hub --hub_model_id user/name`
publishes the finished one: trained and initialised model, record, figures and card.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import Seq2SeqTrainingArguments

from hf_embinit import training
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
    vectors: str | None = flag(
        None,
        "Vectors of the source language: a file, a checkpoint folder or a Hub id. Default: those behind the "
        "name of the init; for captions, GloVe trained on the embedded text.",
    )
    target_vectors: str | None = flag(None, "Vectors of the target language. Default: the same as --vectors.")
    allow_pickle: bool = flag(
        False, "Read vectors of a checkpoint that has no safetensors from its .bin files."
    )
    freeze_embeddings: bool = flag(False, "Keep both embedding tables as initialised.")


@dataclass
class DataArguments(SampleArguments):
    """The pairs of texts."""

    dataset: str = flag(
        "captions", f"One of {', '.join(DATASETS)}, a folder with train/validation/test files, or a Hub id."
    )
    dataset_config: str | None = flag(None, "Configuration of a Hub data set.")
    source_lang: str = flag(
        "de", "Language translated from; one that spaCy does not know takes its rules for any."
    )
    target_lang: str = flag("en", "Language translated into.")
    source_column: str | None = flag(None, "Column of the source texts. Default: that of the language.")
    target_column: str | None = flag(None, "Column of the target texts. Default: that of the language.")
    min_frequency: int = flag(
        2, "Tokens seen fewer times than this in the training text become <unk>; the data set's own default."
    )
    max_source_length: int = flag(128, "Longest source, in tokens; longer ones are cut.")
    max_target_length: int = flag(128, "Longest target, in tokens, also when generating.")
    num_beams: int = flag(1, "Beams when generating; 1 is greedy search.")


def defaults(known: Namespace) -> dict[str, Any]:
    """What the task, a data set and a tokenizer bring along."""
    name = known.dataset.rstrip("/").split("/")[-1]
    tokenizer = known.tokenizer.rstrip("/").split("/")[-1]
    return {
        **training.every_epoch(),
        **training.BY_LENGTH,
        **training.BY_LOSS,
        **TASK.settings,
        **preset(known.dataset, known.tokenizer),
        "output_dir": f"runs/translate/{name}-{tokenizer}-{known.init}-seed{known.seed}",
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

    init = model_args.init
    options = model_args.options_of(init)  # an unknown name ends here, before any work
    run = training.start(TASK, training_args, model_args, data_args)

    languages = {"source_lang": data_args.source_lang, "target_lang": data_args.target_lang}
    with training_args.main_process_first(desc="loading data and vectors"):
        texts = load_translation(
            data_args.dataset,
            source_lang=data_args.source_column or data_args.source_lang,
            target_lang=data_args.target_column or data_args.target_lang,
            config=data_args.dataset_config,
            **data_args.places,
        )
        tokenizer = VanillaTransformerTokenizer.build(
            texts["train"]["source"][:],
            texts["train"]["target"][:],
            tokenizer=find_tokenizer(model_args.tokenizer),
            **languages,
            min_frequency=data_args.min_frequency,
        )
        data = TranslationData(
            texts,
            tokenizer,
            max_source_length=data_args.max_source_length,
            max_target_length=data_args.max_target_length,
        )
        model = VanillaTransformerForConditionalGeneration(
            model_args.config(
                tokenizer,
                decoder_vocab_size=len(tokenizer.target_encoder),
                decoder_start_token_id=tokenizer.bos_token_id,
                freeze_embeddings=model_args.freeze_embeddings,
            )
        )
        own = partial(TASK.default_vectors, data_args.dataset, init, tokenizer, dim=model_args.d_model)
        report = hf_embinit.initialize(
            model,
            init,
            tokenizer=tokenizer,
            vectors=model_args.vectors or own(data_args.source_lang),
            target_vectors=model_args.target_vectors
            or (None if model_args.vectors else own(data_args.target_lang)),
            seed=training_args.seed,
            allow_pickle=model_args.allow_pickle,
            **data.token_counts(),
            **options,
        )
    print(training.run(run, data, model, tokenizer, report=report))


if __name__ == "__main__":
    run_main(main)
