"""The API reference: signatures and docstrings of the public names, as Markdown."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import Any, cast

_ROOMS = {
    "hf_embinit": "What most users need.",
    "hf_embinit.vectors": "Files of vectors.",
    "hf_embinit.measures": "Measures of tables, predictions and scores.",
    "hf_embinit.surgery": "Trained models taken apart.",
    "hf_embinit.models": "The vanilla transformers.",
    "hf_embinit.errors": "What may be raised, and caught.",
}
_SECTIONS = ("Args", "Raises", "Returns", "Yields")


def render_api() -> str:
    """A chapter for each public module: each name with its signature and its docstring, in Markdown."""
    return "\n".join(_chapter(name, about) for name, about in _ROOMS.items())


def _chapter(name: str, about: str) -> str:
    module = importlib.import_module(name)
    lines = [f"## `{name}`\n", f"{about}\n"]
    public = getattr(module, "__all__", None) or [
        n for n, value in vars(module).items() if n[0] != "_" and getattr(value, "__module__", "") == name
    ]
    for entry in sorted(public, key=lambda n: (n.lower(), n)):
        value = getattr(module, entry)
        if callable(value) and str(value.__module__).startswith("hf_embinit"):
            lines.append(_entry(entry, value))
    return "\n".join(lines)


def _entry(name: str, value: Any) -> str:
    if not inspect.isclass(value):
        head = f"{name}{_signature(value)}"
        return f"### `{name}`\n\n```py\n{head}\n```\n\n{_text(value)}"
    parts = [f"### `{name}`\n", _text(value)]
    if dataclasses.is_dataclass(value) and value.__annotations__:
        fields = [
            f"{field}: {_name(kind)}" for field, kind in value.__annotations__.items() if field[0] != "_"
        ]
        parts.append("\n".join(["```py", *fields, "```\n"]))
    for method, function in vars(value).items():
        if method[0] != "_" and isinstance(function, property) and function.__doc__:
            kind = _name(inspect.signature(cast(Any, function.fget)).return_annotation)
            parts.append(f"```py\n{name}.{method}: {kind}\n```\n\n{_text(function)}")
        function = getattr(function, "__func__", function)  # of a classmethod
        if method[0] != "_" and inspect.isfunction(function) and function.__doc__:
            parts.append(f"```py\n{name}.{method}{_signature(function)}\n```\n\n{_text(function)}")
    return "\n".join(parts)


def _signature(function: Any) -> str:
    """One line, or a line for each parameter where that is too long."""
    signature = inspect.signature(function)
    words: list[str] = []
    for parameter in signature.parameters.values():
        keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        if keyword_only and not any(word.startswith("*") for word in words):
            words.append("*")
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        word = stars + parameter.name
        typed = parameter.annotation is not parameter.empty
        word += f": {_name(parameter.annotation)}" if typed else ""
        if parameter.default is not parameter.empty:
            word += f" = {parameter.default!r}" if typed else f"={parameter.default!r}"
        words.append(word)
    end = (
        "" if signature.return_annotation is signature.empty else f" -> {_name(signature.return_annotation)}"
    )
    line = f"({', '.join(words)}){end}"
    return line if len(line) <= 80 else "(\n" + "".join(f"    {word},\n" for word in words) + f"){end}"


def _name(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _text(value: Any) -> str:
    """The docstring; arguments and errors as lists."""
    lines: list[str] = []
    in_list = False
    for line in (inspect.getdoc(value) or "").splitlines():
        if line.rstrip(":") in _SECTIONS and line.endswith(":"):
            in_list = True
            lines.append(f"**{line}**\n")
        elif in_list and (entry := re.match(r"    (\*{0,2}[\w.]+(?:, [\w.]+)*): ?(.*)", line)):
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            lines.append(f"- {names}: {entry[2]}")
        else:
            in_list = in_list and (line.startswith(" ") or not line)
            lines.append(re.sub("^ {8}", "  ", line) if in_list else line)
    return "\n".join(lines).strip() + "\n"
