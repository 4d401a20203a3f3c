"""The report on embedding spaces as a page of Markdown, from its `results.json` alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..display import markdown_code, markdown_table, markdown_text, printable
from .analysis import HARMFUL, HARMLESS, advice

_LENGTH = 64  # positions in the section on sums, or the nearest measured: most sentences are shorter


def render_report(results: Mapping[str, Any]) -> str:
    """The whole page. Figures are linked relative to it, in `figures/`."""
    spaces = results["spaces"]
    parts = [
        [f"# Embedding spaces: {', '.join(map(markdown_text, spaces))}"],
        _what_to_do(spaces, results["corpus"]),
        _tables(spaces),
        _values(spaces, results["corpus"], results["figures"]),
        _norms(spaces, results["corpus"], results["figures"]),
        _sums(spaces, results["corpus"], results["figures"]),
        _neighbors(results["neighbors"], list(spaces)),
        _match(results["knn_match"], results["arguments"], results["figures"]),
        _table_4(spaces, results["corpus"]),
        _made(results),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


_BOTH = (
    " Tables no wider than this did no harm as they are in Kim et al. 2024, although they hide positions: "
    "where the order of words decides, try `pretrained_xavier` as well."
)

_NARROW = (
    " It is narrower than random rows, and Kim et al. 2024 measured no such table: as it is it hides fewer "
    "positions, so try `pretrained` as well."
)


def headline(name: str, space: Mapping[str, Any], corpus: Mapping[str, Any] | None) -> str:
    """The sd of the table against Xavier's at its vocabulary, what to use, and what that changes."""
    values = space["statistics_in_corpus"] or space["statistics"]
    n, d = values["table"]["num_embeddings"], values["table"]["embedding_dim"]
    seen = corpus is not None and space["statistics_in_corpus"] is not None
    where = f"the {n:,} of its tokens that {_name(corpus)} has" if corpus and seen else f"{n:,} tokens"
    init = advice(values["sd_over_xavier"], values["scaled_sd_over_positions"])
    use = "no harm as it is (`pretrained`)" if init == "pretrained" else f"use `{init}`"
    near, moved = (_nearest(points, _LENGTH) for points in space["absorption"].values())
    return (
        f"**{markdown_text(name)}: sd is {times(values['sd_over_xavier'])} times Xavier's at this vocabulary "
        f"({where}); {use}.** Scaled by sqrt({d}), as a model reads them, the values are "
        f"{times(values['scaled_sd_over_positions'])} times as wide as the position encodings: of the first "
        f"{near['num_positions']}, the one nearest to the sum is the right one for "
        f"{100 * near['position_accuracy_in_sum']:.0f}% of the tokens, and for "
        f"{100 * moved['position_accuracy_in_sum']:.0f}% after `pretrained_xavier`."
        + _other_choice(init, values, near["position_accuracy_in_sum"], moved["position_accuracy_in_sum"])
    )


def _other_choice(init: str, values: Mapping[str, Any], as_it_is: float, standardized: float) -> str:
    if init == "pretrained":
        return _BOTH if as_it_is < 0.9 else ""
    return _NARROW if values["sd_over_xavier"] < 1 and as_it_is > standardized else ""


def _name(corpus: Mapping[str, Any]) -> str:
    return markdown_text(corpus["name"])


def _nearest(points: Sequence[Mapping[str, Any]], length: int) -> Mapping[str, Any]:
    return min(points, key=lambda point: abs(point["num_positions"] - length))


def times(ratio: float) -> str:
    """A ratio as it is read: `23`, `4.3`, `0.42`, `3.0e+07`."""
    if ratio >= 1e6:
        return f"{ratio:.1e}"
    return f"{ratio:,.0f}" if ratio >= 9.95 else f"{ratio:.1f}" if ratio >= 0.995 else f"{ratio:.2g}"


