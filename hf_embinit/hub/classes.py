"""The model class that a config names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def model_class(config: PretrainedConfig) -> Any:
    """The model class of transformers, or an Auto class for a registered or remote one."""
    import transformers

    named = config.architectures
    name = named[0] if isinstance(named, (list, tuple)) and named else None
    if not isinstance(name, str):
        raise InvalidArgumentError(
            'the config.json names no model class: add one, such as "architectures": ["GPT2LMHeadModel"]'
        )
    remote = {reference.split(".")[-1]: auto for auto, reference in _remote_classes(config).items()}
    if hasattr(transformers, name) and name not in remote:
        return getattr(transformers, name)
    for auto in sorted(a for a in dir(transformers) if a.startswith("AutoModel")):
        mapping = getattr(getattr(transformers, auto), "_model_mapping", {})
        if type(config) in mapping and getattr(mapping[type(config)], "__name__", None) == name:
            return getattr(transformers, auto)
    if name in remote:
        return getattr(transformers, remote[name])
    raise InvalidArgumentError(
        f"the config names the model class {name}, which this transformers ({transformers.__version__}) "
        f"does not have"
    )


def _remote_classes(config: PretrainedConfig) -> dict[str, str]:
    auto_map = getattr(config, "auto_map", None)
    if not isinstance(auto_map, dict):
        return {}
    return {k: v for k, v in auto_map.items() if k.startswith("AutoModel") and isinstance(v, str)}
