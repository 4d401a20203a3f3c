# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]"]
#
# [tool.hf-jobs]
# flavor = "a10g-large"
# timeout = "1d"
# ///
"""Reproduce a table of a paper: run what is missing of its matrix, and write the table beside the paper's.

    python recipes/reproduce.py table1 --dry_run
    python recipes/reproduce.py table1 --only 'multi30k/words-*' --seeds 3 --workers 2
    python recipes/reproduce.py table3 --set num_train_epochs=5 'glove*:vectors=de.300d.txt'
    python recipes/reproduce.py table1 --smoke

`--check` says beforehand which data sets, vectors and models are missing and where they are got; the exit
code is 1 when something is missing, and when a run failed. Give the same command again after an
interruption: finished runs are skipped, half-finished ones go on from their last checkpoint. Several of these
may run at once, on one machine or on many that share --output_dir: no run is started twice. `list` in place
of a table shows all of them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from hf_embinit.training import parse_arguments, run_main


@dataclass
class Arguments:
    """Which table, how much of it, and on what."""

    study: str = field(
        metadata={"help": "Name of the table (`list` shows them), or a .yaml file of your own."}
    )
    output_dir: str = field(
        default="runs/reproduce",
        metadata={
            "help": "Folder for runs/ (shared by all tables) and for <table>/ with what was made of them."
        },
    )
    dry_run: bool = field(
        default=False, metadata={"help": "Print the plan and an estimate of its time; run nothing."}
    )
    check: bool = field(
        default=False,
        metadata={"help": "Print the plan and what the runs read; exit with 1 when any of it is missing."},
    )
    only: list[str] = field(
        default_factory=list,
        metadata={"help": "Patterns of column/row, or of a column or a row alone: 'multi30k/words-*' sst2."},
    )
    seeds: int | None = field(
        default=None, metadata={"help": "Seeds of every cell. Default: as many as the paper's."}
    )
    set: list[str] = field(
        default_factory=list,
        metadata={"help": "argument=value for every run, or pattern:argument=value for some cells; "
                  "named in the table. Several follow one flag: --set a=1 'sst2/*:b=2'."},
    )  # fmt: skip
    max_runs: int | None = field(
        default=None, metadata={"help": "Start at most this many runs; 0 only writes the table."}
    )
    smoke: bool = field(
        default=False, metadata={"help": "Tiny models on embedded data: does all of it work?"}
    )
    retry_failed: bool = field(default=False, metadata={"help": "Run those again that failed twice before."})
    data_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with a sub-folder for each data set. Default: HF_EMBINIT_DATA."},
    )
    workers: int = field(
        default=1, metadata={"help": "Runs at a time on this machine; GPUs are shared evenly."}
    )
    accelerate_config: str | None = field(
        default=None, metadata={"help": "accelerate's config file: DDP, FSDP or DeepSpeed inside each run."}
    )
    slurm: bool = field(default=False, metadata={"help": "Print a SLURM array script for the missing runs."})
    cluster: str | None = field(
        default=None,
        metadata={"help": "Run on a Ray cluster: its address, `auto`, or `local` to start one here."},
    )
    cpus_per_run: float = field(default=1, metadata={"help": "CPUs that a run asks the Ray cluster for."})
    gpus_per_run: float = field(
        default=0, metadata={"help": "GPUs, or a share of one, that a run asks it for."}
    )


def run_missing(args: Arguments, missing: list[Any], launch: Any) -> None:
    """Starts the runs here or on a cluster, and prints how each ended."""
    from hf_embinit.studies import Outcome, run_here, run_on_ray

    done = 0

    def report(outcome: Outcome) -> None:
        nonlocal done
        done += outcome.executed
        print(
            f"[{done}/{len(missing)}] {outcome.status}: {outcome.run.name} {outcome.error}".rstrip(),
            flush=True,
        )

    try:
        if args.cluster is not None:
            run_on_ray(
                missing[: args.max_runs], launch, address=args.cluster, cpus=args.cpus_per_run,
                gpus=args.gpus_per_run, retry_failed=args.retry_failed, report=report,
            )  # fmt: skip
        else:
            run_here(
                missing, launch, workers=args.workers, max_runs=args.max_runs,
                retry_failed=args.retry_failed, report=report,
            )  # fmt: skip
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on from here")


def main() -> None:
    """Plan, run, aggregate, write."""
    words = sys.argv[1:]
    named = words[:1] and not words[0].startswith("-")
    argv = ["--study", *words] if named else words
    (args,) = parse_arguments((Arguments,), lambda known: {}, description=__doc__ or "", argv=argv)
    # after --help, which answers without them
    import os
    import shlex
    from pathlib import Path

    from hf_embinit.errors import InvalidArgumentError
    from hf_embinit.studies import (
        Launch,
        list_requirements,
        list_studies,
        load_study,
        outcome_of,
        plan_text,
        slurm_script,
        write_smoke_files,
        write_study,
    )

    for flag in ("--set", "--only"):
        if words.count(flag) > 1:
            raise InvalidArgumentError(
                f"{flag} is given twice and only the last would count: put all after one"
            )
    if args.study == "list":
        for name in list_studies():
            study = load_study(name)
            print(f"{name:<10} {len(study.runs):>4} runs  {study.title} ({study.file.source})")
        return
    root = Path(args.output_dir).resolve()
    smoke = write_smoke_files(root / "smoke") if args.smoke else None
    study = load_study(args.study, only=args.only, seeds=args.seeds, overrides=args.set, smoke=smoke)
    launch = Launch(
        recipes=Path(__file__).resolve().parent,
        root=root,
        data_dir=args.data_dir,
        accelerate_config=args.accelerate_config,
        threads=max(1, (os.cpu_count() or 1) // args.workers)
        if "OMP_NUM_THREADS" not in os.environ
        else None,
    )
    command = shlex.join(["python", "recipes/reproduce.py", *sys.argv[1:]])
    print(plan_text(study, launch, workers=args.workers, all_runs=args.dry_run or args.check))
    if args.dry_run or args.check:
        found = list_requirements(study, launch)
        print("\n".join(["what the runs read:", *map(str, found)] if found else ["the runs read no files"]))
        sys.exit(args.check and any(entry.found is None for entry in found))
    outcomes = [outcome_of(run, launch) for run in study.runs]
    missing = [
        o.run for o in outcomes if o.status != "finished" and (args.retry_failed or o.status != "failed")
    ]
    if args.slurm:
        kept = [word for word in sys.argv[1:] if word != "--slurm"]
        line = shlex.join([sys.executable, str(Path(__file__).resolve()), *kept])
        print(slurm_script(study.name, line, len(missing), launch.root))
        return

    run_missing(args, missing, launch)
    folder = launch.root / (study.name + ("-smoke" if args.smoke else ""))
    print("\n" + write_study(study, launch, folder, command))
    failed = [o.run.name for run in study.runs if (o := outcome_of(run, launch)).status == "failed"]
    if failed:
        sys.exit(
            f"{len(failed)} of {len(study.runs)} runs failed: {', '.join(failed[:3])}"
            f"{' and others' if failed[3:] else ''}; --retry_failed runs them again"
        )


if __name__ == "__main__":
    run_main(main)