def _what_to_do(spaces: Mapping[str, Any], corpus: Mapping[str, Any] | None) -> list[str]:
    lines = ["## What to do", ""]
    lines += [f"- {headline(name, space, corpus)}" for name, space in spaces.items()]
    lines += [
        "",
        "This is about starting a transformer from these rows, one that reads "
        "`sqrt(D) * embedding + position` with sinusoidal positions. Xavier's sd at N tokens of width D is "
        "sqrt(2 / (N + D)), so the same vectors are wider, in that measure, for a larger vocabulary. In Kim "
        f"et al. 2024 tables that were, once scaled, up to {HARMLESS} times as wide as the positions "
        "(BERT's, up to 4.6 times as wide as Xavier's) did no harm as they are (`pretrained`: at worst 0.5 "
        f"BLEU below random rows); those from {HARMFUL} times on (GloVe's, T5's, from 23 times Xavier's) "
        "did, in all tasks but one. In between, `pretrained_xavier` is the safe side: it moves the whole "
        "table to mean 0 and Xavier's sd by one shift and one factor. Give a recipe `--init "
        "pretrained_xavier --vectors <source>`. A trained model that reads its own table needs none of it.",
    ]
    if corpus is None:
        lines += [
            "",
            "With `--corpus` the ratio is that of the vocabulary of a text rather than of the whole table.",
        ]
    return lines


