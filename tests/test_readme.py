"""The README says what the code does: its tables are generated, its Python runs.

`python tests/test_readme.py` rewrites the generated blocks.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PURPOSES = {
    "table": "a whole table",
    "rows": "rows for new tokens",
    "tokenizer": "a table for a new tokenizer",
}


def initialisers() -> str:
    from hf_embinit import list_initializers

    lines = ["| name | makes | what | source |", "| --- | --- | --- | --- |"]
    for r in list_initializers():
        lines.append(f"| `{r.name}` | {PURPOSES[r.purpose]} | {r.summary} | {r.source} |")
    return "\n".join(lines) + "\n"


def results() -> str:
    from hf_embinit.runs.aggregate import read_records, results_table

    return results_table(read_records(ROOT / "recipes" / "results" / "translate"))


BLOCKS = {"initialisers": initialisers, "results": results}


def block(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def test_generated_blocks_are_up_to_date() -> None:
    text = README.read_text(encoding="utf-8")
    for name, make in BLOCKS.items():
        found = block(name).search(text)
        assert found, f"README.md has no block {name}"
        assert found[2].strip() == make().strip(), f"run `python {Path(__file__).name}` to rewrite {name}"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("code", python_blocks())
def test_python_blocks_run(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_gate_runs_the_readme_s_test_command() -> None:
    text = README.read_text(encoding="utf-8")
    assert re.search(r"<!-- tests -->\n```bash\n.*-m pytest\n```", text)


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    for name, make in BLOCKS.items():
        text = block(name).sub(lambda m, make=make: m[1] + "\n" + make() + "\n" + m[3], text)
    README.write_text(text, encoding="utf-8")
