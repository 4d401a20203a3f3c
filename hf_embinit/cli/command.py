"""The parts of a command: its flags, its answer, and options given as `--option name=value`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arguments import put_option
from ..errors import EmbinitError


class CommandLineError(EmbinitError):
    """A mistake in a command line that parsing does not notice."""


@dataclass(frozen=True)
class Answer:
    """The result of a command."""

    text: str
    """The result for people."""
    data: Any
    """The result for programs, as JSON values."""
    code: int = 0
    """Exit code."""


@dataclass(frozen=True)
class Command:
    """One command: the word after `hf-embinit` and what it does."""

    summary: str
    """One line, for the list of commands."""
    description: str
    examples: tuple[str, ...]
    """Whole command lines, shown by `--help`."""
    add_flags: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], Answer]


def flag(parser: Any, name: str, **settings: Any) -> None:
    """Adds `--name`, also spelled with dashes."""
    names = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
    parser.add_argument(*names, dest=name, **settings)


def add_options(parser: ArgumentParser, of: str) -> None:
    """Adds `--option name=value`, to be parsed by `read_options`."""
    flag(
        parser,
        "option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"an option of the {of}, its value in JSON or else a text; may be given several times",
    )


def read_options(given: list[str]) -> dict[str, Any]:
    """`["scale=1e-5", "of=king"]` -> `{"scale": 1e-05, "of": "king"}`."""
    options: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise CommandLineError(f"--option {text}: expected name=value, such as scale=1e-5")
        put_option(options, name, value, f"--option {text}", CommandLineError)
    return options