def _tables(spaces: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, space in spaces.items():
        sizes = [f"{space['rows_read']:,}", f"{space['num_embeddings']:,}", f"{space['embedding_dim']}"]
        left_out = ", ".join(f"{count:,} {why}" for why, count in space["left_out"].items())
        own = space["own_positions_std"]
        positions = "none" if own is None else f"learned, sd {own:.3g}"
        family = space["family"].replace("_", "-")
        rows.append(
            [
                markdown_text(name),
                markdown_code(space["source"]),
                *sizes,
                family,
                left_out or "none",
                positions,
            ]
        )
    head = ["space", "source", "rows", "used", "D", "tokens", "left out", "positions of its own"]
    return ["## The tables", "", _table(head, rows, "llrrrlll")]


def _values(
    spaces: Mapping[str, Any], corpus: Mapping[str, Any] | None, figures: Mapping[str, Any]
) -> list[str]:
    versions = []
    for name, space in spaces.items():
        label = markdown_text(name)
        versions.append((label, space["statistics"]))
        if corpus and space["statistics_in_corpus"]:
            versions.append((f"{label}, tokens in {_name(corpus)}", space["statistics_in_corpus"]))
    lines = ["## Values against Xavier's and the positions'", ""]
    lines += ["As in Kim et al. 2024, Tables 2 and 8: before scaling; sd in parentheses.", ""]
    head = ["space", "tokens", "range", "mean (sd)", "Xavier range (sd)", "sd / Xavier's"]
    head += ["`pretrained_xavier` range", "`xavier_pretrained` range"]
    lines += [_table(head, [_before_scaling(*version) for version in versions], "lrrrrrrr")]
    lines += ["", "As in Table 6: times sqrt(D), which is what the positions are added to.", ""]
    head = ["space", "range", "mean (sd)", "Xavier range (sd)", "`pretrained_xavier` range (sd)"]
    head += ["positions: range, mean (sd)", "sd / positions'"]
    lines += [_table(head, [_after_scaling(*version) for version in versions], "lrrrrrr")]
    lines += [
        "",
        "Excess kurtosis is 0 for a normal distribution and -1.2 for Xavier's; a high one means a few very "
        "large values, which set the range. The effective rank is exp(entropy of the singular values).",
        "",
    ]
    head = ["space", "excess kurtosis", "row norms: least, mean, largest", "effective rank"]
    lines += [_table(head, [_shape(*version) for version in versions], "lrrr")]
    for name, path in figures["distribution"].items():
        lines += [
            "",
            f"![Values of {markdown_text(name)} against Xavier's and the positions', log axes]({path})",
        ]
    return lines


def _before_scaling(label: str, values: Mapping[str, Any]) -> list[str]:
    rows, xavier = values["table"], values["xavier"]
    return [
        label,
        f"{rows['num_embeddings']:,}",
        _range(rows),
        mean_and_sd(rows),
        f"±{number(xavier['max'])} ({number(xavier['std'])})",
        f"**{times(values['sd_over_xavier'])}**",
        _range(values["pretrained_xavier"]),
        _range(values["xavier_pretrained"]),
    ]


def _after_scaling(label: str, values: Mapping[str, Any]) -> list[str]:
    xavier, moved = values["xavier_scaled"], values["pretrained_xavier_scaled"]
    return [
        label,
        _range(values["table_scaled"]),
        mean_and_sd(values["table_scaled"]),
        f"±{number(xavier['max'])} ({number(xavier['std'])})",
        f"{_range(moved)} ({number(moved['std'])})",
        f"{_range(values['positions'])}, {mean_and_sd(values['positions'])}",
        f"**{times(values['scaled_sd_over_positions'])}**",
    ]


def _shape(label: str, values: Mapping[str, Any]) -> list[str]:
    rows = values["table"]
    norms = ", ".join(number(rows[f"row_norm_{which}"]) for which in ("min", "mean", "max"))
    most = min(rows["num_embeddings"], rows["embedding_dim"])
    return [label, f"{rows['kurtosis']:.1f}", norms, f"{rows['effective_rank']:.0f} of {most}"]


def _norms(
    spaces: Mapping[str, Any], corpus: Mapping[str, Any] | None, figures: Mapping[str, Any]
) -> list[str]:
    lines = ["## Norms against frequency", ""]
    rows = []
    for name, space in spaces.items():
        frequency = space["frequency"]
        by_length = f"{frequency['row_length_correlation']:+.2f}"
        if frequency["by"] == "counts":
            text = _name(corpus) if corpus else "the corpus"
            how = f"counts in {text}, {frequency['tokens']:,} tokens seen"
        elif frequency["by"] == "rows":
            how = f"order of the rows (longer words come later: {by_length})"
        elif corpus:
            how = f"not known: {_name(corpus)} has too few of its tokens"
        elif space["family"] == "words":
            how = "not known: longer words do not come later, as they would in that order "
            how += f"({by_length}); give `--corpus`"
        else:
            how = "not known: the ids of sub-words are in no such order; give `--corpus`"
        value = frequency["norm_correlation"]
        rows.append([markdown_text(name), how, "–" if value is None else f"{value:+.2f}"])
    head = ["space", "frequency from", "correlation of frequency and norm (Spearman)"]
    lines += [
        _table(head, rows, "llr"),
        "",
        "Below 0, frequent tokens have shorter rows than rare ones, so the inner product favors rare tokens "
        "as neighbors; above 0 it is the other way round.",
    ]
    if figures["norms"]:
        lines += ["", f"![Row norms against the frequency of tokens]({figures['norms']})"]
    return lines


def _sums(
    spaces: Mapping[str, Any], corpus: Mapping[str, Any] | None, figures: Mapping[str, Any]
) -> list[str]:
    lines = ["## What is left of words and positions in their sum", ""]
    if corpus:
        lines += [f"Of the tokens in {_name(corpus)}, where they are enough.", ""]
    rows = []
    length = 0  # the same for all: they were measured at the same ones
    for name, space in spaces.items():
        for variant, points in space["absorption"].items():
            point = _nearest(points, _LENGTH)
            length = point["num_positions"]
            init = "as it is" if variant == "pretrained" else f"`{variant}`"
            widths = f"{number(point['embedding_std'])} / {number(point['position_std'])}"
            words = [_percent(point[f"knn_match_{where}"]) for where in ("in_sum", "recovered")]
            positions = [_percent(point[f"position_accuracy_{where}"]) for where in ("in_sum", "recovered")]
            span = f"{point['span_dimensions']} of {space['embedding_dim']}"
            rows.append([markdown_text(name), init, widths, *words, *positions, span])
    lines += [
        f"Each token stands at a random one of the first {length} positions. *Words left* is the KNN match "
        "similarity, by cosine, of the sum to the words alone; *positions left* how often the nearest "
        "position encoding is the right one. *Recovered* is after a linear map: for words, the positions' "
        "span is projected out; for positions, Fisher's discriminant inside it. Where both are recovered, "
        "nothing is lost to a layer that learns such a map; it is merely not separated.",
        "",
    ]
    head = ["space", "init", "sd of words / positions", "words left", "words recovered"]
    head += ["positions left", "positions recovered", "dimensions of the positions"]
    picture = f"![Words and positions left in the sum, by sentence length]({figures['absorption']})"
    return [*lines, _table(head, rows, "llrrrrrr"), "", picture]


def _neighbors(neighbors: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    lines = ["## Neighbors of the same words", ""]
    if not neighbors:
        return [*lines, "No word of four letters or more is a token here; choose some with `--words`."]
    lines += ["By cosine, nearest first.", ""]
    rows = []
    for word, by_space in neighbors.items():
        near = [by_space[name] for name in names]
        cells = ["not a token" if tokens is None else " ".join(map(markdown_code, tokens)) for tokens in near]
        rows.append([f"**{markdown_text(word)}**", *cells])
    return [*lines, _table(["word", *map(markdown_text, names)], rows)]


def _match(
    pairs: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any], figures: Mapping[str, Any]
) -> list[str]:
    if not pairs:
        return []
    k = arguments["k"]
    lines = [
        "## How far the spaces agree",
        "",
        f"KNN match similarity with k = {k}: the mean Jaccard index of the {k} nearest neighbors of each "
        "token among the tokens that both spaces have. *Chance* is its value for two unrelated spaces.",
        "",
    ]
    rows = []
    for pair in pairs:
        cells = [_percent(pair[m]) for m in ("inner_product", "cosine", "chance")]
        if pair["chance"] is None:
            cells = ["too few shared tokens", "–", "–"]
        both = f"{markdown_text(pair['a'])}, {markdown_text(pair['b'])}"
        rows.append([both, f"{pair['shared_tokens']:,}", *cells])
    head = ["spaces", "shared tokens", "by inner product", "by cosine", "chance"]
    lines += [_table(head, rows, "lrrrr")]
    return [*lines, "", f"![KNN match similarity of all pairs]({figures['match']})"]


def _table_4(spaces: Mapping[str, Any], corpus: Mapping[str, Any] | None) -> list[str]:
    asked = {name: s["table_4"] for name, s in spaces.items() if s["table_4"] is not None}
    if not asked:
        return []
    lines = [
        "## Word analogies (Kim et al. 2024, Table 4)",
        "",
        "3CosAdd over the words named, the three of the question left out; a question applies when its "
        "four words are there. Positions: each row gets a random one of the first 64, or 5,000. The last, "
        "ours, projects the positions out of the sixth: the dimensions that hold 99.99% of their energy. On "
        "GloVe vectors of a vocabulary of 5,893 words the paper has 1424/1631 (87.3%) with positions, 12.9% "
        "when standardized first, and 11.1% in the seventh row.",
    ]
    seen = f"words in {_name(corpus) if corpus else ''}"
    for name, parts in asked.items():
        for part, label in (("all", "all words"), ("in_corpus", seen)):
            if part in parts:
                lines += ["", f"### {markdown_text(name)}, {label}", "", *_analogies(parts[part])]
    return lines


def _analogies(scores: Mapping[str, Any] | None) -> list[str]:
    if scores is None:
        return ["No question applies."]
    case = ", in lower case" if scores["lowercase"] else ""
    span = scores["span_dimensions"]
    rows = []
    for row, by_positions in scores["rows"].items():
        cells = [_share(by_positions.get(positions)) for positions in ("64", "5000")]
        rows.append([row.replace("sigma_p / sigma_x", "σ_p / σ_x"), *cells])
    return [
        f"{scores['words']:,} words; {scores['applicable']:,} of {scores['total']:,} questions apply{case}. "
        f"64 positions take {span['64']} dimensions, 5,000 take {span['5000']}.",
        "",
        _table(["embeddings", "64 positions", "5,000 positions"], rows, "lrr"),
    ]


def _share(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "–"
    return f"{score['correct']}/{score['applicable']} ({100 * score['accuracy']:.1f}%)"


def _made(results: Mapping[str, Any]) -> list[str]:
    arguments, runtime, versions = (results[key] for key in ("arguments", "runtime", "versions"))
    return [
        "## How this was made",
        "",
        "```",
        printable(results["command"]),
        "```",
        "",
        f"Match similarities are averaged over {arguments['sample']:,} random tokens of those shared, "
        f"absorption over as many of each space; seed {arguments['seed']}. "
        f"hf_embinit {versions['hf_embinit']}, torch {versions['torch']}, {runtime['seconds']:.0f} seconds "
        f"on {runtime['device']}. All numbers are in [results.json](results.json).",
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    return markdown_table(head, rows, align).rstrip("\n")


def number(value: float) -> str:
    """Three significant digits: `0.0123`, `4.82`, `68.1`, `792`, `1.00e-06`."""
    if value == 0:
        return "0"
    if not 5e-5 <= abs(value) < 1e6:
        return f"{value:.2e}"
    rounded = float(f"{value:.2e}")  # 9.996 is 10.0
    digits = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{digits}f}"


def _range(part: Mapping[str, Any]) -> str:
    return f"{number(part['min'])}, {number(part['max'])}"


def mean_and_sd(part: Mapping[str, Any]) -> str:
    """Both, the mean as 0 where the sd makes nothing of it."""
    rounding = min(5e-5, 1e-3 * part["std"])
    return f"{number(part['mean']) if abs(part['mean']) >= rounding else '0'} ({number(part['std'])})"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"
