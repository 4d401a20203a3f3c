"""`analyze`: the command for what `recipes/analyze_embeddings.py` does."""

from __future__ import annotations

import dataclasses
import shlex
import types
import typing
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from ..report import AnalysisArguments
from .command import Answer, Command, flag


def _flags(parser: ArgumentParser) -> None:
    """The sources by position, and a flag for each other field of `AnalysisArguments`."""
    about = {field.name: field.metadata["help"] for field in dataclasses.fields(AnalysisArguments)}
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help=about["sources"])
    add_analysis_flags(parser, without=("sources",))


def add_analysis_flags(parser: ArgumentParser, *, without: Sequence[str]) -> None:
    """A flag for each field of `AnalysisArguments` but these."""
    hints = typing.get_type_hints(AnalysisArguments)
    for field in dataclasses.fields(AnalysisArguments):
        if field.name in without:
            continue
        text = field.metadata["help"]
        kind, default = hints[field.name], field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if kind is bool:
            flag(parser, field.name, action="store_true", help=text)
            continue
        if isinstance(kind, types.UnionType):  # `... | None`
            kind = next(part for part in typing.get_args(kind) if part is not type(None))
        several = typing.get_origin(kind) is list
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        flag(
            parser,
            field.name,
            type=typing.get_args(kind)[0] if several else kind,
            nargs="+" if several else None,
            default=default,
            help=text if default is None else f"{text} (default: {shown})",
            metavar=field.name.upper(),
        )


def analysis_arguments(args: Namespace) -> AnalysisArguments:
    """The arguments of an analysis from the flags of a command; those it lacks have their defaults."""
    names = [field.name for field in dataclasses.fields(AnalysisArguments)]
    return AnalysisArguments(**{name: getattr(args, name) for name in names if hasattr(args, name)})


def _run(args: Namespace) -> Answer:
    from ..report import analyze_embeddings, summary

    arguments = analysis_arguments(args)
    results = analyze_embeddings(arguments, shlex.join(["hf-embinit", *args.command_line]))
    return Answer(summary(results), results)


ANALYZE = Command(
    summary="report on embedding tables: will they hurt as the start of a transformer?",
    description="Reads one or more embedding tables, of files of vectors or of checkpoints (by name from the "
    "file; no model is built), and writes a report: how wide they are against Xavier's and the positions', "
    "what is left of words and positions in their sum, neighbors, how far the tables agree, analogies. "
    "--html writes it as one page that needs no network.",
    examples=(
        "hf-embinit analyze glove.6B.300d.txt --output_dir report --html",
        "hf-embinit analyze google-bert/bert-base-cased path/to/model --names bert mine --output_dir report",
    ),
    add_flags=_flags,
    run=_run,
)
