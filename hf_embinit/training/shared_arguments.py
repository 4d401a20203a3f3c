"""Arguments that several recipes take."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from transformers import PreTrainedModel

from .. import surgery
from ..arguments import Count, NotNegative, Positive, TrainingSeed, put_option
from ..errors import InvalidArgumentError
from ..hub import load_pretrained_tokenizer
from ..initializers import NEEDED_VECTORS, get_initializer, required, table_initializer
from ..tasks import DataSpec, TaskSpec, check_vectors, given_vectors
from ..vectors import PretrainedVectors, check_source
from .arguments import flag

BY_LENGTH = {"train_sampling_strategy": "group_by_length", "remove_unused_columns": False}
"""Settings of the Trainer for texts of varying length; the sampler reads their column `length`."""
BY_LOSS = {"metric_for_best_model": "eval_loss"}
"""Settings of the Trainer: the best epoch is that of the lowest validation loss. (Which way another metric
counts, the Trainer knows by its name.)"""


def every_epoch() -> dict[str, Any]:
    """Settings of the Trainer: evaluate and save after each epoch, keep the best weights and the last."""
    return {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "save_total_limit": 1,  # beside the best one
        "load_best_model_at_end": True,
        **on_this_machine(),
    }


def at_steps() -> dict[str, Any]:
    """Settings of the Trainer: save every 500 optimizer steps, keep the last; a callback asks to evaluate."""
    return {
        "eval_strategy": "no",
        "save_strategy": "steps",
        "save_steps": 500,
        "logging_steps": 100,
        "save_total_limit": 1,
        **on_this_machine(),
    }


def on_this_machine() -> dict[str, Any]:
    """Settings of the Trainer that do not change a result. A loss that is no number is logged as it is, which
    transformers would log as the mean of those before it."""
    return {
        "ddp_find_unused_parameters": False,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "logging_nan_inf_filter": False,
    }


def chosen_init(args: Any) -> str | None:
    """The initialiser of a run: `--init`, else xavier where embeddings are new; None keeps those of a trained
    model."""
    new = getattr(args, "model", "vanilla") == "vanilla" or getattr(args, "reinitialize_embeddings", False)
    return args.init or ("xavier" if new else None)


@dataclass
class InitArguments:
    """Where the token embeddings of a model come from."""

    init: str | None = flag(
        None,
        "Name of the initialiser of the embedding tables; `python -m hf_embinit list` shows them. Default: "
        "xavier for a new model; a trained one keeps its embeddings.",
    )
    init_options: list[str] | None = field(
        default=None,
        metadata={"help": "Options of the --init, each name=value, such as `mode=rows` of `glove_shuffled`."},
    )
    tokenizer: str | None = flag(
        None,
        "`words` (spaCy rules, lower-cased), `bert`, `mbert`, `t5`, `mt5`, `gpt2`, a Hub id or a folder. "
        "Default: that of the data set, mostly words; a trained model has its own.",
    )
    vectors: str | None = flag(
        None,
        "Vectors for the --init: a file, a checkpoint folder or a Hub id. Default: those behind its name; "
        "for an embedded corpus, GloVe trained on its text.",
    )
    allow_pickle: bool = flag(
        False, "Read a model or vectors that have no safetensors from their .bin files."
    )

    def options_of(self, init: str | None, data: DataSpec | None = None) -> dict[str, Any]:
        """The options as keyword arguments; `data` is what is trained on, if it is a data set with a name.

        Raises an `EmbinitError` for an `init` that makes no whole tables, for an option that it does not
        have, for vectors that it does not read, that are not there or that it lacks, and for options without
        an `init`.
        """
        options: dict[str, Any] = {}
        for text in self.init_options or []:
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                raise InvalidArgumentError(f"--init_options {text!r}: give name=value, such as mode=rows")
            put_option(options, name, value, f"--init_options {text!r}")
        if options and init is None:
            raise InvalidArgumentError(f"--init_options {self.init_options} needs --init, which has them")
        if init is not None:
            record = table_initializer(init)
            record.check_options(options)
            has_vectors = self.vectors is not None or (data is not None and data.gives_vectors(record))
            if "vectors" in record.needs and not has_vectors:
                check_source(required(record.defaults.get("vectors"), NEEDED_VECTORS, init))
            for flag in ("vectors", "target_vectors"):
                given = getattr(self, flag, None)
                if given is None:
                    continue
                if "vectors" not in record.needs:
                    raise InvalidArgumentError(
                        f"--{flag} {given!r} is given, but --init {init} reads no vectors"
                    )
                check_vectors(f"--{flag}", given)
        return options

    def vectors_for(
        self,
        task: TaskSpec,
        dataset: str,
        model: PreTrainedModel,
        tokenizer: Any,
        language: str,
        *,
        target: bool = False,
    ) -> PretrainedVectors | None:
        """What the initialiser reads for the words of one language: the vectors that were given, or those of
        an embedded corpus. None when it reads none, or has a source of its own.

        `target` is for the second vocabulary of a tokenizer, with `--target_vectors` where they are given.
        """
        init = chosen_init(self)
        given = (getattr(self, "target_vectors", None) if target else None) or self.vectors
        if init is None or "vectors" not in get_initializer(init).needs:
            return None
        if given is None:
            table: Any = model.get_input_embeddings()
            return task.default_vectors(dataset, init, tokenizer, language, dim=table.embedding_dim)
        return given_vectors(given, tokenizer, target=target, allow_pickle=self.allow_pickle)


@dataclass
class StepArguments:
    """How training steps are computed."""

    cuda_graphs: bool = flag(
        False,
        "Replay training steps as CUDA graphs, one for each shape of batch; lengths are padded to multiples "
        "of 8. For small models, whose steps wait for the CPU to launch their kernels. One model, one GPU.",
    )


@dataclass
class VanillaArguments(InitArguments, StepArguments):
    """The architecture of a new vanilla transformer. Defaults are those of the task and the data set."""

    position_encoding: str | None = flag(
        None,
        "Vanilla: how positions enter. Default: sinusoidal.",
        choices=["sinusoidal", "learned", "rotary", "relative", "none"],
    )
    position_scale: Positive | None = flag(
        None,
        "Vanilla: factor of the sinusoidal positions; less lets more of the embeddings through. Default: 1.",
    )
    norm_position: str | None = flag(
        None, "Vanilla: LayerNorm after or before each block. Default: by task.", choices=["post", "pre"]
    )
    d_model: Count | None = flag(
        None,
        "Vanilla: width of embeddings and layers, in dimensions. Default: by data set and tokenizer "
        "(300 for words; 128 on embedded corpora).",
    )
    d_ff: Count | None = flag(
        None, "Vanilla: width of the feed-forward layers, in dimensions. Default: by data set."
    )
    num_layers: Count | None = flag(
        None, "Vanilla: layers of the encoder, and as many of a decoder. Default: by data set."
    )
    num_heads: Count | None = flag(
        None, "Vanilla: attention heads a layer; must divide --d_model. Default: by data set and tokenizer."
    )
    dropout_rate: NotNegative | None = flag(None, "Vanilla: dropout probability, 0 to 1. Default: 0.1.")

    def config(self, tokenizer: Any, **settings: Any) -> Any:
        """The configuration of a model for the tokenizer's vocabulary; `settings` go into it as they are."""
        from ..models import VanillaTransformerConfig

        sizes = {name: getattr(self, name) for name in VanillaArguments.__annotations__}
        special = {
            f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")
        }
        return VanillaTransformerConfig(vocab_size=len(tokenizer), **sizes, **special, **settings)

    def refuse_shapes(self) -> None:
        """Raises `InvalidArgumentError` when a flag that shapes a vanilla model is given with another one."""
        model = getattr(self, "model", "vanilla")
        for f in fields(self) if model != "vanilla" else ():
            value = getattr(self, f.name)
            if value is not None and f.metadata["help"].startswith("Vanilla:"):
                raise InvalidArgumentError(
                    f"--{f.name} {value} shapes a new vanilla model; --model {model} has its own"
                )


