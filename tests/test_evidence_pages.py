"""Sentences of the pages beside recipes/results/README.md, computed from the committed records alone."""

from __future__ import annotations

import json

import pytest
from builders.committed_records import RESULTS, mean_and_interval, multi30k_runs, page_of, table_of

from hf_embinit.studies.comparisons import t_interval

SEEDS = range(1, 6)


def curves(folder: str, init: str) -> list[dict[int, float]]:
    """Bits per byte by step, one run a seed."""
    files = [RESULTS / folder / f"seed{seed}" / init.replace(":", "-").replace("=", "-") for seed in SEEDS]
    records = [json.loads((file / "results.json").read_text(encoding="utf-8")) for file in files]
    return [{line["step"]: line["validation_bits_per_byte"] for line in r["history"]} for r in records]


def told_steps(folder: str, init: str, other: str, after: int = 0) -> dict[int, float]:
    """The mean difference by step, of those whose t interval leaves 0 out."""
    ours, theirs = curves(folder, init), curves(folder, other)
    found = {}
    for step in (step for step in ours[0] if step > after):
        differences = [a[step] - b[step] for a, b in zip(ours, theirs, strict=True)]
        mean, low, high = mean_and_interval(differences)
        if low * high > 0:
            found[step] = mean
    return found


def test_random_rows_cost_the_pictures_model_nothing_that_is_told_at_the_end() -> None:
    """README's row names both models: the picture is of one, the row of the other."""
    assert "stories260K, 500 steps (in the picture's model 1.21 and 1.21, not told apart)" in page_of(
        "README.md"
    )
    assert 500 not in told_steps("expand_vocab-wikitext-distinct", "default", "mean")
    assert 500 in told_steps("expand_vocab-stories260K-distinct", "default", "mean")


def test_where_equal_and_random_rows_are_told_apart_on_wikitext() -> None:
    folder = "expand_vocab-wikitext-distinct"
    text = page_of(f"recipes/results/{folder}/README.md")
    auto = told_steps(folder, "mean_cov:scale=auto", "mean")
    assert {step: round(value, 4) for step, value in auto.items()} == {40: -0.0014, 60: -0.0008}
    assert "told from `mean` at steps 40 and 60 alone, by 0.0014 and 0.0008" in text
    behind = {init: told_steps(folder, init, "mean", after=20) for init in ("default", "subword_mean")}
    assert [len(steps) for steps in behind.values()] == [9, 5] and not any(500 in s for s in behind.values())
    values = [value for steps in behind.values() for value in steps.values()]
    assert min(values) > 0 and (round(min(values), 3), round(max(values), 3)) == (0.002, 0.008)
    assert "by 0.002 to 0.008: `default` at nine of the 24 steps, `subword_mean` at five, neither" in text
    assert len([step for step in curves(folder, "mean")[0] if step > 20]) == 24


@pytest.mark.parametrize(
    ("field", "told", "quoted"),
    [
        ("validation_loss", [1, 2, 3, 4, 5, 6, 8, 9], "by 0.132 nats after the first (0.081 to 0.183)"),
        ("validation_bleu_tokenized", [3, 20], "by 1.9 (0.6 to 3.2; after the fifth +0.9, -4.0 to 5.8)"),
    ],
)
def test_glove_xavier_leads_multi30k_early(field: str, told: list[int], quoted: str) -> None:
    runs = {init: multi30k(init, field) for init in ("glove_xavier", "xavier")}
    gaps = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(*runs.values(), strict=True)]
    by_epoch = [list(epoch) for epoch in zip(*gaps, strict=True)]
    intervals = [t_interval(epoch) for epoch in by_epoch]
    assert [i for i, (low, high) in enumerate(intervals, 1) if low * high > 0] == told
    text = page_of("recipes/results/README.md")
    assert quoted in text and "after the twentieth it is behind by 0.62 (0.38 to 0.87)" in text
    low, high = intervals[told[-1] - 1]
    if field == "validation_bleu_tokenized":
        assert (round(-high, 2), round(-low, 2)) == (0.38, 0.87)
    else:
        assert (round(-intervals[0][1], 3), round(-intervals[0][0], 3)) == (0.081, 0.183)


def multi30k(init: str, field: str) -> list[list[float]]:
    """A measure of Table 1's Multi30k after each of 20 epochs, one run a seed."""
    runs = multi30k_runs(init)
    return [[line[field] for line in runs[seed]["history"]] for seed in (1, 2, 3)]


def test_zhangs_tables_share_their_differences() -> None:
    """The same model has other names in other tables; Table 4's new embeddings are no other table's clean."""
    names = {"pretrained": "base", "en-base": "base", "en-shuff": "shuffled"}
    verdicts: dict[tuple[str, ...], str] = {}
    printed = []
    for table in ("zhang1", "zhang4", "zhang6", "zhang8"):
        for line in table_of(table).splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) > 8 and cells[8] in ("agrees", "disagrees", "cannot tell"):
                pair = sorted(names.get(name, name) for name in cells[2].split(" - "))
                assert verdicts.setdefault((cells[1], *pair), cells[8]) == cells[8]
                printed.append(cells[8])
    different = list(verdicts.values())
    assert (len(printed), len(different)) == (98, 80)
    assert (printed.count("agrees"), different.count("agrees")) == (39, 28)
    assert printed.count("disagrees") == different.count("disagrees") == 4
    text = page_of("recipes/results/README.md")
    assert "of the 98 differences that they print 80 are different ones, of the 39 that agree 28" in text


def test_table_4_is_as_its_report_has_it() -> None:
    report = page_of("recipes/results/table4/report.md").partition("### googlenews, words in multi30k:en")[2]
    text = page_of("recipes/results/README.md")
    for name, share in (("scaled", "84.1%"), ("scaled + positions", "83.3%")):
        assert f"| {name} | " in report and report.partition(f"| {name} | ")[2].split()[1] == f"({share})"
    for name in ("Xavier-standardized, scaled + positions", "scaled + positions x σ_p / σ_x"):
        assert report.partition(f"| {name} | ")[2].split()[1] == "(11.7%)"
    assert "84.1%, with 64 positions added 83.3% (87.3% both), standardized and with positions 11.7%" in text
    assert "2,838 words; 1,032 of" in report and "2,838 of them, 1,032 questions" in text
