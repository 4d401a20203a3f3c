"""`results`, `compare` and `publish`: finished runs and published checkpoints."""

from __future__ import annotations

import logging
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataNotFoundError
from .command import Answer, Command, CommandLineError, flag

if TYPE_CHECKING:
    from ..records import RunRecord

logger = logging.getLogger(__name__)


def _results_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="folder with finished runs in it, at any depth, or Hub id (user/name) of a published run",
    )


def _results(args: Namespace) -> Answer:
    from ..records import results_table

    records = [record for source in args.sources for record in _records(source)]
    return Answer(results_table(records).rstrip("\n"), [record.to_dict() for record in records])


def _records(source: str) -> list[RunRecord]:
    from ..hub import hub_file
    from ..records import RESULTS_NAME, find_records, read_record

    if Path(source).exists():
        records, others = find_records(source)
        for name in others:  # a report's numbers, say
            logger.warning("%s is left out: it is no complete record of a run", Path(source) / name)
        return list(records.values())
    results_file = hub_file(
        source, RESULTS_NAME, way_out="Give a folder of finished runs, or the id of a published one."
    )
    if results_file is None:
        raise DataNotFoundError(f"the repository {source!r} has no {RESULTS_NAME}: it holds no published run")
    return [read_record(results_file)]


RESULTS = Command(
    summary="print finished runs as one table",
    description="Gathers the records (results.json) of finished runs, here or published, into one Markdown "
    "table: runs that differ in nothing but the seed share a row, with mean and sample standard deviation. "
    "--json prints the records themselves.",
    examples=(
        "hf-embinit results recipes/results/translate",
        "hf-embinit results runs/translate user/translate-multi30k-glove_xavier",
    ),
    add_flags=_results_flags,
    run=_results,
)


def _compare_flags(parser: ArgumentParser) -> None:
    for name in ("a", "b"):
        parser.add_argument(name, help="folder or Hub id of a checkpoint, GGUF file, or file of vectors")
    flag(parser, "k", type=int, default=10, help="nearest neighbors compared, in tokens (default: 10)")
    flag(parser, "table", help="name or pattern of the tensor in both, for models with several tables")
    flag(
        parser,
        "revisions",
        nargs=2,
        metavar=("A", "B"),
        default=(None, None),
        help="branches, tags or commits of the two Hub ids",
    )
    flag(parser, "allow_pickle", action="store_true", help="read checkpoints that have no safetensors")


def _compare(args: Namespace) -> Answer:
    import hf_embinit

    comparison = hf_embinit.compare(
        args.a,
        args.b,
        k=args.k,
        table=args.table,
        revisions=tuple(args.revisions),
        allow_pickle=args.allow_pickle,
    )
    return Answer(str(comparison), comparison.to_dict())


COMPARE = Command(
    summary="put the embeddings of two checkpoints side by side",
    description="Compares the input embeddings of two checkpoints: how far they agree on the neighbors of "
    "their shared tokens (KNN match similarity), their statistics, and how each came about.",
    examples=(
        "hf-embinit compare runs/a runs/b",
        "hf-embinit compare user/name user/name --revisions init main --json",
    ),
    add_flags=_compare_flags,
    run=_compare,
)


def _publish_flags(parser: ArgumentParser) -> None:
    parser.add_argument("run_folder", help="folder of a finished run; with --all, of any number of them")
    parser.add_argument(
        "repo_id",
        nargs="?",
        help="Hub repository, user/name, made if it is not there; with --all its owner alone",
    )
    flag(
        parser, "all", action="store_true", help="every run below the folder, and their scores as a data set"
    )
    flag(
        parser,
        "collection",
        nargs="?",
        const="Token embeddings",
        metavar="TITLE",
        help="put all of it into the collection of this title (default: %(const)s)",
    )
    flag(
        parser,
        "private",
        action=BooleanOptionalAction,
        help="make a new repository private, or public (default: as the account has it)",
    )
    flag(parser, "token", help="access token (default: the one of `hf auth login`, or HF_TOKEN)")
    flag(
        parser,
        "license",
        help="of the weights, as the Hub spells it: apache-2.0, ... (default: what the card there says)",
    )
    flag(parser, "overwrite", action="store_true", help="replace what another run published under this name")
    flag(parser, "dry_run", action="store_true", help="list what would be sent, and ask nobody")


def _publish(args: Namespace) -> Answer:
    import hf_embinit

    if {"--private", "--no-private"} <= set(args.command_line):
        raise CommandLineError("--private --no-private: leave one of them out")
    if args.all:
        return _publish_all(args)
    if args.collection:
        raise CommandLineError(f"--collection {args.collection}: only --all makes a collection, of its runs")
    if args.repo_id is None:
        raise CommandLineError(
            f"publish {args.run_folder}: the repository is missing, such as user/name (or give --all)"
        )
    if args.dry_run:
        from ..cards import planned_files

        plan = planned_files(args.run_folder, args.repo_id, args.license)
        lines = [
            f"{size:>14,}  {name}: {path}" for name, files in plan.items() for path, size in files.items()
        ]
        return Answer("\n".join([f"{'bytes':>14}  branch of {args.repo_id}: file", *lines]), plan)
    publication = hf_embinit.publish(
        args.run_folder,
        args.repo_id,
        private=args.private,
        token=args.token,
        license=args.license,
        overwrite=args.overwrite,
    )
    return Answer(str(publication), asdict(publication))


def _publish_all(args: Namespace) -> Answer:
    import hf_embinit

    if args.dry_run:
        from ..cards import planned_runs

        plan = planned_runs(args.run_folder, args.repo_id, args.license)
        lines = [f"{'bytes':>14}  repository", *(f"{n:>14,}  {name}" for name, n in plan["models"].items())]
        if results := plan["results"]:
            lines.append(
                f"{results['bytes']:>14,}  {results['repository']} (scores of {results['runs']} runs)"
            )
        lines += [f"{'not published':>14}  {run}: {reason}" for run, reason in plan["failed"].items()]
        if plan["without_weights"]:
            lines.append(f"{'record alone':>14}  {len(plan['without_weights'])} runs without weights")
        return Answer("\n".join(lines), plan, 1 if plan["failed"] else 0)
    done = hf_embinit.publish_all(
        args.run_folder,
        args.repo_id,
        collection=args.collection,
        private=args.private,
        token=args.token,
        license=args.license,
        overwrite=args.overwrite,
    )
    return Answer(str(done), asdict(done), 1 if done.failed else 0)


PUBLISH = Command(
    summary="put finished runs on the Hub",
    description="Publishes a run folder as one repository: the trained model on `main`, the initialised one "
    "(before step 1) as the revision `init`, tokenizer, record, figures and card; or a checkpoint whose rows "
    "hf_embinit made, with a card that says how. A failure leaves the "
    "repository as it was, and running it again is safe. Only files that the run listed (files.json) are "
    "sent. With --all every run below the folder becomes a repository named like its folder, and their "
    "scores the data set hf-embinit-results. HF_HUB_DOWNLOAD_TIMEOUT says how many seconds the Hub is waited "
    "for.",
    examples=(
        "hf-embinit publish runs/translate/captions-words-glove_xavier-seed42 user/name --private",
        "hf-embinit publish runs/translate/captions-words-glove_xavier-seed42 user/name --dry_run",
        "hf-embinit publish runs --all --collection --dry_run",
        "hf-embinit publish runs my-lab --all --collection 'Embeddings of my lab'",
    ),
    add_flags=_publish_flags,
    run=_publish,
)