def changed_by(init: str | None, surgery: str | None) -> str:
    """What is done to a model before training, as its record names it: `bert_xavier+reversed`, or `none`."""
    return "+".join(step for step in (init, surgery) if step) or "none"


@dataclass
class SurgeryArguments:
    """What is done to a model before training, after its embeddings were initialised."""

    surgery: str | None = flag(
        None,
        "What is done to the model before training, after --init: a name such as `reversed`, "
        "`shuffled_embeddings`, `remove_last_6`, `clean`, or several joined by `+`. "
        "`hf_embinit.surgery.list()` names them.",
    )
    donor: str | None = flag(
        None, "Hub id or folder whose tokenizer and embeddings `--surgery donor_embeddings` puts in."
    )

    def options(self, init: str | None, vectors: str | None) -> dict[str, str]:
        """The options of the surgery. Raises an `EmbinitError` for an unknown name, and for an option that
        nothing reads; `vectors` are the initialiser's, where there is one."""
        options = {} if self.donor is None else {"donor": self.donor}
        if init is None and vectors is not None:
            options["vectors"] = vectors  # for an initialiser among the steps
        if self.surgery is not None:
            surgery.check(self.surgery, tokenizer=True, **options)
        elif options:
            name = next(iter(options))
            reader = "--init" if name == "vectors" else "--surgery donor_embeddings"
            raise InvalidArgumentError(
                f"--{name} {options[name]!r} is given, but not {reader}, which reads it"
            )
        return options

    def tokenizer_after(self, tokenizer: Any) -> Any:
        """What reads the text once surgery is done: the donor's tokenizer, or the one that there is."""
        if self.donor is None:
            return tokenizer
        return load_pretrained_tokenizer(self.donor, f"--donor {self.donor!r}")


