"""`VanillaTransformerConfig`: one config for encoder-decoder, encoder-only classifier and decoder-only LM.

This file and the modeling files import only torch, transformers and each other, because
`register_for_auto_class` copies them into checkpoints, which load with `trust_remote_code=True` where
hf_embinit is not installed. Annotations are not strings here, because `@strict` could not check those.
"""

import copy
import dataclasses
import math
from contextvars import ContextVar
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig, __version__
from transformers.activations import ACT2FN

if not dataclasses.is_dataclass(PreTrainedConfig):
    raise ImportError(
        f"the vanilla transformers need transformers 5.6 or later, and this is {__version__}: "
        "pip install -U transformers"
    )


AS_DECODER: ContextVar[bool] = ContextVar("AS_DECODER", default=False)
"""Whether, in this thread, `get_text_config` gives the decoder's view where no part is asked for."""


@strict
class VanillaTransformerConfig(PreTrainedConfig):
    """Sizes and choices of a vanilla transformer; defaults as in Kim et al. 2024 with 300 dimensions.

    The names are T5's (`d_model`, `d_ff`, `num_layers`, `num_decoder_layers`, `num_heads`, `dropout_rate`)
    with Marian's `decoder_vocab_size` and `share_encoder_decoder_embeddings`; BERT's and Bart's names
    (`hidden_size`, `encoder_layers`, ...) read and write the same fields. Which parts a model has follows
    from two flags: `is_encoder_decoder` builds both stacks, otherwise `is_decoder` builds the decoder alone
    (without cross-attention) and its absence the encoder alone. The model classes set both flags themselves.
    A value that cannot work raises a validation error with one sentence.
    """

    model_type = "vanilla_transformer"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012  (a class variable, not a field)
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "encoder_layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "num_attention_heads": "num_heads",
        "encoder_attention_heads": "num_heads",
        "decoder_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "encoder_ffn_dim": "d_ff",
        "decoder_ffn_dim": "d_ff",
        "dropout": "dropout_rate",
        "hidden_dropout_prob": "dropout_rate",
        "hidden_act": "activation_function",
        "layer_norm_eps": "layer_norm_epsilon",
    }

    vocab_size: int = 8000
    """Rows of the source table, or of the only table."""
    decoder_vocab_size: int | None = None
    """Rows of the target table and of the output projection; `None` means `vocab_size`."""
    d_model: int = 300
    d_ff: int = 512
    num_layers: int = 3
    """Layers of the encoder; of the decoder when it is alone."""
    num_decoder_layers: int | None = None
    """Layers of the decoder of an encoder-decoder; `None` means `num_layers`."""
    num_heads: int = 10
    dropout_rate: float | int = 0.1
    """On the embedded input, attention weights, feed-forward activations and each residual branch."""
    activation_function: str = "relu"
    norm_position: Literal["post", "pre"] = "post"
    """LayerNorm after each residual sum (the original), or before each branch and once at the end."""
    layer_norm_epsilon: float = 1e-5
    position_encoding: Literal["sinusoidal", "learned", "rotary", "relative", "none"] = "sinusoidal"
    position_encoding_base: float | int = 10000
    """Base of the sinusoidal and rotary frequencies."""
    position_scale: float | int = 1
    """Factor of the sinusoidal encodings. As published 1; less lets more of the embeddings through."""
    max_position_embeddings: int = 5000
    """Positions of the sinusoidal and learned tables; the other encodings have no limit."""
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    scale_embeddings: bool = True
    """Multiply embeddings by sqrt(d_model) before positions are added."""
    tie_word_embeddings: bool = False
    """The output projection uses the weight of the decoder's (target) table. It keeps its own bias."""
    share_encoder_decoder_embeddings: bool = False
    """Encoder and decoder use one table; both vocabularies must then be one."""
    freeze_embeddings: bool = False
    """Input tables are not trained (nor is an output projection tied to one)."""
    pooling: Literal["mean", "first"] = "mean"
    """What the classifier reads: the mean over real tokens, or the first real token."""
    use_cache: bool = True
    is_encoder_decoder: bool = True
    is_decoder: bool = False
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    decoder_start_token_id: int | None = None
    """First decoder input; `None` means `bos_token_id`."""
    embinit: list[dict[str, Any]] | None = None
    """How the rows of the embedding tables were initialised: a list of events, kept with the checkpoint."""

    def __post_init__(self, **kwargs: Any) -> None:
        kwargs = self._read_other_names(kwargs)
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        if self.num_decoder_layers is None:
            self.num_decoder_layers = self.num_layers
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.bos_token_id
        super().__post_init__(**kwargs)

    def _read_other_names(self, given: dict[str, Any]) -> dict[str, Any]:
        """Sets the fields that BERT's and Bart's names stand for, and returns what is left of `given`.

        Before the defaults that follow from them: `num_hidden_layers=2` is the decoder's depth as well.
        """
        fields = type(self).__dataclass_fields__
        said = {
            name: {name: getattr(self, name)}
            for name in self.attribute_map.values()
            if getattr(self, name) != fields[name].default
        }
        for other, name in self.attribute_map.items():
            if other in given:
                said.setdefault(name, {})[other] = given[other]
        for name, values in said.items():
            value, *more = values.values()
            if any(another != value for another in more):
                raise ValueError(
                    f"{' and '.join(f'{k}={v!r}' for k, v in values.items())} are one field, {name}: "
                    f"give it one value."
                )
            setattr(self, name, value)
        return {key: value for key, value in given.items() if key not in self.attribute_map}

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """The config as the decoder sees it when the decoder alone is asked for: its layers and vocabulary.

        `generate` sizes its cache by this, so that the decoder may be deeper than the encoder, and it asks
        for no part where it means the decoder's (`AS_DECODER`).
        """
        decoder = decoder or (decoder is None and AS_DECODER.get())
        if not (self.is_encoder_decoder and decoder and not encoder):
            return self
        config = copy.deepcopy(self)
        config.num_layers = self.num_decoder_layers or self.num_layers
        config.vocab_size = self.decoder_vocab_size or self.vocab_size
        return config

    def validate_architecture(self) -> None:
        """Raises `ValueError` with one sentence for a combination that cannot work (called by `@strict`)."""
        for name in (
            "vocab_size",
            "decoder_vocab_size",
            "d_model",
            "d_ff",
            "num_layers",
            "num_decoder_layers",
            "num_heads",
            "max_position_embeddings",
            "relative_attention_max_distance",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.d_model % self.num_heads:
            fitting = [h for h in range(1, 33) if self.d_model % h == 0]
            nearest = min(fitting, key=lambda h: abs(h - self.num_heads))
            raise ValueError(
                f"d_model is {self.d_model}, which num_heads={self.num_heads} does not divide; "
                f"the nearest number of heads that does is {nearest}."
            )
        if not 0 <= self.dropout_rate < 1 - 2**-17:  # the CPU draws it in steps of 1/65536
            raise ValueError(f"dropout_rate is {self.dropout_rate}; it must be at least 0 and below 1.")
        for name, least in (("layer_norm_epsilon", 0), ("position_encoding_base", 1)):
            if not least < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above {least} and finite.")
        if self.activation_function not in ACT2FN:
            raise ValueError(
                f"activation_function is {self.activation_function!r}; it must be one of "
                f"{', '.join(sorted(ACT2FN))}."
            )
        if not 0 < self.position_scale < math.inf:
            raise ValueError(
                f"position_scale is {self.position_scale}; it must be above 0 and finite "
                "(position_encoding='none' leaves positions out)."
            )
        if self.position_scale != 1 and self.position_encoding != "sinusoidal":
            raise ValueError(
                f"position_scale={self.position_scale} is for position_encoding='sinusoidal' alone, not for "
                f"{self.position_encoding!r}."
            )
        if self.relative_attention_num_buckets < 4 or self.relative_attention_num_buckets % 2:
            raise ValueError(
                f"relative_attention_num_buckets is {self.relative_attention_num_buckets}; "
                "it must be an even number of at least 4."
            )
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
            raise ValueError(
                f"relative_attention_max_distance is {self.relative_attention_max_distance}; it must be "
                f"above half of relative_attention_num_buckets={self.relative_attention_num_buckets}."
            )
        if self.position_encoding == "rotary" and (self.d_model // self.num_heads) % 2:
            raise ValueError(
                f"position_encoding='rotary' rotates pairs, but d_model={self.d_model} over "
                f"num_heads={self.num_heads} gives heads of odd width {self.d_model // self.num_heads}; "
                "choose another num_heads."
            )
        if (
            self.share_encoder_decoder_embeddings
            and self.is_encoder_decoder
            and self.vocab_size != self.decoder_vocab_size
        ):
            raise ValueError(
                f"share_encoder_decoder_embeddings=True needs one vocabulary, but vocab_size is "
                f"{self.vocab_size} and decoder_vocab_size is {self.decoder_vocab_size}."
            )
        smallest = self.vocab_size
        if self.is_encoder_decoder:
            smallest = min(smallest, self.decoder_vocab_size or smallest)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
            ids = getattr(self, name)
            for token_id in ids if isinstance(ids, list) else [ids]:
                if token_id is not None and not 0 <= token_id < smallest:
                    raise ValueError(
                        f"{name} is {token_id}, outside the vocabulary of {smallest} tokens "
                        f"(ids 0 to {smallest - 1})."
                    )


__all__ = ["VanillaTransformerConfig"]
