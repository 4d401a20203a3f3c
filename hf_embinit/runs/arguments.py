"""Command lines of recipes: dataclasses, presets that any flag overrides, and an optional file of
settings."""

from __future__ import annotations

import difflib
import json
import sys
from argparse import Action, ArgumentDefaultsHelpFormatter, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import HfArgumentParser

from ..errors import EmbinitError, InvalidArgumentError


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Shows defaults that say something, and the recipe's docstring with its line breaks."""

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def parse_arguments(
    dataclass_types: Sequence[Any],
    preset: Callable[[Namespace], dict[str, Any]],
    *,
    description: str,
    argv: Sequence[str] | None = None,
) -> tuple[Any, ...]:
    """One instance of each dataclass, from flags over an optional settings file over a preset.

    `python recipe.py [settings.yaml|settings.json] [--flag value ...]`: what a flag gives wins over the file,
    the file over `preset(known)`, which sees the values given so far (`known.dataset`, ...) and returns the
    defaults that go with them. A flag or key that does not exist, or a value of the wrong type, ends the
    program with one line and status 2.
    """
    parser = HfArgumentParser(list(dataclass_types), description=description, formatter_class=_HelpFormatter)
    parser.usage = "%(prog)s [settings.yaml | settings.json] [--flag value ...]"
    argv = list(sys.argv[1:] if argv is None else argv)
    flags = {action.dest: action for action in parser._actions}
    try:
        settings: dict[str, Any] = {}
        if argv and not argv[0].startswith("-"):
            settings = _read_settings(Path(argv.pop(0)), flags)
        parser.set_defaults(**settings)
        for name in settings:
            flags[name].required = False
        known, unknown = parser.parse_known_args(argv)
        if unknown:
            raise InvalidArgumentError(_unknown_flag(unknown, flags))
        parser.set_defaults(**{**preset(known), **settings})
        return parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    except (EmbinitError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def run_main(main: Callable[[], None]) -> None:
    """Runs a recipe; an error that hf_embinit raises on purpose ends it with that one sentence and status
    1."""
    try:
        main()
    except (EmbinitError, StrictDataclassError) as error:  # the second: a config that cannot work
        sys.exit(f"error: {error}")


def _read_settings(path: Path, flags: dict[str, Any]) -> dict[str, Any]:
    if path.suffix not in {".json", ".yaml", ".yml"}:
        raise InvalidArgumentError(f"{str(path)!r} is neither a flag nor a .json or .yaml file of settings")
    if not path.is_file():
        raise InvalidArgumentError(f"the settings file {str(path)!r} does not exist")
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        settings = json.loads(text)
    else:
        import yaml

        settings = yaml.safe_load(text)
    if not isinstance(settings, dict):
        raise InvalidArgumentError(f"{str(path)!r} must hold one mapping of flag names to values")
    for key in settings:
        if key not in flags:
            raise InvalidArgumentError(f"{str(path)!r}: " + _unknown_flag([f"--{key}"], flags))
    return settings


def _unknown_flag(unknown: list[str], flags: dict[str, Any]) -> str:
    name = unknown[0].split("=")[0]
    close = difflib.get_close_matches(name.lstrip("-").replace("-", "_"), flags, n=3, cutoff=0.6)
    hint = f" Did you mean: {', '.join('--' + c for c in close)}?" if close else ""
    return f"unknown argument {name!r}.{hint} --help lists all of them."
