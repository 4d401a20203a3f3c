"""A pre-trained model with a new classification head, and its tokenizer."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from ..errors import DataNotFoundError, InvalidArgumentError


def load_pretrained_classifier(
    model: str, tokenizer: str | None = None, *, allow_pickle: bool = False, **settings: Any
) -> tuple[PreTrainedModel, Any]:
    """The model of a Hub id or folder in float32 with a head drawn from the global random state, and its
    tokenizer.

    `settings` go into the config (`num_labels`, `problem_type`, ...). A tokenizer without a padding token
    pads with its end-of-text token. Weights are safetensors, or a pickle with `allow_pickle`. Raises
    `DataNotFoundError` when there is no such model, and `InvalidArgumentError` when transformers has no
    classifier for it, or the tokenizer does not fit.
    """
    import torch

    try:
        loaded = AutoModelForSequenceClassification.from_pretrained(
            model,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            use_safetensors=None if allow_pickle else True,
            **settings,
        )
    except OSError as error:
        raise DataNotFoundError(
            f"--model {model!r} is neither `vanilla`, nor a folder with a model, nor on the Hub as far as "
            f"can be reached, as safetensors (or a pickle with --allow_pickle): {_first_line(error)}"
        ) from error
    except ValueError as error:
        raise InvalidArgumentError(
            f"--model {model!r} cannot be loaded to classify texts: {_first_line(error)}"
        ) from error
    name = tokenizer or model
    text_tokenizer = load_tokenizer(name, "--model" if tokenizer is None else "--tokenizer")
    rows = loaded.get_input_embeddings().num_embeddings
    if len(text_tokenizer) > rows:
        raise InvalidArgumentError(
            f"the tokenizer of {name!r} has {len(text_tokenizer)} tokens, but --model {model} only {rows} "
            f"embeddings: they do not belong together"
        )
    if text_tokenizer.pad_token is None:
        text_tokenizer.pad_token = text_tokenizer.eos_token
    if loaded.config.pad_token_id is None:
        loaded.config.pad_token_id = text_tokenizer.pad_token_id
    return loaded, text_tokenizer


def load_tokenizer(name: str, flag: str) -> Any:
    """The tokenizer of a folder or Hub id. Raises `DataNotFoundError`, naming the `flag`, when there is
    none."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise DataNotFoundError(f"{flag} {name!r} has no tokenizer: {_first_line(error)}") from error
    if len(tokenizer) <= 1:  # what transformers makes of a folder without tokenizer files
        raise DataNotFoundError(f"{flag} {name!r} has no tokenizer")
    return tokenizer


def check_length(model: PreTrainedModel, max_length: int) -> None:
    """Raises `InvalidArgumentError` when texts may get longer than the model has positions for."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and 0 < positions < max_length:
        raise InvalidArgumentError(
            f"--max_length {max_length} is more than the {positions} positions of the model; give no more"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
