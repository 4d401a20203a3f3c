"""Pre-trained models as classifiers: a new head, and the tokenizer."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForSequenceClassification, PreTrainedModel

from ..errors import InvalidArgumentError
from ..hub import load_pretrained, load_pretrained_tokenizer
from .data import find_model
from .lengths import longest_input


def load_pretrained_classifier(
    model: str, tokenizer: str | None = None, *, allow_pickle: bool = False, **settings: Any
) -> tuple[PreTrainedModel, Any]:
    """The float32 model by a name of `find_model`, its head drawn from the global RNG, and its tokenizer.

    `settings` go into the config (`num_labels`, `problem_type`, ...). A tokenizer without a padding token
    pads with its end-of-text token. Weights are safetensors, or a pickle with `allow_pickle`. Raises
    `DataNotFoundError` when there is no such model or transformers cannot make a classifier of it, and
    `InvalidArgumentError` when the tokenizer does not fit.
    """
    import torch

    loaded, told = load_pretrained(
        AutoModelForSequenceClassification,
        find_model(model),
        f"--model {model!r}",
        dtype=torch.float32,
        ignore_mismatched_sizes=True,  # a head for other labels is drawn anew
        output_loading_info=True,
        use_safetensors=None if allow_pickle else True,
        **settings,
    )
    body = f"{loaded.base_model_prefix}."
    for key, saved, wanted in sorted(told["mismatched_keys"]):
        if key.startswith(body):
            raise InvalidArgumentError(
                f"--model {model!r}: {key} is {list(saved)} in its files, {list(wanted)} by its config"
            )
    name = tokenizer or model
    flag = "--model" if tokenizer is None else "--tokenizer"
    text_tokenizer = load_pretrained_tokenizer(tokenizer or find_model(model), f"{flag} {name!r}")
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


def check_length(model: PreTrainedModel, max_length: int) -> None:
    """Raises `InvalidArgumentError` when `max_length` is more than the model has positions."""
    positions = longest_input(model)
    if positions is not None and positions < max_length:
        raise InvalidArgumentError(
            f"--max_length {max_length} is more than the {positions} positions of the model; give no more"
        )