@dataclass
class TwinArguments:
    """Two models side by side, and what is recorded of them."""

    twin_seeds: list[TrainingSeed] | None = field(
        default=None,
        metadata={
            "help": "Two seeds of initialisation: train two models on the same batches. --seed is that of "
            "the order of the data and of dropout."
        },
    )
    knn_k: Count = flag(10, "Neighbours a token, for KNN match similarity.")
    knn_tokens: Count | None = flag(
        None,
        "Compare this many of the most frequent tokens among themselves. Default: all, also those that the "
        "text never has, whose rows learn nothing.",
    )
    records_per_decade: Count = flag(8, "Records for each factor of ten in optimizer steps.")

    def seeds(self, seed: int) -> dict[str, int]:
        """The seed of each model by the name of its sub-folder; one model, "", has that of the run."""
        return {f"twin-{twin}": twin for twin in self.twin_seeds or ()} or {"": seed}


@dataclass
class FileArguments:
    """The files of the data."""

    data_dir: str | None = flag(
        None,
        "Folder that has the data set, or a sub-folder of its name. Then HF_EMBINIT_DATA, then the Hub.",
    )
    train_file: str | None = flag(None, "Training data, in place of the data set's.")
    validation_file: str | None = flag(None, "Validation data, in place of the data set's.")

    @property
    def places(self) -> dict[str, Any]:
        """Keyword arguments of the data loaders: the folder, and the files that replace single splits."""
        files = {split: getattr(self, f"{split}_file", None) for split in ("train", "validation", "test")}
        return {"data_dir": self.data_dir, "files": files}


@dataclass
class TestFileArguments(FileArguments):
    """Data with a test split."""

    test_file: str | None = flag(None, "Test data, in place of the data set's.")
    max_train_samples: Count | None = flag(None, "Train on this many examples only.")


@dataclass
class SampleArguments(TestFileArguments):
    """Data that may be cut to their first examples."""

    max_eval_samples: Count | None = flag(
        None, "Validate on this many examples only (of matched and mismatched, each)."
    )
    max_predict_samples: Count | None = flag(None, "Test on this many examples only.")

    @property
    def places(self) -> dict[str, Any]:
        """Those of `FileArguments`, and the number of examples used of each split; None for all."""
        limits = (self.max_train_samples, self.max_eval_samples, self.max_predict_samples)
        return {**super().places, "limits": dict(zip(("train", "validation", "test"), limits, strict=True))}
