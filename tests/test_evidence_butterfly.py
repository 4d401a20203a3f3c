"""What the pages say of the Butterfly pairs, computed from their committed records alone."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict

import pytest
from builders.committed_records import RESULTS, committed_records, mean_and_interval, page_of

from hf_embinit.training.twins import KS

PAGE = page_of(RESULTS / "README.md")
RECORDS = committed_records()


def butterfly_pairs() -> dict[str, list[dict]]:
    """The records of three pairs each, by experiment: `new` models, these `wide`, `tied` or with another
    `order` of the data, and embeddings drawn `anew`."""
    pairs: dict[str, list[dict]] = defaultdict(list)
    for name, record in RECORDS.items():
        if "reproduce/runs/language_model/" in name and record["arguments"].get("twin_seeds"):
            how = {"anew": "freeze_rest", "tied": "tie_word_embeddings", "order": "data_seed", "wide": "tf32"}
            pairs[next((k for k, flag in how.items() if record["arguments"][flag]), "new")].append(record)
    return {experiment: sorted(records, key=lambda r: r["seed"]) for experiment, records in pairs.items()}


def told(numbers: list[float], scale: float = 100) -> str:
    mean, low, high = (scale * number for number in mean_and_interval(numbers))
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


@pytest.mark.parametrize(
    ("experiment", "title"),
    [
        ("new", "1: two new models"),
        ("anew", "2: the first of them"),
        ("tied", "1, output embeddings tied"),
        ("order", "1, each pair on another order"),
        ("wide", "1: two new models, width 512"),
    ],
)
def test_three_butterfly_pairs_are_as_their_page_says(experiment, title) -> None:
    page = (RESULTS / "language_model" / "README.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith(f"| {title}"))
    records = butterfly_pairs()[experiment]
    assert [record["seed"] for record in records] == [1, 2, 3]
    ends = [record["history"][-1]["step"] for record in records]
    by_column = ["inner_product", "cosine_k10", "euclidean_k10", "inner_product_k1", "inner_product_k100",
                 "inner_product_weighted"]  # fmt: skip
    cells = [told([r["metrics"][f"knn_input_{column}"] for r in records]) for column in by_column]
    cells += [told([record["metrics"]["test_perplexity"] for record in records], 1)]
    assert line.strip("| ").split(" | ")[1:-1] == [f"{ends[0]:,}", *cells] and len(set(ends)) == 1


def test_the_curve_of_three_wide_pairs_is_as_the_pages_say() -> None:
    page = page_of(RESULTS / "language_model" / "README.md")
    curves = [{row["step"]: row for row in record["history"]} for record in butterfly_pairs()["wide"]]

    def match(step: int, table: str = "input_inner_product") -> list[float]:
        return [curve[step][f"knn_{table}"] for curve in curves]

    def fall(first: int, last: int, table: str = "input_inner_product") -> str:
        return told([a - b for a, b in zip(match(first, table), match(last, table), strict=True)])

    def perplexity(step: int) -> str:
        losses = [
            [value for name, value in curve[step].items() if name.startswith("validation_loss_seed")]
            for curve in curves
        ]
        assert all(len(pair) == 2 for pair in losses)
        return told([math.exp(statistics.fmean(pair)) for pair in losses], 1)

    for curve in curves:
        by_step = {step: row["knn_input_inner_product"] for step, row in curve.items()}
        assert max(by_step, key=by_step.__getitem__) == 4642
        losses = {step: statistics.fmean(v for k, v in row.items() if k.startswith("validation_loss_seed"))
                  for step, row in curve.items()}  # fmt: skip
        assert min(losses, key=losses.__getitem__) == 6813
        output = {step: row["knn_output_inner_product"] for step, row in curve.items()}
        assert max(output, key=output.__getitem__) in (1000, 1468)
        assert 0.285 < max(output.values()) < 0.334
        for step, row in curve.items():
            train = [value for name, value in row.items() if name.startswith("train_loss_seed")]
            assert step < 100 or (statistics.fmean(train) < losses[step]) == (step >= 3162)
    peak, fallen = told(match(4642)), fall(4642, 16000)
    for said in (
        f"{peak.replace(' (', '% (')}, and at the last it is {fallen.replace(' (', ' lower (')}.",
        f"a fall of {fall(316, 681).replace(' (', ' until step 681 (')},",
        f"step 6,813, {perplexity(6813)}, and {perplexity(16000)} at the last",
        f"falls, too, {fall(4642, 16000, 'input_cosine').replace(' (', ' from step 4,642 to the last (')},",
        f"and by {told(match(16000, 'output_inner_product')).replace(' (', '% at the last (')}.",
    ):
        assert said in page
    ends = [record["metrics"] for record in butterfly_pairs()["wide"]]
    first, hundred = (
        100 * statistics.fmean(end[f"knn_input_euclidean_k{k}"] for end in ends) for k in (1, 100)
    )
    assert f"By distance it is {first:.1f}% at K = 1 and {hundred:.1f}% at K = 100 (below)." in page
    train, validation = (
        statistics.fmean(v for c in curves for k, v in c[16000].items() if k.startswith(f"{split}_loss_seed"))
        for split in ("train", "validation")
    )
    assert f"it is {train:.1f} nats, where validation loss is {validation:.1f}." in page
    seconds = [record["runtime"]["train_seconds"] for record in butterfly_pairs()["wide"]]
    assert "330 seconds of training a pair" in page and all(327 < taken < 333 for taken in seconds)
    assert f"{peak.replace(' (', '% (95% t interval ')[:-1]}; the paper 26%, near 3,000), and" in PAGE
    assert f"and {fallen.replace(' (', ' lower at the last step (')}." in PAGE
    low, high = perplexity(6813), perplexity(16000).replace(" (", " at the last (")
    assert f"lowest at step 6,813, {low}, and {high}" in PAGE


def test_one_row_that_is_never_read_is_nearest_by_distance() -> None:
    """Its own match is 0, and it alone is left out of the mean over tokens that are seen."""
    page = page_of(RESULTS / "language_model" / "README.md")
    names = ["width512-0-1", "width512-5000-0-1"]
    singles = [RECORDS[f"language_model/butterfly-{name}/results.json"] for name in names]
    wide = butterfly_pairs()["wide"]
    for record in (*singles, *wide):
        metrics = record["metrics"]
        unseen = 1 - metrics["knn_input_inner_product"] / metrics["knn_input_inner_product_seen"]
        assert 1 / unseen == pytest.approx(15_924, abs=1)
    matches = [100 * record["metrics"]["knn_input_euclidean_k1"] for record in singles]
    lengths = [
        [statistics.fmean(v for k, v in row.items() if k.startswith("row_norm_mean")) for row in ends]
        for ends in ([record["history"][i] for i in (0, -1)] for record in (*singles, *wide))
    ]
    assert all(round(start, 2) == 0.25 for start, _ in lengths)
    assert {f"{end:.1f}" for _, end in lengths[2:]} == {"1.6"}
    angle = math.degrees(math.acos((1 - (lengths[2][0] / lengths[2][1]) ** 2) / 2))
    for said in (
        "One of the 15,924 rows that are compared is never read in training",
        f"within {angle:.0f} degrees of it",
        f"K = 1 is {matches[0]:.1f}% after the 2,500 steps below (rows of {lengths[0][1]:.2f}), "
        f"{matches[1]:.1f}% after the 5,000 ({lengths[1][1]:.2f})",
        f"where it alone makes {100 / 19:.1f}%.",
    ):
        assert said in page


def test_the_pairs_of_the_papers_width_are_as_their_page_says() -> None:
    page = page_of(RESULTS / "language_model" / "README.md")
    said = []
    for name, least in (("width512-0-1", 464), ("width512-5000-0-1", 681)):
        record = RECORDS[f"language_model/butterfly-{name}/results.json"]
        match = {row["step"]: 100 * row["knn_input_inner_product"] for row in record["history"]}
        end = max(match)
        ends = " and ".join(f"{record['metrics'][f'test_perplexity_seed{seed}']:.1f}" for seed in (0, 1))
        assert (
            f"| {end:,} | {match[0]:.1f}% | {match[end]:.1f}% at step {end:,} | {match[end]:.1f}% | {ends} |"
            in page
        )
        after = [step for step in match if step >= 316]
        assert f"{match[316]:.1f}" == "9.8" and min(after, key=match.__getitem__) == least
        rising = [match[step] for step in after if step >= least]
        assert match[215] < match[316] and rising == sorted(rising)
        metrics = {key: 100 * value for key, value in record["metrics"].items() if key.startswith("knn_")}
        by_k = [metrics[f"knn_input_inner_product_k{k}"] for k in KS]
        said.append(
            (
                f"{match[least]:.1f}% at step {least}",
                f"{match[end]:.1f}%",
                f"{min(by_k):.1f}% to {max(by_k):.1f}%",
                f"{metrics['knn_input_cosine_k10']:.1f}%",
                f"{metrics['knn_input_euclidean_k10']:.1f}%",
                f"{record['metrics']['test_perplexity']:.0f} after {end:,}",
            )
        )
    (low, last, ks, cosine, distance, _), (low2, last2, ks2, cosine2, distance2, _) = said
    for sentence in (
        f"fall, to {low} and to {low2};",
        f"rise to the last, {last} and {last2}",
        f"whatever K ({ks}, and {ks2})",
        f"higher ({cosine} and {cosine2}); by distance it is {distance} and {distance2}",
        f"{said[0][-1]} of its 16,000 steps, {said[1][-1]}.",
    ):
        assert sentence in page
    assert f"ends with {match[end]:.1f}% at step {end:,}" in PAGE
    assert f"test perplexity {record['metrics']['test_perplexity']:.0f}, the nearest" in PAGE


def test_embeddings_drawn_anew_at_the_papers_width_are_as_the_page_says() -> None:
    page = page_of(RESULTS / "language_model" / "README.md")
    anew = RECORDS["language_model/butterfly-width512-experiment2-2-3/results.json"]
    new = RECORDS["language_model/butterfly-width512-5000-0-1/results.json"]["metrics"]
    curve = [100 * row["knn_input_inner_product"] for row in anew["history"]]
    of = anew["metrics"]
    assert curve[-8:] == sorted(curve[-8:]) and of["frozen_tensors_unchanged_seed2"] == 28
    ends = f"{of['test_perplexity_seed2']:.1f} and {of['test_perplexity_seed3']:.1f}"
    row = f"| 800 | {curve[0]:.1f}% | {curve[-1]:.1f}% at step 800 | {curve[-1]:.1f}% | {ends} |"
    apart = curve[-1] - 100 * new["knn_input_inner_product"]
    pairs = [
        f"{100 * of[key]:.1f}% to {100 * new[key]:.1f}%"
        for key in ("knn_input_cosine_k10", "knn_input_euclidean_k10")
    ]
    for said in (row, f"in 5,000: +{apart:.1f},", f"By cosine it is {pairs[0]}, by distance {pairs[1]},"):
        assert said in page
    assert f"reach {curve[-1]:.1f}% in 800 steps" in PAGE


def test_output_tables_of_single_pairs_fall_after_a_late_peak() -> None:
    page = page_of(RESULTS / "language_model" / "README.md")
    ends = []
    for name in ("width512-0-1", "width512-5000-0-1", "experiment1-0-1"):
        history = RECORDS[f"language_model/butterfly-{name}/results.json"]["history"]
        match = {row["step"]: 100 * row["knn_output_inner_product"] for row in history}
        assert max(match, key=match.__getitem__) == 1468
        ends += [f"{match[1468]:.1f}%", f"{match[max(match)]:.1f}%"]
    assert f"match by {ends[0]} at step 1,468 and {ends[1]} at the last" in page
    assert f"steps by {ends[2]} at that step and {ends[3]} at the last" in page
    assert f"at width 128 by {ends[4]} and {ends[5]}" in page
    assert f"peak and the fall are earlier ({ends[2]} at step 1,468, {ends[3]} at the last)" in PAGE


def test_what_three_butterfly_pairs_tell_and_what_not() -> None:
    page = page_of(RESULTS / "language_model" / "README.md")
    pairs = butterfly_pairs()
    match = {
        experiment: [{row["step"]: row["knn_input_inner_product"] for row in r["history"]} for r in records]
        for experiment, records in pairs.items()
    }
    new, anew = match["new"], match["anew"]
    means = {step: statistics.fmean(curve[step] for curve in new) for step in new[0]}
    assert max(means, key=means.__getitem__) == 1000 and f"{100 * means[1000]:.1f} at the last" in page
    assert f"{told([curve[215] for curve in new]).replace(' (', ' at step 215 (')}" in page
    assert f"on +{told([curve[1000] - curve[316] for curve in new])}" in page
    assert f"+{told([b[400] - b[316] for b in anew]).replace(' (', ' from step 316 to 400 (')}" in page
    apart = [b[400] - a[1000] for a, b in zip(new, anew, strict=True)]
    assert (
        f"(+{told(apart).replace(' (', ', ')}" in page
        and f"(+{told(apart).replace(' (', ', ')[:-1]};" in PAGE
    )
    by_k = [statistics.fmean(r["metrics"][f"knn_input_inner_product_k{k}"] for r in pairs["new"]) for k in KS]
    assert f"between {100 * min(by_k):.1f} and {100 * max(by_k):.1f} at every K" in page


@pytest.mark.parametrize(
    ("experiment", "metric", "pages"),
    [
        ("order", "inner_product", "both"),
        ("order", "cosine", "one"),
        ("tied", "inner_product", "both"),
        ("tied", "euclidean_k10", "one"),
        ("tied", "cosine", "one"),
        ("tied", "inner_product_k1", "one"),
        ("tied", "inner_product_k100", "one"),
    ],
)
def test_tied_tables_and_another_order_differ_as_the_pages_say(experiment, metric, pages) -> None:
    page = page_of(RESULTS / "language_model" / "README.md")
    pairs, metric = butterfly_pairs(), f"knn_input_{metric}"
    differences = [
        a["metrics"][metric] - b["metrics"][metric]
        for a, b in zip(pairs[experiment], pairs["new"], strict=True)
    ]
    mean, interval = told(differences).rstrip(")").split(" (")
    mean = mean if mean.startswith("-") else f"+{mean}"
    quoted = re.compile(rf"{re.escape(mean)}(, | \(|[^.(]* \(){re.escape(interval)}\)")
    assert quoted.search(page) and (pages == "one" or quoted.search(PAGE))
