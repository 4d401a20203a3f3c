"""What a refinement may read: the model's own hidden states, for rows that a method has made.

A refinement is an initialiser of purpose `refinement`, a function from a `RefineContext` to better rows:

    @register_initializer("token_distillation", summary=..., reference=..., purpose="refinement")
    def token_distillation(context: RefineContext) -> Refined: ...

`V'` new tokens, `V` old ones, `D` width of the input table, `H` width of the hidden states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import as_called
from ..errors import InvalidArgumentError, UnsupportedModelError
from ..initializers import required
from .texts import TokenTexts

if TYPE_CHECKING:  # `hf-embinit list` imports this room, and not transformers
    from transformers import PreTrainedModel

    from ..tables import Table


class Refined(NamedTuple):
    """Rows `[V', D]` of the input table, and of the output table where it has its own, and output biases."""

    input: Tensor
    output: Tensor | None
    biases: list[Tensor]


class Body:
    """A model's layers, run on rows of the input table in place of ids. Parameters get no gradient."""

    def __init__(self, model: PreTrainedModel, table: Table):
        self.model = model
        self.stack: Any = model.base_model
        self.name = type(model).__name__
        self.dtype, self.device = table.parameter.dtype, table.parameter.device
        self.causal = any(getattr(module, "is_causal", False) for module in self.stack.modules())
        self.scale = _scale_of(table, self.name)
        self.longest: int = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**20
        """Tokens that the model has positions for."""

    def hidden_states(self, rows: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """After each layer `[B, T, H]`, the last one's last, of rows `[B, T, D]`; `mask` `[B, T]` is 1 where
        there is a token."""
        try:
            with as_called():
                made = self.stack(
                    inputs_embeds=(rows * self.scale).to(self.dtype),
                    attention_mask=mask,
                    output_hidden_states=True,
                )
        except (TypeError, ValueError) as error:
            raise UnsupportedModelError(
                f"{self.name} does not run on rows in place of ids, as refine= needs: {error}"
            ) from error
        return (*made.hidden_states[1:-1], made.last_hidden_state)

    def logit_scale(self, output: Tensor) -> float:
        """What the head multiplies the products of last hidden states and output rows `[V, H]` by, such as
        Cohere's `logit_scale`. Raises `UnsupportedModelError` where logits are something else."""
        ids = torch.arange(min(64, len(output), self.longest), device=self.device)[None]
        with torch.no_grad(), as_called():
            states = self.stack(input_ids=ids).last_hidden_state[0].float().cpu()
            logits = self.model(input_ids=ids).logits[0].float().cpu()
        if states.shape[1] == output.shape[1] and logits.shape[1] == len(output):
            products = states @ output.T
            x, y = products - products.mean(0), logits - logits.mean(0)  # without a bias
            if float(torch.cosine_similarity(x.flatten(), y.flatten(), dim=0)) > 0.95:
                return float((x * y).sum() / x.square().sum())
        raise UnsupportedModelError(
            f"{self.name} does more than multiply states with output rows: leave refine= out"
        )


def _scale_of(table: Table, name: str) -> float:
    """What the embedding module multiplies rows by, such as Gemma's sqrt(D)."""
    ids = torch.arange(min(64, table.num_embeddings), device=table.parameter.device)
    with torch.no_grad():
        rows, looked_up = table.parameter[ids].float(), table.module(ids).float()
    scale = float((rows * looked_up).sum() / rows.square().sum().clamp_min(1e-30))
    if looked_up.shape != rows.shape or not torch.allclose(looked_up, rows * scale, rtol=0.02, atol=1e-6):
        raise UnsupportedModelError(f"{name} does more than look rows up in {table.name}: leave refine= out")
    return scale


@dataclass
class RefineContext:
    """A request for better rows, and the model as it was before."""

    body: Body
    new: TokenTexts
    old: TokenTexts
    old_rows: Tensor
    """Of the input table: float32 `[V, D]`."""
    rows: Tensor
    """What the method made for it: float32 `[V', D]`."""
    old_output: Tensor | None
    """The same of an output table that has its own rows."""
    output: Tensor | None
    old_biases: list[Tensor]
    """Of the output, each float32 `[V]`; mostly there is none."""
    biases: list[Tensor]
    free: Tensor
    """Ids of the new tokens whose rows may change, neither special nor shared: int64, ascending."""
    generator: torch.Generator
    texts: Iterable[str] | None = None
    report: dict[str, Any] = field(default_factory=dict)

    def require_texts(self, method: str) -> list[str]:
        """The texts, or `InvalidArgumentError` saying which argument provides them."""
        found = list(required(self.texts, "texts= (--texts): text of the new tokenizer's language", method))
        if not any(text.strip() for text in found):
            raise InvalidArgumentError(f"refine {method!r}: texts= has no text")
        return found


def padded(ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Sequences of ids as `[B, T]`, zeros behind them, and the mask of where there is a token."""
    longest = max(map(len, ids))
    made = torch.tensor([[*one, *[0] * (longest - len(one))] for one in ids])
    mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids])
    return made, mask
