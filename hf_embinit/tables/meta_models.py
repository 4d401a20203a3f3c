"""A model without its weights, tied as the tensors of its files are."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from .safetensors_files import TORCH_DTYPES, CheckpointFiles


def meta_model(
    model_class: type[PreTrainedModel], config: PretrainedConfig, files: CheckpointFiles
) -> tuple[PreTrainedModel, dict[str, str], list[str]]:
    """The model on the meta device, `{name in the files: name in the model}`, and what does not fit.

    That is a text for each parameter that the files hold in another shape, and for each of a layer that they
    lack; none where weights are quantised, which changes names and shapes.

    `from_pretrained` loads descriptions of the tensors, so that names that it changes, ties that it finds and
    dtypes are those of a loaded model. A tensor that it joins with others, such as experts, has no name here.
    """
    config = copy.deepcopy(config)
    quantization = vars(config).pop(
        "quantization_config", None
    )  # the tables are plain, and no kernels needed
    described = {t.name: _described(t.shape, t.dtype) for t in files.tensors.values()}
    dtype = getattr(config, "dtype", None) or next(
        (t.dtype for t in described.values() if t.is_floating_point()), torch.float32
    )
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    described = {k: t.to(dtype=dtype) if t.is_floating_point() else t for k, t in described.items()}
    undrawn: Any = type(  # what the files lack is not drawn, since nobody looks at it
        model_class.__name__,
        (model_class,),
        {"__module__": model_class.__module__, "initialize_weights": lambda self: None},
    )
    file_name = {_storage(tensor): name for name, tensor in described.items()}
    with quiet_loading(), _Meta():
        model, info = undrawn.from_pretrained(
            None,
            config=config,
            state_dict=described,
            dtype=dtype,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    model.__class__ = model_class
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)
    names: dict[str, str] = {}
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        stored = file_name.get(_storage(tensor))
        if stored is not None and (stored not in names or stored == name):  # of tied ones its own place
            names[stored] = name
    _make_plain(model)
    if quantization is not None:
        model.config.quantization_config = quantization
    if quantization is not None:
        return model, names, []
    odd = [f"{key} is {list(have)}, and not {list(want)}" for key, have, want in info["mismatched_keys"]]
    lacking = [key for key in info["missing_keys"] if any(part.isdigit() for part in key.split("."))]
    return model, names, [*odd, *(f"there is no {key}" for key in lacking)]


class _Described(Tensor):
    """A tensor on the meta device that stays there when a loader moves it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.to:
            kwargs.pop("device", None)
            if kwargs.get("dtype") in (None, args[0].dtype):
                return args[0]
        if func is nn.functional.pad and not any(args[1]):  # of a bias that is as long as its table already
            return args[0]
        return super().__torch_function__(func, types, args, kwargs)


class _Meta(TorchFunctionMode):
    """Inside, whatever is made for a named device is made on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.equal:  # asked of two tensors that the config ties: the files are compared later
            return False
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta")
        return func(*args, **kwargs)


def _described(shape: tuple[int, ...], dtype: str) -> Tensor:
    known = TORCH_DTYPES.get(dtype, torch.uint8)
    return torch.empty(shape, dtype=known, device="meta").as_subclass(_Described)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _make_plain(model: nn.Module) -> None:
    """Parameters and buffers of torch's own type, those that were one still one."""
    plain: dict[int, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if id(tensor) not in plain:
                    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    plain[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if is_parameter else made
                held[name] = plain[id(tensor)]  # type: ignore[assignment]


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Inside, a load by transformers shows no progress bar and no report."""
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
