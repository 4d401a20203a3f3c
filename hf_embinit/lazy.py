"""Names and models that are imported on first use, so that `import hf_embinit` and `--help` stay fast."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def lazy_names(package: str, modules: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], list[str]]:
    """`__getattr__` and `__all__` of `package`; `modules` maps each sub-module to the names that it gives.

    A sub-module without names is a name itself (`tasks.translation`). The names are repeated below `if
    TYPE_CHECKING`, for type checkers and editors; a test compares both.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home[name]}"), name)

    return __getattr__, sorted([*home, *(module for module, names in modules.items() if not names)])


def register_on_demand() -> None:
    """Has transformers' Auto classes import the vanilla models, which register themselves, when they first
    meet one (or a tokenizer that they do not know). Imports nothing now, transformers included."""
    waiting = {name for name in _MAPPINGS if name not in sys.modules}
    if waiting:
        sys.meta_path.insert(0, _AutoClassFinder(waiting))
    for name in _MAPPINGS.keys() - waiting:
        _watch(sys.modules[name])


_MODEL_TYPE, _MODULE = "vanilla_transformer", "hf_embinit.models"
_MAPPINGS = {
    "transformers.models.auto.configuration_auto": "CONFIG_MAPPING",
    "transformers.models.auto.tokenization_auto": "TOKENIZER_MAPPING",
}
"""Module -> the mapping in it that an Auto class looks a checkpoint up in."""


def _watch(auto: ModuleType) -> None:
    """Puts a dictionary that imports the models in time where a mapping keeps what was registered."""
    mapping: Any = getattr(auto, _MAPPINGS[auto.__name__], None)
    if isinstance(getattr(mapping, "_extra_content", None), dict):
        mapping._extra_content = _OnDemand(mapping._extra_content)
    else:  # another transformers, which keeps it elsewhere
        importlib.import_module(_MODULE)


class _OnDemand(dict[Any, Any]):
    def __contains__(self, key: object) -> bool:
        if key == _MODEL_TYPE:
            importlib.import_module(_MODULE)
        return super().__contains__(key)

    def values(self) -> Any:  # tokenizers are looked for by their class's name
        with contextlib.suppress(ImportError):  # too old a transformers: what is asked for is another's
            importlib.import_module(_MODULE)
        return super().values()


class _AutoClassFinder(MetaPathFinder):
    """Sees the modules of the Auto classes being imported, and has them watched from then on."""

    def __init__(self, waiting: set[str]):
        self.waiting = waiting

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        self.waiting.discard(name)
        if not self.waiting:
            sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(auto: ModuleType) -> None:
            run(auto)
            _watch(auto)

        spec.loader.exec_module = exec_module  # type: ignore[assignment, method-assign]
        return spec
