"""`init`, `expand` and `surgery`: a checkpoint in, a changed checkpoint out."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from ..files import check_output
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

if TYPE_CHECKING:
    from ..vocabulary import Slots


def _init_flags(parser: ArgumentParser) -> None:
    add_model_flags(parser)
    flag(parser, "init", required=True, metavar="NAME", help="initialiser; `hf-embinit list` has them all")
    add_output_flag(parser)
    flag(
        parser,
        "vectors",
        help="file of vectors, GGUF file, checkpoint folder or Hub id that the rows come from",
    )
    flag(parser, "target_vectors", help="the same for the decoder's own vocabulary (default: --vectors)")
    flag(
        parser,
        "config_only",
        action="store_true",
        help="start from the model's config alone: all other weights are drawn anew, from --seed",
    )
    add_link_flag(parser)
    add_options(parser, "initialiser")


def _init(args: Namespace) -> Answer:
    from ..initialization import initialize
    from ..initializers import table_initializer
    from ..tables import checkpoint_of, folder_of, save_checkpoint

    check_output(args.output_dir)
    if args.link and args.config_only:
        raise CommandLineError("--link keeps files as they are, but --config_only draws all weights anew")
    options = read_options(args.option)
    record = table_initializer(args.init)
    record.check_options(options)
    tokenizer = load_tokenizer(args, required="tokens" in record.needs)
    model = load_model(args, config_only=True) if args.config_only else open_model(args)
    report = initialize(
        model,
        args.init,
        tokenizer=tokenizer,
        vectors=args.vectors,
        target_vectors=args.target_vectors,
        seed=args.seed,
        allow_pickle=args.allow_pickle,
        **options,
    )
    if checkpoint_of(model) is not None and args.tokenizer is None:
        tokenizer = None  # its files are copied as they are
    beside = folder_of(args.model, model) if args.config_only else args.model  # no weight of it is kept
    save_checkpoint(model, args.output_dir, tokenizer, link=args.link, beside=beside)
    return _saved(str(report), report.to_dict(), args.output_dir)


INIT = Command(
    summary="fill a model's embedding tables by an initialiser, and save it",
    description="Fills a model's input embedding tables by a named initialiser, and writes model and "
    "tokenizer to a new folder. All other weights are copied unread, or drawn anew with --config_only: the "
    "start of a training from scratch.",
    examples=(
        "hf-embinit init google-bert/bert-base-uncased --init xavier --config_only --output_dir start",
        "hf-embinit init path/to/model --init glove_xavier --vectors glove.840B.300d.zip --output_dir start",
    ),
    add_flags=_init_flags,
    run=_init,
)


def _expand_flags(parser: ArgumentParser) -> None:
    add_model_flags(parser)
    tokens = parser.add_mutually_exclusive_group(required=True)
    flag(tokens, "tokens", nargs="+", metavar="TOKEN", help="the new tokens")
    flag(
        tokens,
        "tokens_file",
        metavar="FILE",
        help="text file with one new token a line, or a list in YAML or JSON whose entries have a name and, "
        "if they like, a description, like (an old token) or init of their own",
    )
    flag(parser, "init", default="mean", metavar="NAME", help="of their rows (default: mean)")
    add_output_flag(parser, required=False)
    flag(parser, "dry_run", action="store_true", help="say what would be done, and save nothing")
    flag(parser, "vectors", help="vectors for initialisers that read them, such as pretrained_map")
    add_data_flags(parser)
    flag(
        parser,
        "pad_to_multiple_of",
        type=int,
        metavar="N",
        help="make the number of rows a multiple of this; the rows that nobody uses are initialised too",
    )
    flag(
        parser,
        "slots",
        nargs="+",
        metavar="ID",
        help="`reserved` renames unused tokens such as <unused3> to the new ones, so that no table changes "
        "its shape; or the ids of the tokens to rename",
    )
    flag(
        parser,
        "measure",
        action="store_true",
        help="measure how far the new rows move the model's predictions on texts of its own, for which it is "
        "run 17 times, layer by layer from its files (loaded with quantised weights and without accelerate)",
    )
    add_link_flag(parser)
    add_options(parser, "initialiser")


def _expand(args: Namespace) -> Answer:
    if not args.dry_run and args.output_dir is None:
        raise CommandLineError("expand needs --output_dir (or --dry_run)")
    if args.dry_run and args.measure:
        raise CommandLineError("--measure compares the model before and after, but --dry_run makes no rows")
    if args.output_dir is not None:
        check_output(args.output_dir)
    options = read_options(args.option)
    slots = _read_slots(args.slots)
    from ..rows import check_init
    from ..tables import save_checkpoint
    from ..vocabulary import expand_vocabulary, read_tokens_file

    tokens, overrides = (args.tokens, {}) if args.tokens else read_tokens_file(args.tokens_file)

    check_init(args.init, options)
    tokenizer = load_tokenizer(args)
    model = open_model(args, tables_only=args.dry_run)
    report = expand_vocabulary(
        model,
        tokenizer,
        tokens,
        init=args.init,
        seed=args.seed,
        overrides=overrides,
        prefixes="generated" if args.measure else (),
        dry_run=args.dry_run,
        pad_to_multiple_of=args.pad_to_multiple_of,
        vectors=args.vectors,
        **read_data(args),
        slots=slots,
        **options,
    )
    if args.dry_run:
        return Answer(str(report), report.to_dict())
    save_checkpoint(model, args.output_dir, tokenizer, link=args.link, beside=args.model)
    text = str(report)
    if args.measure and report.shift is None:
        text += f"\n  --measure measured nothing: {type(model).__name__} gives no distribution over tokens"
    return _saved(text, report.to_dict(), args.output_dir)


def _read_slots(given: list[str] | None) -> Slots | None:
    if given is None or given == ["reserved"]:
        return None if given is None else "reserved"
    for text in given:
        if not text.isdecimal():
            raise CommandLineError(f"--slots {text}: expected the word reserved, or ids of tokens")
    return [int(text) for text in given]


EXPAND = Command(
    summary="add tokens to a model and its tokenizer, and save both",
    description="Adds tokens to a tokenizer and rows for them to every table of its model, writes both to a "
    "new folder, and prints what the new rows are made of, beside Hewitt's bound log(1 + m/n) on how far the "
    "rows `mean` can move the model's predictions. Only the tables are read, all other weights are copied; "
    "with --measure the KL divergence to the model before is measured.",
    examples=(
        "hf-embinit expand openai-community/gpt2 --tokens Aragorn Frodo --init subword_mean --output_dir new",
        "hf-embinit expand path/to/model --tokens_file tokens.yaml --dry_run",
        "hf-embinit expand path/to/model --tokens '<tool>' --slots reserved --output_dir same_size",
        "hf-embinit expand path/to/model --tokens_file words.txt --output_dir new --measure",
    ),
    add_flags=_expand_flags,
    run=_expand,
)


def _surgery_flags(parser: ArgumentParser) -> None:
    add_model_flags(parser, required=False)
    parser.add_argument(
        "surgery", nargs="?", help="an intervention, or several joined by +, done in turn from the left"
    )
    flag(parser, "list", action="store_true", help="list the interventions and their options, and stop")
    add_link_flag(parser)
    add_output_flag(parser, required=False)
    add_options(parser, "intervention")


def _surgery(args: Namespace) -> Answer:
    if not args.list:
        for name, value in (("a model", args.model), ("an intervention", args.surgery)):
            if value is None:
                raise CommandLineError(f"surgery needs {name}: `hf-embinit surgery --list` has the names")
        if args.output_dir is None:
            raise CommandLineError("surgery needs --output_dir")
        check_output(args.output_dir)
    from .. import surgery
    from ..tables import save_checkpoint

    if args.list:
        return _interventions(surgery.list())
    options = read_options(args.option)
    tokenizer = load_tokenizer(args, required=False)
    surgery.check(args.surgery, tokenizer, **options)
    on_disk = surgery.changes_tables_alone(args.surgery)
    if args.link and not on_disk:
        raise CommandLineError(f"--link keeps files as they are, but {args.surgery} changes more than tables")
    model = open_model(args) if on_disk else load_model(args)
    before = len(getattr(model.config, "embinit", None) or [])
    surgery.apply(model, args.surgery, tokenizer=tokenizer, seed=args.seed, **options)
    steps = args.surgery.split("+")
    if any(record.brings_tokenizer and record.name in steps for record in surgery.list()):
        tokenizer = load_tokenizer(args, other=("donor", options["donor"]))
    save_checkpoint(model, args.output_dir, tokenizer, link=args.link, beside=args.model)
    parameters = sum(p.numel() for p in model.parameters())
    text = f"{args.surgery} (seed {args.seed}): {type(model).__name__} with {parameters:,} parameters"
    events = model.config.embinit[before:]
    return _saved(text, {"parameters": parameters, "events": events}, args.output_dir)


def _interventions(records: list[Any]) -> Answer:
    lines = []
    for record in records:
        options = f"; options: {', '.join(sorted(record.options))}" if record.options else ""
        lines.append(f"{record.name:<20} {record.summary} ({record.reference}){options}")
    lines.append("Initialisers of whole tables (`hf-embinit list --purpose table`) are interventions, too.")
    data = [
        {
            "name": record.name,
            "summary": record.summary,
            "source": record.reference,
            "needs_tokenizer": record.needs_tokenizer,
            "options": sorted(record.options),
        }
        for record in records
    ]
    return Answer("\n".join(lines), data)


SURGERY = Command(
    summary="take a pre-trained model apart: layers, weights, embeddings",
    description="Applies interventions (Zhang 2021) to a pre-trained model, and saves model and tokenizer "
    "to a new folder: layers in another order or taken out, weights re-drawn or permuted, word embeddings "
    "shuffled, re-drawn or taken from another model.",
    examples=(
        "hf-embinit surgery --list",
        "hf-embinit surgery google-bert/bert-base-uncased reversed+shuffled_embeddings --output_dir changed",
    ),
    add_flags=_surgery_flags,
    run=_surgery,
)


def _saved(text: str, data: dict[str, Any], folder: str) -> Answer:
    return Answer(f"{text}\nsaved: {folder}", {**data, "output_dir": folder})
