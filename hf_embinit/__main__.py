"""The command line: `python -m hf_embinit list "glove*"`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from .errors import EmbinitError
from .initializers import list_initializers
from .manifest import read_manifest
from .runs.aggregate import read_records, results_table

EXAMPLES = """examples:
  python -m hf_embinit list "glove*"
  python -m hf_embinit results recipes/results/translate
  python -m hf_embinit manifest runs/translate/captions-words-glove_xavier-seed42
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 0 when it did what was asked, 1 for an error, 2 for a command line that cannot be
    read."""
    parser = argparse.ArgumentParser(
        prog="python -m hf_embinit",
        description="Where token embeddings come from.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="list the initialisers, one a line")
    listing.add_argument("pattern", nargs="?", default="*", help="shell pattern of names, such as 'glove*'")
    manifest = commands.add_parser("manifest", help="print how the rows of a checkpoint were initialised")
    manifest.add_argument("model", help="folder or Hub id of a checkpoint")
    results = commands.add_parser("results", help="print finished runs as one Markdown table")
    results.add_argument("folder", help="folder with finished runs in it, at any depth")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "list":
            for record in list_initializers(arguments.pattern):
                print(f"{record.name:<18} {record.summary} ({record.source})")
        elif arguments.command == "results":
            print(results_table(read_records(arguments.folder)), end="")
        else:
            print(json.dumps(read_manifest(arguments.model), indent=2, ensure_ascii=False))
    except EmbinitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
