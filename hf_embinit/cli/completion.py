"""`completion`: a script by which a shell completes commands, flags and names."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .command import Answer, Command
from .train import recipe_files

_SCRIPT = """\
{head}_hf_embinit() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  case "$before" in
    hf-embinit) words="{commands}" ;;
    train) words="{recipes}" ;;
    --init) words="{inits}" ;;
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
        lines.append(f'      {name}) words="{" ".join([*words, "--json"])}" ;;')
    script = _SCRIPT.format(
        head=_HEADS[args.shell],
        commands=" ".join(COMMANDS),
        recipes=" ".join(recipe_files()),
        inits=" ".join(name for record in list_initializers() for name in (record.name, *record.aliases)),
        flags="\n".join(lines),
    )
    return Answer(script.rstrip("\n"), {"shell": args.shell, "script": script})


COMPLETION = Command(
    summary="print a script by which bash or zsh completes commands and flags",
    description="Prints a script that completes commands, flags, recipes and names of initialisers; file "
    "names complete as ever. Write it to a file, and source that file in ~/.bashrc or ~/.zshrc.",
    examples=("hf-embinit completion bash", "hf-embinit completion zsh"),
    add_flags=_flags,
    run=_run,
)
