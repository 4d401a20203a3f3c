"""The command line: `hf-embinit`, `python -m hf_embinit`, or `hf embinit` as an extension of `hf`."""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from . import __version__
from .cli import COMMANDS, Answer, Command, CommandLineError
from .disk import disk_problem
from .display import printable
from .errors import EmbinitError, UnknownNameError
from .interrupts import Terminated, terminating

DONE, ERROR, BAD_COMMAND_LINE, INTERRUPTED, READER_GONE, TERMINATED = 0, 1, 2, 130, 141, 143
EXIT_CODES = """exit codes:
    0  done
    1  it could not be done; stderr says why
    2  the command line cannot be read
    3  doctor found something to look at
    4  doctor found something broken
  130  interrupted (Ctrl-C): what was half-written is gone
  141  whoever read the output stopped reading
  143  told to end (SIGTERM): what was half-written is gone
"""
_NO_READING = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that JSON does not escape and a terminal may interpret."""


PATHS = frozenset(
    (
        *("a", "adapter", "analogies", "b", "corpus", "data_dir", "dictionary", "donor", "fix", "folder"),
        *("model", "new_tokenizer", "output_dir", "pages", "parallel", "results", "run_folder", "sources"),
        *("target_vectors", "texts", "tokenizer", "tokens_file", "vectors"),
    )
)
"""Arguments that may name a file or a folder."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and prints its answer; returns the exit code, see `EXIT_CODES`."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if argv and argv[0] not in (*COMMANDS, "-h", "--help", "--version"):
        kind = "flag before a command" if argv[0].startswith("-") else "command"
        _complain(str(UnknownNameError(kind, argv[0], COMMANDS)))
        return BAD_COMMAND_LINE
    if unknown := _unknown_flag(parser, argv):
        _complain(unknown)
        return BAD_COMMAND_LINE
    try:
        args = parser.parse_args(argv)
    except SystemExit as end:  # --help, --version, or a command line that cannot be read
        return DONE if end.code is None else int(end.code)
    args.command_line = argv
    for name in PATHS & vars(args).keys():
        setattr(args, name, _from_home(getattr(args, name)))
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            answer = COMMANDS[args.command].run(args)
        _print(answer, args.json)
    except CommandLineError as error:
        _complain(f"{error} (hf-embinit {args.command} --help)")
        return BAD_COMMAND_LINE
    except EmbinitError as error:
        _complain(str(error))
        return ERROR
    except ModuleNotFoundError as error:
        if str(error.name).startswith(__package__):
            raise
        _complain(f"{args.command} needs {error.name}: pip install 'hf-embinit[recipes]'")
        return ERROR
    except Terminated:
        print("told to end", file=sys.stderr)
        return TERMINATED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the last flush finds no pipe, either
        return READER_GONE
    except Exception as error:
        sentence = disk_problem(error)
        if sentence is None:
            raise
        _complain(sentence)
        return ERROR
    return answer.code


def run() -> None:
    """The console script: runs `main` and exits."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what is done is not to fail for a letter
    if sys.stderr is None or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers', too
    with terminating():  # so that half-written folders are removed
        sys.exit(main())


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="hf-embinit",
        usage="hf-embinit COMMAND ...",
        description="Where token embeddings come from: named initialisers for Hugging Face transformers.",
        epilog=f"commands:\n{commands}\n\n`hf-embinit COMMAND --help` explains one.\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hf-embinit {__version__}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    for name, command in COMMANDS.items():
        _add_command(parsers, name, command)
    return parser


def _unknown_flag(parser: argparse.ArgumentParser, argv: Sequence[str]) -> str | None:
    """What is wrong with the first word that reads as a flag and is none of its command's."""
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    if not argv or argv[0] not in commands.choices or argv[0] == "train":  # `train` hands its words on
        return None
    flags = commands.choices[argv[0]]._option_string_actions
    words = argv[1 : argv.index("--")] if "--" in argv else argv[1:]
    before = ""
    for word in words:
        name = word.split("=")[0]
        if name in flags:
            before = name
        elif " " in word or not re.match(r"-[^\d.]", word):  # a value, or a negative number
            continue
        elif before and not re.match(r"--[A-Za-z]", word):
            value = shlex.quote(word)
            several = "; several go into a --tokens_file" if before == "--tokens" else ""
            return f"{before} {value}: write {before}={value}, since it begins like a flag{several}"
        else:
            usual = [flag for flag in flags if flag.startswith("--") and "-" not in flag[2:]]
            return str(UnknownNameError(f"flag of `hf-embinit {argv[0]}`", name, usual))
    return None


def _add_command(parsers: Any, name: str, command: Command) -> None:
    examples = "\n".join(f"  {line}" for line in command.examples)
    parser = parsers.add_parser(
        name,
        prog=f"hf-embinit {name}",
        description=command.description,
        epilog=f"examples:\n{examples}",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    command.add_flags(parser)
    for action in parser._actions:
        if not action.option_strings and action.type is None and action.nargs != argparse.REMAINDER:
            action.type = _not_empty
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def _from_home(paths: Any) -> Any:
    """A path, or several, with the home folder in place of `~`, which no shell puts into `--flag=~/x`."""
    if isinstance(paths, list):
        return [_from_home(path) for path in paths]
    return os.path.expanduser(paths) if isinstance(paths, str) else paths


def _not_empty(word: str) -> str:
    if not word.strip():
        raise argparse.ArgumentTypeError(f"{word!r} names nothing")
    return word


class _Formatter(argparse.HelpFormatter):
    """Wraps descriptions, keeps examples on lines of their own, and shows one spelling of a flag."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        shown.option_strings = [s for s in action.option_strings if "-" not in s[2:]]
        return super()._format_action_invocation(shown)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)


def _print(answer: Answer, as_json: bool) -> None:
    if sys.stdout is None:  # closed by who called
        return
    if as_json:
        from .records import to_plain

        escape = (getattr(sys.stdout, "encoding", None) or "utf8").lower().replace("-", "") != "utf8"
        text = json.dumps(to_plain(answer.data), indent=2, ensure_ascii=escape, allow_nan=False)
        print(_NO_READING.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
    else:
        print("\n".join(map(printable, answer.text.split("\n"))))
    sys.stdout.flush()


def _complain(text: str) -> None:
    print("error:", "\n".join(map(printable, text.split("\n"))), file=sys.stderr)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    print("warning:", printable(message), file=sys.stderr)


if __name__ == "__main__":
    run()
