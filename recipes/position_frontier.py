# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]"]
#
# [tool.hf-jobs]
# flavor = "cpu-upgrade"
# timeout = "1h"
# ///
"""How much of meaning and of position can be read from their sum, for tables in and out of each other's way?

    python recipes/position_frontier.py --vectors glove.6B.300d.txt --analogies questions-words.txt

Kim et al. 2024, Table 4, with more rows: analogies and positions side by side, by number of positions and by
their factor, for the vectors as they are, standardized, turned, emptied (`pretrained_orthogonal`) and
controls. Writes `results.json`, `table.md` and a figure. Files that are not here are looked for in the folder
of HF_EMBINIT_DATA.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from hf_embinit.training import parse_arguments, run_main


def main() -> None:
    """Read, turn, measure, draw, write."""
    from hf_embinit.report import FrontierArguments, measure_frontier

    (args,) = parse_arguments((FrontierArguments,), lambda known: {}, description=__doc__ or "")
    measure_frontier(args, shlex.join(["python", "recipes/position_frontier.py", *sys.argv[1:]]))
    print(Path(args.output_dir, "table.md"))


if __name__ == "__main__":
    run_main(main)
