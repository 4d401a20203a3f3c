"""The runs of a study on many machines: a Ray cluster, or a SLURM array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError, RunFolderError
from .scheduling import Launch, Outcome, execute, stages
from .study import Run


def run_on_ray(
    runs: Sequence[Run],
    launch: Launch,
    *,
    address: str,
    cpus: float = 1,
    gpus: float = 0,
    max_runs: int | None = None,
    retry_failed: bool = False,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Runs what is missing on a Ray cluster whose machines share `launch.root`; `address` is `ray.init`'s.

    Each run is a task with `cpus` and `gpus` (a fraction of one is fine); at most `max_runs` are started. A
    run whose machine dies is given to another one, where it goes on from its last checkpoint.
    """
    try:
        import ray
    except ImportError:
        raise InvalidArgumentError("--cluster needs Ray: pip install hf-embinit[cluster]") from None

    try:
        ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
    except (ConnectionError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise InvalidArgumentError(f"--cluster {address}: {said} (`ray start --head` starts one)") from error
    task: Any = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=5)(execute)
    outcomes = []
    for stage in stages(runs[:max_runs], launch):
        pending = {task.remote(run, launch, retry_failed=retry_failed, wait=True): run for run in stage}
        while pending:
            (done,), _ = ray.wait(list(pending))
            run = pending.pop(done)
            try:
                outcome = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, RunFolderError) else error from None
            except ray.exceptions.RayError as error:
                outcome = Outcome(run, "failed", f"Ray gave up: {str(error).splitlines()[0]}", executed=True)
            outcomes.append(outcome)
            if outcome.executed:
                report(outcome)
    return outcomes


def slurm_script(name: str, command: str, elements: int, log_folder: Path) -> str:
    """A SLURM array script: each element takes the next run that nobody has started, so any may die."""
    return f"""#!/bin/bash
#SBATCH --job-name=hf_embinit-{name}
#SBATCH --array=1-{max(1, elements)}%16
#SBATCH --cpus-per-task=4
#SBATCH --gpus=1               # remove for a partition without GPUs
#SBATCH --requeue              # a run that is taken off goes on from its last checkpoint
#SBATCH --output={log_folder}/slurm-%A_%a.log
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
srun {command} --max_runs 1
"""
