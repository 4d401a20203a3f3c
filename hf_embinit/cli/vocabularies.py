"""`merge` makes a plain checkpoint of a base and an adapter; `doctor` checks a checkpoint."""

from __future__ import annotations

import contextlib
import re
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataNotFoundError, EmbinitError, InvalidArgumentError, UnsupportedModelError
from ..files import check_output
from ..foreign import reason
from .command import Answer, Command, CommandLineError, add_options, flag, read_options
from .saving import (
    add_link_flag,
    add_model_flags,
    add_output_flag,
    load_model,
    load_tokenizer,
    open_model,
)

if TYPE_CHECKING:
    from ..vocabulary import Finding


def _merge_flags(parser: ArgumentParser) -> None:
    add_model_flags(parser)
    parser.add_argument("adapter", help="folder or Hub id of a PEFT adapter")
    add_output_flag(parser, "merged")
    add_link_flag(parser)


def _merge(args: Namespace) -> Answer:
    check_output(args.output_dir)
    from ..manifest import read_manifest
    from ..tables import checkpoint_of, configured_tie, save_checkpoint

    loaded = ""
    try:
        old, merged, tokenizer = _merged(open_model(args), args)
    except UnsupportedModelError as error:
        if args.link:
            raise
        loaded = f"loaded the base: {str(error).rpartition(': ')[0]}\n"
        old, merged, tokenizer = _merged(load_model(args), args)
    save_checkpoint(merged, args.output_dir, tokenizer, link=args.link, beside=args.model)
    new = merged.get_input_embeddings().num_embeddings
    tied = bool(configured_tie(merged.config))
    text = f"{loaded}{args.adapter} merged into {args.model}: rows {old} -> {new}, tie_word_embeddings={tied}"
    data = {
        "rows": [old, new],
        "tie_word_embeddings": tied,
        "on_disk": checkpoint_of(merged) is not None,
        "events": read_manifest(merged),
        "output_dir": args.output_dir,
    }
    return Answer(f"{text}\nsaved: {args.output_dir}", data)


def _merged(model: Any, args: Namespace) -> tuple[int, Any, Any]:
    """The rows of a base, what it is with the adapter in it, and the tokenizer of both."""
    from ..manifest import warn_of_another_tokenizer
    from ..vocabulary import merge_adapter

    old = model.get_input_embeddings().num_embeddings
    _check_adapter(args)
    adapted, own = _with_adapter(model, args.adapter), _brings_tokenizer(args.adapter)
    if own and args.tokenizer is None:  # it knows the new tokens
        tokenizer = load_tokenizer(args, other=("the tokenizer of the adapter", args.adapter))
    else:
        tokenizer = load_tokenizer(args, required=False)
    if own:
        return old, merge_adapter(adapted, tokenizer), tokenizer
    warn_of_another_tokenizer(model, tokenizer)
    return old, merge_adapter(adapted), tokenizer


def _check_adapter(args: Namespace) -> None:
    """Raises `DataNotFoundError` for what is no adapter, and for one whose weights are a pickle without
    `--allow_pickle`."""
    from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME

    from ..hub import checkpoint_file

    if checkpoint_file(args.adapter, CONFIG_NAME) is None:
        raise DataNotFoundError(
            f"{args.adapter} has no {CONFIG_NAME}: give an adapter that PEFT has saved, a folder or a Hub id"
        )
    if args.allow_pickle or _has(args.adapter, SAFETENSORS_WEIGHTS_NAME):
        return
    if _has(args.adapter, WEIGHTS_NAME):
        raise DataNotFoundError(
            f"{args.adapter} has its weights as a pickle, {WEIGHTS_NAME}, which can run code: if you trust "
            f"its author, give --allow_pickle"
        )


def _with_adapter(model: Any, adapter: str) -> Any:
    """The base with its adapter; one that came without a vocabulary is loaded as PEFT does."""
    from ..vocabulary import attach_adapter, check_nothing_left_out, load_adapter

    try:
        try:
            return load_adapter(model, adapter)
        except DataNotFoundError:
            attached = attach_adapter(model, adapter)
    except EmbinitError:
        raise
    except Exception as error:  # PEFT's, of whatever kind
        held = model.get_input_embeddings().num_embeddings
        rows = isinstance(error, IndexError) or any(
            str(held) in re.findall(r"\d+", shape)
            for shape in re.findall(r"current model is torch\.Size\(\[(.*?)\]\)", str(error))
        )
        way_out = (
            "it was trained on a base with more rows: have its program call "
            "hf_embinit.save_vocabulary(model, folder), or give that base"
            if rows
            else "give an adapter's folder or Hub id, and the model that it was trained on"
        )
        raise InvalidArgumentError(
            f"{adapter} cannot be loaded onto this base ({reason(error)}): {way_out}"
        ) from error
    check_nothing_left_out(attached, adapter)
    return attached


