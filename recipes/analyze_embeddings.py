# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]"]
#
# [tool.hf-jobs]
# flavor = "cpu-upgrade"
# timeout = "1h"
# ///
"""Look at embedding tables: will they hurt as the start of a transformer, why, and what to do instead?

    python recipes/analyze_embeddings.py --sources glove.6B.300d.txt --html
    python recipes/analyze_embeddings.py --sources google-bert/bert-base-cased path/to/model de.vec.gz \\
        --names bert mine fasttext --corpus multi30k:de --language de
    python recipes/analyze_embeddings.py --sources word2vec.bin --analogies questions-words.txt

Checkpoints (folders or Hub ids) and files of vectors in, one page out: `report.md` with its figures (with
`--html`, also `report.html`, one file that needs no network), and `results.json`. The table of a checkpoint
is read from its file by name; no model is built. Files and folders that are not here are looked for in the
folder of HF_EMBINIT_DATA. `hf-embinit analyze` is the same.
"""

from __future__ import annotations

import shlex
import sys

from hf_embinit.report import AnalysisArguments, analyze_embeddings, summary
from hf_embinit.training import parse_arguments, run_main


def main() -> None:
    """Read, count, measure, draw, write."""
    (args,) = parse_arguments((AnalysisArguments,), lambda known: {}, description=__doc__ or "")
    command = shlex.join(["python", "recipes/analyze_embeddings.py", *sys.argv[1:]])
    print(summary(analyze_embeddings(args, command)))


if __name__ == "__main__":
    run_main(main)
