"""CPU time of imports beyond those of transformers: `hf_embinit`, and its `patch`; the limit is 0.2 s each.

    python tests/benchmarks/bench_import.py
    python tests/benchmarks/bench_import.py --repeats 15

Every figure is of a process of its own: user and system time, which other work on the machine changes little.
`import hf_embinit` is compared with `import transformers`, and `hf_embinit.patch` with what every model of
transformers imports (`PreTrainedModel`, and torch with it). The smallest of the repeats counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

LIMIT = 0.2
STEPS = {
    "import hf_embinit": ("import transformers", "import hf_embinit"),
    "hf_embinit.patch": ("from transformers import PreTrainedModel", "import hf_embinit; hf_embinit.patch"),
}
CODE = """
import resource
def spent():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
{}
before = spent()
{}
print(before, spent() - before)
"""


def measure(theirs: str, ours: str) -> tuple[float, float]:
    """CPU seconds of a process with `theirs`, and what `ours` adds to them."""
    code = CODE.format(theirs, ours)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, added = map(float, done.stdout.split())
    return before, added


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    print(f"{'what':<20}{'theirs s':>10}{'ours s':>10}{'limit s':>10}")
    for name, (theirs, ours) in STEPS.items():
        before, added = map(min, zip(*(measure(theirs, ours) for _ in range(repeats)), strict=True))
        print(f"{name:<20}{before:>10.2f}{added:>10.3f}{LIMIT:>10.1f}")


if __name__ == "__main__":
    main()
