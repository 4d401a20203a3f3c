"""`retokenize`: a checkpoint in, one with another tokenizer out; `explain`: what a row of it is made of."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ..files import check_output, whole_folder
from .command import Answer, Command, CommandLineError, add_options, flag, read_options
from .saving import (
    add_data_flags,
    add_link_flag,
    add_model_flags,
    add_output_flag,
    load_model,
    load_tokenizer,
    open_model,
    read_data,
)


def _retokenize_flags(parser: ArgumentParser) -> None:
    add_model_flags(parser)
    parser.add_argument("new_tokenizer", help="folder or Hub id of the tokenizer that the model gets")
    flag(parser, "init", default="auto", help="method, see `hf-embinit list --purpose tokenizer`")
    add_data_flags(parser)
    flag(
        parser,
        "vectors",
        nargs="+",
        metavar="FILE",
        help="vectors of both languages, or two files: of the old language and of the new one",
    )
    flag(
        parser,
        "match",
        default="canonical",
        help="canonical, fuzzy (a new token that has no other takes the row of its lower-case form) or exact",
    )
    flag(
        parser,
        "refine",
        metavar="NAME",
        help="make the rows better by the model's hidden states: input rows by token_distillation (reads "
        "--texts) or tokens2words, output rows by first_piece_shares (reads --texts); with options and "
        "joined by +, such as token_distillation:steps=100+first_piece_shares",
    )
    flag(parser, "untie", action="store_true", help="give the output table rows of its own")
    flag(parser, "row_norm", action="store_true", help="give sums of rows the norm that those rows have")
    flag(parser, "pad_to_multiple_of", type=int, metavar="N", help="make the rows a multiple of this")
    add_options(parser, "method")
    add_output_flag(parser, "new")
    add_link_flag(parser)


def _retokenize(args: Namespace) -> Answer:
    check_output(args.output_dir)
    options = read_options(args.option)
    if args.link and (args.refine or args.untie):
        raise CommandLineError("--link keeps files as they are, but --refine and --untie load the model")
    from ..rows import check_init
    from ..tables import save_checkpoint
    from ..vocabulary import read_refinement, replace_tokenizer

    if args.init != "auto":
        check_init(args.init, options)  # what is misspelt ends here, before any work
    read_refinement(args.refine)
    if args.vectors and len(args.vectors) > 2:
        raise CommandLineError(
            f"--vectors got {len(args.vectors)} files: give one for both languages, or two, of "
            f"the old language and of the new one"
        )
    new = load_tokenizer(args, other=("new_tokenizer", args.new_tokenizer))
    old = load_tokenizer(args)
    model = load_model(args) if args.refine or args.untie else open_model(args)
    vectors = args.vectors[0] if args.vectors and len(args.vectors) == 1 else args.vectors
    report = replace_tokenizer(
        model,
        old,
        new,
        args.init,
        vectors=vectors,
        **read_data(args),
        seed=args.seed,
        match=args.match,
        row_norm=args.row_norm,
        pad_to_multiple_of=args.pad_to_multiple_of,
        refine=args.refine,
        untie=args.untie,
        **options,
    )
    with whole_folder(args.output_dir) as hidden:
        save_checkpoint(model, hidden, new, link=args.link, beside=args.model)
        files = [str(Path(args.output_dir, file.name)) for file in report.save(hidden)]
    data = {**report.to_dict(), "output_dir": args.output_dir, "coefficients": files}
    return Answer(f"{report}\nsaved: {args.output_dir}", data)


RETOKENIZE = Command(
    summary="give a checkpoint another tokenizer, its rows made of the old ones",
    description="Gives a model the vocabulary of another tokenizer and saves both to a new folder. Every row "
    "is a weighted sum of old rows, by the method of --init; auto takes trans_tokenizer where there is "
    "parallel text or a dictionary, and pieces where there is nothing. Nothing but the token tables is read, "
    "unless --refine or --untie asks for the model.",
    examples=(
        "hf-embinit retokenize path/to/model path/to/tokenizer --output_dir out",
        "hf-embinit retokenize path/to/model path/to/tokenizer --parallel en-de.tsv --output_dir out",
    ),
    add_flags=_retokenize_flags,
    run=_retokenize,
)


def _explain_flags(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="folder that `hf-embinit retokenize` wrote, or its Hub id")
    parser.add_argument("tokens", nargs="+", help="tokens of its tokenizer: their spelling or their text")
    flag(parser, "side", choices=("source", "target"), help="which of two vocabularies")
    flag(parser, "most", type=int, default=10, metavar="N", help="old tokens shown for each (default: 10)")


def _explain(args: Namespace) -> Answer:
    if args.most < 1:
        raise CommandLineError(f"--most {args.most}: expected a positive integer")
    from ..vocabulary import explain_tokens

    found = explain_tokens(args.model, args.tokens, side=args.side)
    lines, data = [], list[dict[str, Any]]()
    for one in found:
        shown = ", ".join(f"{weight.token!r} {weight.value:.3f}" for weight in one.weights[: args.most])
        more = len(one.weights) - args.most
        rest = f" and {more} more" if more > 0 else ""
        rest += ", then scaled to the norm of these rows" if one.scaled else ""
        if one.refined:
            whose = "its output row " if one.step in ("copied", "overlap") and not one.part else ""
            rest += f", {whose}then changed by {one.refined}"
        part = f" ({one.part} rows)" if one.part else ""
        lines.append(f"{one.token!r}{part}: {one.step}{': ' if shown else ''}{shown}{rest}")
        weights = [[weight.token, weight.value] for weight in one.weights]
        told = {"token": one.token, "part": one.part, "step": one.step, "scaled": one.scaled}
        data.append({**told, "refined": one.refined, "weights": weights})
    return Answer("\n".join(lines), data)


EXPLAIN = Command(
    summary="say what the rows of tokens are made of, after retokenize",
    description="Prints for each token the step that made its row (copied by role, overlap, method, pieces, "
    "mean, random) and the old tokens that it is the weighted sum of, the largest weight first.",
    examples=("hf-embinit explain out Straße", "hf-embinit explain out Haus Hund --most 3 --json"),
    add_flags=_explain_flags,
    run=_explain,
)
