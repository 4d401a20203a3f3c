"""`completion`: a script by which a shell completes commands, flags and names."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .command import Answer, Command
from .train import recipe_files

if TYPE_CHECKING:
    from ..initializers import Initializer

_SCRIPT = """\
{head}_hf_embinit() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  [[ $before == = ]] && before=${{COMP_WORDS[COMP_CWORD-2]}}
  [[ $word == = ]] && word=""
  case "$COMP_CWORD ${{COMP_WORDS[1]}} $before" in
    "1 "*) words="{commands}" ;;
    "2 train train") words="{recipes}" ;;
    *" init --init") words="{tables}" ;;
    *" --init") words="{inits}" ;;
    *) [[ $word == -* ]] && case "${{COMP_WORDS[1]}}" in
{flags}
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _hf_embinit hf-embinit
"""
_HEADS = {"bash": "", "zsh": "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"}


def _flags(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=_HEADS, help="the shell that reads the script")


def _run(args: Namespace) -> Answer:
    from ..retokenize import list_initializers
    from . import COMMANDS

    lines = []
    for name, command in COMMANDS.items():
        parser = ArgumentParser()
        command.add_flags(parser)
        words = [flag for flag in parser._option_string_actions if "-" not in flag.removeprefix("--")]
        if name != "train":  # the words behind it are the recipe's
            lines.append(f'      {name}) words="{" ".join([*words, "--json"])}" ;;')
    script = _SCRIPT.format(
        head=_HEADS[args.shell],
        commands=" ".join(COMMANDS),
        recipes=" ".join(recipe_files()),
        inits=_names(list_initializers()),
        tables=_names(list_initializers(purpose="table")),
        flags="\n".join(lines),
    )
    return Answer(script.rstrip("\n"), {"shell": args.shell, "script": script})


def _names(records: Iterable[Initializer]) -> str:
    return " ".join(name for record in records for name in (record.name, *record.aliases))


COMPLETION = Command(
    summary="print a script by which bash or zsh completes commands and flags",
    description="Prints a script that completes commands, flags, recipes and names of initialisers; file "
    "names complete as ever. Write it to a file, and source that file in ~/.bashrc or ~/.zshrc.",
    examples=("hf-embinit completion bash", "hf-embinit completion zsh"),
    add_flags=_flags,
    run=_run,
)
