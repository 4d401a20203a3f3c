# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]"]
#
# [tool.hf-jobs]
# flavor = "cpu-basic"
# timeout = "15m"
# ///
"""How much of a tokenizer's vocabulary looks like English, and how much of that another vocabulary has.

    python recipes/compare_vocabularies.py --tokenizer google-bert/bert-base-chinese

Counts word-pieces that match `(##)?[A-Za-z]+`, and those of them that the reference has too, spelled the
same, as Zhang 2021 does in Table 2. Pieces of byte-level and SentencePiece tokenizers count in WordPiece's
spelling. Writes `results.json`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from hf_embinit.arguments import Seed, Text
from hf_embinit.training import flag, parse_arguments, run_main


@dataclass
class Arguments:
    """The vocabularies."""

    tokenizer: str = flag("google-bert/bert-base-chinese", "Hub id or folder of a tokenizer.")
    reference: str = flag("google-bert/bert-base-uncased", "Hub id or folder of the one compared with.")
    output_dir: Text = flag("runs/compare_vocabularies", "Folder for results.json.")
    seed: Seed = flag(0, "Changes nothing: nothing is drawn at random.")


def main() -> None:
    """Read, count, write."""
    (args,) = parse_arguments((Arguments,), lambda known: {}, description=__doc__ or "")
    # after --help, which answers without them
    from hf_embinit.hub import load_pretrained_tokenizer
    from hf_embinit.measures import vocabulary_overlap
    from hf_embinit.records import check_report_folder, collect_versions, device_name, write_json
    from hf_embinit.tasks import texts_digest
    from hf_embinit.tokens import token_family, vocabulary

    check_report_folder(args.output_dir, "overlap")
    both = [load_pretrained_tokenizer(getattr(args, name), f"--{name} {getattr(args, name)!r}")
            for name in ("tokenizer", "reference")]  # fmt: skip
    own, reference = ((vocabulary(tokenizer), token_family(tokenizer)) for tokenizer in both)
    overlap = asdict(vocabulary_overlap(*own, *reference))
    data = {name: {"rows": len(tokens), "sha256": texts_digest(tokens)}
            for name, (tokens, _) in (("tokenizer", own), ("reference", reference))}  # fmt: skip
    results = {
        "dataset": "vocabularies",
        "arguments": asdict(args),
        "data": data,
        "overlap": overlap,
        "runtime": {"device": device_name("cpu")},
        "versions": collect_versions(),
    }
    write_json(Path(args.output_dir) / "results.json", results)
    print("\n".join(f"{name.replace('_', ' '):<24} {number:>8,}" for name, number in overlap.items()))


if __name__ == "__main__":
    run_main(main)
