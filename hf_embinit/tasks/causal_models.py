"""Trained causal language models and their tokenizers, and tokenizers for new ones."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ..errors import InvalidArgumentError
from ..hub import load_pretrained
from ..tables import EmbeddingTables
from .data import find_folder
from .lengths import longest_input
from .tokenizers import find_tokenizer


def build_tokenizer(
    name: str, texts: list[str], *, language: str = "en", min_frequency: int | None = None
) -> Any:
    """The tokenizer called `name`, see `find_tokenizer`; `words` is made of the lower-cased words of `texts`.

    Words seen fewer than `min_frequency` times (2 unless given) are unknown. A pre-trained tokenizer keeps
    its whole vocabulary unless `min_frequency` is given, which leaves the tokens seen that often in `texts`;
    the segmentation does not change.
    """
    from ..models import VanillaTransformerTokenizer

    found = find_tokenizer(name)
    if name != "words" and min_frequency is None:
        return found
    return VanillaTransformerTokenizer.build(
        texts,
        tokenizer=found,
        source_lang=language if name == "words" else None,
        min_frequency=min_frequency or 2,
    )


def load_causal_lm(name: str, *, allow_pickle: bool = False, dtype: str = "float32") -> Any:
    """The trained causal LM of a folder (also one in `HF_EMBINIT_DATA`) or Hub id; with `dtype="auto"` in the
    precision that it was saved in.

    Raises `DataNotFoundError` when there is none, and `InvalidArgumentError` for an encoder.
    """
    from transformers import AutoModelForCausalLM

    model = load_pretrained(
        AutoModelForCausalLM,
        str(find_folder(name, None) or name),
        f"--model {name}",
        dtype=dtype,
        use_safetensors=None if allow_pickle else True,
    )
    if getattr(model.config, "is_decoder", True) is False:
        raise InvalidArgumentError(
            f"--model {name} is an encoder, which reads the tokens that it should predict: give a causal LM "
            'such as gpt2, or set "is_decoder": true in its config.json'
        )
    return model


def own_tokenizer(model: str, given: str | None, texts: list[str], **settings: Any) -> Any:
    """The tokenizer of a trained causal LM, or the one `given`, which must have the same vocabulary."""
    from transformers import AutoTokenizer

    own = load_pretrained(AutoTokenizer, str(find_folder(model, None) or model), f"--model {model}")
    tokenizer = own if given is None else build_tokenizer(given, texts, **settings)
    if tokenizer.get_vocab() != own.get_vocab():
        raise InvalidArgumentError(
            f"--tokenizer {given} has another vocabulary than --model {model}: leave it out: a trained model "
            "keeps its own"
        )
    return tokenizer


def check_fits(model: PreTrainedModel, tokenizer: Any, block_size: int) -> None:
    """Raises `InvalidArgumentError` when blocks are longer than the positions of `model`, or when it has
    fewer rows than `tokenizer` has tokens."""
    positions = longest_input(model)
    if block_size < 2 or (positions is not None and positions < block_size):
        raise InvalidArgumentError(
            f"--block_size {block_size}: give a length from 2 to the {positions or 'number of'} "
            "positions of the model"
        )
    size = EmbeddingTables(model).input_tables[0].num_embeddings
    if len(tokenizer) > size:
        raise InvalidArgumentError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model's embeddings have {size} rows"
        )


def choose_tokenizer(model: str, given: str | None, texts: list[str], **settings: Any) -> Any:
    """The tokenizer of a trained model, or for the model `vanilla` the one `given` (GPT-2's unless given);
    `settings` are those of `build_tokenizer`."""
    if model == "vanilla":
        return build_tokenizer(given or "gpt2", texts, **settings)
    return own_tokenizer(model, given, texts, **settings)
