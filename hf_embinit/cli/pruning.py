"""`prune`: a checkpoint in, one with fewer tokens out."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator

from ..errors import DataNotFoundError
from ..files import check_output
from .command import Answer, Command, CommandLineError, flag
from .saving import add_link_flag, add_model_flags, add_output_flag, lines_of, load_tokenizer, open_model

_LINES = 1000


def _prune_flags(parser: ArgumentParser) -> None:
    add_model_flags(parser)
    flag(
        parser,
        "corpus",
        nargs="+",
        metavar="FILE",
        help="text files: what they use is kept, line by line and across lines; of a .jsonl the only text of "
        "each line, or FILE:COLUMN",
    )
    flag(parser, "keep", nargs="+", metavar="TOKEN", default=[], help="tokens that are kept in any case")
    flag(parser, "min_count", type=int, default=1, metavar="N", help="uses that keep a token (default: 1)")
    add_output_flag(parser, "smaller")
    add_link_flag(parser)


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Longer pieces of one text, whose tokens may span lines, as two line ends in a row: cut where neither
    line is empty and the next one is not indented."""
    block: list[str] = []
    for line in lines:
        if len(block) >= _LINES and block[-1].strip() and not line[0].isspace():
            yield "".join(block)
            block = []
        block.append(line)
    if block:
        yield "".join(block)


def _prune(args: Namespace) -> Answer:
    if not args.corpus and not args.keep:
        raise CommandLineError("prune needs --corpus or --keep")
    if args.min_count < 1:
        raise CommandLineError(f"--min_count {args.min_count}: expected a positive integer")
    check_output(args.output_dir)
    from transformers.utils.logging import tqdm

    from ..tables import save_checkpoint
    from ..vocabulary import prune_vocabulary, used_tokens

    tokenizer = load_tokenizer(args)
    corpus = args.corpus or []
    blocks = (block for file in corpus for block in _blocks(lines_of([file], "corpus")))
    used: set[int] = set()
    for texts, unit in ((lines_of(corpus, "corpus"), "line"), (blocks, "block")):
        with tqdm(texts, desc="Splitting", unit=unit, disable=None, delay=1) as bar:
            used |= used_tokens(tokenizer, bar, min_count=args.min_count)
    if used <= set(tokenizer.all_special_ids) and not args.keep:  # these are around an empty text, too
        raise DataNotFoundError(
            f"--corpus {' '.join(corpus)} uses no token at least {args.min_count} times (--min_count)"
        )
    model = open_model(args)
    before = sum(p.numel() for p in model.parameters())
    report = prune_vocabulary(model, tokenizer, [*sorted(used), *args.keep])
    after = sum(p.numel() for p in model.parameters())
    save_checkpoint(model, args.output_dir, tokenizer, link=args.link, beside=args.model)
    text = f"{report}\nparameters {before:,} -> {after:,}\nsaved: {args.output_dir}"
    data = {**report.to_dict(), "parameters": [before, after], "output_dir": args.output_dir}
    return Answer(text, data)


PRUNE = Command(
    summary="drop the tokens that a corpus does not use, and save the smaller model",
    description="Drops tokens from a tokenizer and their rows from every table of its model, and saves both "
    "to a new folder. Texts whose tokens are all kept are split as before and give the same logits for them; "
    "other texts are split into what is left. Special tokens, what a chat template writes, bytes and what "
    "merges need stay.",
    examples=(
        "hf-embinit prune path/to/model --corpus german.txt --output_dir german",
        "hf-embinit prune path/to/model --corpus notes.txt --keep yes no --min_count 5 --output_dir small",
    ),
    add_flags=_prune_flags,
    run=_prune,
)