def _brings_tokenizer(adapter: str) -> bool:
    from ..vectors import has_tokenizer

    place = Path(adapter)
    return has_tokenizer(place) if place.is_dir() else _has(adapter, "tokenizer_config.json")


def _has(adapter: str, name: str) -> bool:
    """Whether an adapter has a file of this name, as far as can be told."""
    from ..hub import checkpoint_file

    with contextlib.suppress(DataNotFoundError):  # not in the cache, and no Hub to ask
        return checkpoint_file(adapter, name) is not None
    return False


MERGE = Command(
    summary="put an adapter into its base model, new tokens included",
    description="Grows a base model by the vocabulary that a PEFT adapter carries, merges the adapter, and "
    "saves a plain checkpoint with its tokenizer to a new folder. LoRA, trained rows and modules that are "
    "saved whole are merged one tensor after the other while the base's files are copied; for any other "
    "adapter the base is loaded, which the answer says. A head that was trained apart from a tied embedding "
    "is saved apart, and the config says so.",
    examples=(
        "hf-embinit merge path/to/base path/to/adapter --output_dir merged",
        "hf-embinit merge path/to/base path/to/new_rows --output_dir merged --link",
    ),
    add_flags=_merge_flags,
    run=_merge,
)


def _doctor_flags(parser: ArgumentParser) -> None:
    add_model_flags(parser)
    flag(
        parser,
        "fix",
        metavar="FOLDER",
        help="refill rows of tokens that are zero or not finite, and save the checkpoint to this new folder",
    )
    flag(
        parser,
        "refill",
        nargs="+",
        metavar="CODE",
        help="with --fix: refill the rows of these findings instead, such as equal_rows or under_trained",
    )
    flag(parser, "init", metavar="NAME", help="with --fix: initialiser of the rows (default: mean)")
    flag(
        parser, "vectors", help="with --fix: vectors for initialisers that read them, such as pretrained_map"
    )
    add_link_flag(parser)
    add_options(parser, "initialiser")


def _doctor(args: Namespace) -> Answer:
    init, options = args.init or "mean", read_options(args.option)
    if args.fix is not None:
        check_output(args.fix, "--fix")
    if args.link and args.fix is None:
        raise CommandLineError("--link is for what --fix writes: give --fix FOLDER, too")
    for name in ("refill", "init", "vectors", "option") if args.fix is None else ():
        if getattr(args, name):
            raise CommandLineError(f"--{name} says how --fix refills rows: give --fix FOLDER, too")
    from ..rows import check_init
    from ..tables import save_checkpoint
    from ..vocabulary import doctor, repair

    check_init(init, options)
    tokenizer = load_tokenizer(args) if args.tokenizer is not None else None
    trust = {"trust_remote_code": args.trust_remote_code, "allow_pickle": args.allow_pickle}
    found = doctor(args.model, tokenizer, **trust)
    lines = [str(finding) for finding in found] or ["nothing found"]
    data: dict[str, Any] = {"findings": [finding.to_dict() for finding in found]}
    if args.fix is not None:
        if (Path(args.model) / "adapter_config.json").is_file():
            raise InvalidArgumentError(
                f"--fix refills rows of a checkpoint, and {args.model} is an adapter: merge it first"
            )
        chosen = _chosen(found, args.refill)
        model, tokenizer = open_model(args), load_tokenizer(args, required=False)
        how = {"init": init, "seed": args.seed, "vectors": args.vectors, **options}
        data["repaired"] = repair(model, tokenizer, findings=chosen, **how)
        save_checkpoint(model, args.fix, tokenizer, link=args.link, beside=args.model)
        lines.append(f"refilled {len(data['repaired'])} rows, saved: {args.fix}")
    codes = {"error": 4, "warning": 3}
    return Answer("\n".join(lines), data, max((codes.get(f.severity, 0) for f in found), default=0))


def _chosen(found: list[Finding], codes: list[str] | None) -> list[Finding]:
    """The findings with these codes, else those whose rows are refilled unasked."""
    known = sorted({finding.code for finding in found if finding.rows})
    for code in codes or ():
        if code not in known:
            there = ", ".join(known) or "none"
            raise InvalidArgumentError(f"--refill {code}: no finding here with rows has this code: {there}")
    return [f for f in found if (f.refill if codes is None else f.code in codes)]


DOCTOR = Command(
    summary="say what is wrong between a model's tables, config and tokenizer",
    description="Reads a checkpoint and prints one line a finding, worst first, with what to do: sizes that "
    "disagree, ids beyond the rows, ties that config and tensors tell differently, rows that were never "
    "trained, tokenizers that split differently once saved. The exit code is 4 when something is broken, 3 "
    "when something is worth a look.",
    examples=(
        "hf-embinit doctor path/to/model",
        "hf-embinit doctor path/to/model --fix repaired --refill equal_rows --init mean_cov",
    ),
    add_flags=_doctor_flags,
    run=_doctor,
)
