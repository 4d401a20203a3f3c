"""Finds the one model inside what is around it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..arguments import shown
from ..errors import UnsupportedModelError
from .elsewhere import BEFORE

WEIGHTS_OF_TOKENS = {
    "SparseStaticEmbedding": "tokenizer=..., weight=...",
    "WordWeights": "vocab=..., word_weights=...",
}
"""Modules of sentence-transformers that weigh tokens by their ids, and what builds another."""
_HELD_AS = ("model_body", "text_encoder", "model")
"""Where things that are no modules hold their model: SetFit's classifier, diffusers' pipelines, pipelines."""


def unwrap(model: Any) -> PreTrainedModel:
    """The one `PreTrainedModel` inside PEFT, DistributedDataParallel and torch.compile wrappers, or in a
    SentenceTransformer, a CrossEncoder, a module of one's own, SetFit's classifier or a pipeline.

    Raises `UnsupportedModelError` for what holds none or several.
    """
    seen: Any = model
    while not isinstance(seen, PreTrainedModel):
        refuse_fsdp(seen, type(model).__name__)
        if hasattr(seen, "get_base_model"):
            seen = seen.get_base_model()
        elif isinstance(getattr(seen, "_orig_mod", None), nn.Module):
            seen = seen._orig_mod
        elif isinstance(getattr(seen, "module", None), nn.Module):
            seen = seen.module
        else:
            seen = _held(seen, type(model).__name__)
    return seen


def _held(holder: Any, name: str) -> nn.Module:
    """The one model that a module or a pipeline holds."""
    if isinstance(holder, nn.Module):
        found: dict[str, Any] = _outermost(holder, "")
    else:
        held: dict[str, Any] = {
            key: getattr(holder, key, None) for key in (*_HELD_AS, "text_encoder_2", "text_encoder_3")
        }
        found = {key: value for key, value in held.items() if isinstance(value, nn.Module)}
    if len({id(one) for one in found.values()}) > 1:
        raise UnsupportedModelError(f"{name} holds several models: give one of them ({', '.join(found)})")
    if not found:
        way_out = ": load it first, by from_pretrained" if isinstance(holder, str) else ""
        kinds = {type(m).__name__ for m in holder.modules()} if isinstance(holder, nn.Module) else ()
        if "StaticEmbedding" in kinds:
            way_out = ": it holds static embeddings, a table without a model, which can be given as vectors="
        raise UnsupportedModelError(
            f"model={shown(holder)} is neither a transformers model nor a known wrapper of one{way_out}"
        )
    return next(iter(found.values()))


def _outermost(module: nn.Module, name: str) -> dict[str, PreTrainedModel]:
    """The models inside a module that no other model is around, by name."""
    found: dict[str, PreTrainedModel] = {}
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        found |= {path: child} if isinstance(child, PreTrainedModel) else _outermost(child, path)
    return found


def refuse_fsdp(module: Any, name: str) -> None:
    """Raises `UnsupportedModelError` for FSDP1, and for a module whose parameters it has flattened."""
    flat = False
    if isinstance(module, nn.Module):
        views = [value for value in vars(module).values() if isinstance(value, Tensor)]
        flat = any(
            getattr(tensor, "_fsdp_flattened", False) or getattr(tensor._base, "_fsdp_flattened", False)
            for tensor in (*views, *module.parameters(recurse=False))
        )
    if flat or type(module).__name__ == "FullyShardedDataParallel":
        raise UnsupportedModelError(f"{name} is sharded by FSDP: {BEFORE}")


def refuse_weights_of_tokens(outer: nn.Module) -> None:
    """Raises `UnsupportedModelError` for a module around a model that weighs tokens by their ids."""
    for module in outer.modules():
        kind = type(module).__name__
        if kind in WEIGHTS_OF_TOKENS:
            raise UnsupportedModelError(
                f"{type(outer).__name__} holds a {kind}, with a weight for each token beside the model: "
                f"change the model alone, then build a {kind}({WEIGHTS_OF_TOKENS[kind]}) for the new tokens"
            )
