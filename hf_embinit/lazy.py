"""Names of a package that are imported on first use, so that `import hf_embinit` and `--help` stay fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
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
