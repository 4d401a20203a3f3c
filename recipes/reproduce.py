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

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from hf_embinit.arguments import Count, CountOrZero, NotNegative, Text
from hf_embinit.errors import InvalidArgumentError
from hf_embinit.training import flag, parse_arguments, run_main


@dataclass
class Arguments:
    """Which table, how much of it, and on what."""

    study: str = field(
        metadata={"help": "Name of the table (`list` shows them), or a .yaml file of your own."}
    )
    output_dir: Text = flag(
        "runs/reproduce",
        "Folder for runs/ (shared by all tables) and for <table>/ with what was made of them.",
    )
    dry_run: bool = flag(False, "Print the plan and an estimate of its time; run nothing.")
    check: bool = flag(False, "Print the plan and what the runs read; exit with 1 when any of it is missing.")
    only: list[str] = flag(
        [], "Patterns of column/row, or of a column or a row alone: 'multi30k/words-*' sst2."
    )
    seeds: Count | None = flag(None, "Seeds of every cell. Default: as many as the paper's.")
    set: list[str] = flag(
        [],
        "argument=value for every run, or pattern:argument=value for some cells; named in the table. "
        "Several follow one flag: --set a=1 'sst2/*:b=2'.",
    )
    max_runs: CountOrZero | None = flag(None, "Start at most this many runs; 0 only writes the table.")
    smoke: bool = flag(False, "Tiny models on embedded data: does all of it work?")
    retry_failed: bool = flag(False, "Run those again that failed before.")
    data_dir: str | None = flag(
        None,
        "Folder with a sub-folder for each data set; runs on another one are other runs. Default: "
        "HF_EMBINIT_DATA.",
    )
    workers: Count = flag(1, "Runs at a time on this machine; GPUs are shared evenly.")
    accelerate_config: str | None = flag(
        None, "accelerate's config file: DDP, FSDP or DeepSpeed inside each run; other ones make other runs."
    )
    slurm: bool = flag(False, "Print a SLURM array script for the missing runs.")
    cluster: str | None = flag(
        None, "Run on a Ray cluster: its address, `auto`, or `local` to start one here."
    )
    cpus_per_run: NotNegative = flag(1, "CPUs that a run asks the Ray cluster for.")
    gpus_per_run: NotNegative = flag(0, "GPUs, or a share of one, that a run asks it for.")


def main() -> None:
    """Plan, run, aggregate, write."""
    words = sys.argv[1:]
    named = words[:1] and not words[0].startswith("-")
    argv = ["--study", *words] if named else words
    (args,) = parse_arguments((Arguments,), lambda known: {}, description=__doc__ or "", argv=argv)
    # after --help, which answers without them
    from hf_embinit import studies

    if args.study == "list":
        print(studies.list_text())
        return
    share = {"cpus": args.cpus_per_run, "gpus": args.gpus_per_run}
    if args.cluster is None and share != {"cpus": 1, "gpus": 0}:
        raise InvalidArgumentError("--cpus_per_run and --gpus_per_run are of a Ray cluster: give --cluster")
    root = Path(args.output_dir).resolve()
    smoke = studies.write_smoke_files(root / "smoke") if args.smoke else None
    study = studies.load_study(args.study, only=args.only, seeds=args.seeds, overrides=args.set, smoke=smoke)
    launch = studies.Launch(
        recipes=Path(__file__).resolve().parent,
        root=root,
        data_dir=args.data_dir,
        accelerate_config=args.accelerate_config,
        threads=studies.threads_of_a_run(args.workers),
    )
    studies.check_flags(study, launch)
    print(studies.plan_text(study, launch, workers=args.workers, all_runs=args.dry_run or args.check))
    if args.dry_run or args.check:
        found = studies.list_requirements(study, launch)
        print("\n".join(["what the runs read:", *map(str, found)] if found else ["the runs read no files"]))
        sys.exit(args.check and any(entry.found is None for entry in found))
    missing = studies.missing_runs(study, launch, retry_failed=args.retry_failed)
    if args.slurm:
        at = next(i for i, word in enumerate(words) if word.partition("=")[0] == "--slurm")
        valued = words[at] == "--slurm" and not [*words, "-"][at + 1].startswith("-")
        kept = [*words[:at], *words[at + 1 + valued :]]
        command = shlex.join([sys.executable, str(Path(__file__).resolve()), *kept])
        print(studies.slurm_script(study.name, command, len(missing), launch.root))
        return

    ended = []

    def report(outcome: studies.Outcome) -> None:
        ended.extend([outcome] if outcome.executed else [])
        told = f"{outcome.status}: {outcome.run.name} {outcome.error}".rstrip()
        print(f"[{len(ended)}/{len(missing)}] {told}", flush=True)

    how = {"max_runs": args.max_runs, "retry_failed": args.retry_failed, "report": report}
    if args.cluster is None:
        studies.run_here(missing, launch, workers=args.workers, **how)
    else:
        studies.run_on_ray(missing, launch, address=args.cluster, **share, **how)
    folder = launch.root / (study.name + ("-smoke" if args.smoke else ""))
    command = shlex.join(["python", "recipes/reproduce.py", *words])
    print("\n" + studies.write_study(study, launch, folder, command))
    if args.max_runs is None and (waiting := studies.waiting_text(study, launch)):
        print(waiting)
    sys.exit(studies.failures_text(study, launch))


if __name__ == "__main__":
    run_main(main)
