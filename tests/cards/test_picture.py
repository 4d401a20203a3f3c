"""The picture at the top of the README shows what the records say."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from builders import ROOT
from PIL import Image

from hf_embinit.__main__ import main

RESULTS = ROOT / "recipes" / "results"
FOLDERS = ("table4", "expand_vocab-wikitext-distinct")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The two records, in a folder of their own."""
    for name in FOLDERS:
        shutil.copytree(RESULTS / name, tmp_path / name, ignore=shutil.ignore_patterns("*.png"))
    return tmp_path


def said(picture: Path) -> str:
    with Image.open(picture) as image:
        return str(image.info["Description"])


def test_the_committed_picture_is_drawn_from_the_records() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    again = "run the command of .github/CONTRIBUTING.md that writes the generated parts"
    assert f"![{said(RESULTS / 'why.png')}](recipes/results/why.png)" in readme, again


def test_its_numbers_are_those_of_the_files() -> None:
    """Computed here by other means: the mean norm of the recorded rows, KL(p || p') turned into a share."""
    (space,) = json.loads((RESULTS / "table4" / "results.json").read_text())["spaces"].values()
    (drowned,) = re.findall(r"vectors are (\d+) long", said(RESULTS / "why.png"))
    assert int(drowned) == pytest.approx(
        space["statistics_in_corpus"]["table_scaled"]["row_norm_mean"], rel=0.03
    )
    new = [
        json.loads(path.read_text())
        for path in (RESULTS / FOLDERS[1]).glob("seed*/*/results.json")
        if path.parent.name in ("default", "mean")
    ]
    masses: dict[str, list[float]] = {"default": [], "mean": []}
    for record in new:
        masses[record["init"]].append(100 * (1 - math.exp(-record["metrics"]["kl_max"])))
    assert {len(values) for values in masses.values()} == {5}
    shown = re.findall(r"([\d.]+)%", said(RESULTS / "why.png").split("Right: ")[1])
    random, limit, mean = map(float, shown)
    assert random == pytest.approx(sum(masses["default"]) / 5, abs=0.05) and random > limit > mean
    assert mean == pytest.approx(sum(masses["mean"]) / 5, abs=0.05)
    assert limit == pytest.approx(100 * 50 / (4096 + 50), abs=0.05)


def test_another_record_gives_another_picture(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- picture -->\n<!-- end -->\n")
    for path in results.glob("*/seed*/default/results.json"):
        record = json.loads(path.read_text())
        record["metrics"]["kl_max"] = math.log(2.0)
        path.write_text(json.dumps(record))
    assert main(["cards", str(results), str(tmp_path / "cards"), "--pages", str(page)]) == 0
    assert f"picture {results / 'why.png'}" in capsys.readouterr().out
    assert "random rows take up to 50.0%" in said(results / "why.png")
    assert f"![{said(results / 'why.png')}](" in page.read_text()
    assert (results / "why.png").read_bytes() != (RESULTS / "why.png").read_bytes()
