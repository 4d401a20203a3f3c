"""The report on embedding tables as one page: all of it is there, and nothing is asked of a network."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.browser import CHROMIUM, Browser
from PIL import Image

from hf_embinit.report import AnalysisArguments, analyze_embeddings
from hf_embinit.report.html import render_page
from hf_embinit.report.text import render_report
from hf_embinit.vectors import PretrainedVectors, write_vectors

HOSTILE = '<script>document.title="gotcha"</script>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with its page on two files of vectors; one token is a script."""
    place = tmp_path_factory.mktemp("page")
    words = [a + b for a in "bdfglmnr" for b in ("alo", "ine", "otter", "under", "eavens")]
    generator = torch.Generator().manual_seed(0)
    sources = []
    for name, scale in (("wide", 3.0), ("narrow", 0.1)):
        tokens = [*words, HOSTILE, "|`*_[x](y)"]
        rows = scale * torch.randn(len(tokens), 12, generator=generator)
        sources.append(str(place / f"{name}.txt"))
        write_vectors(place / f"{name}.txt", PretrainedVectors(tokens, rows, name))
    (place / "questions.txt").write_text(f": all\n{' '.join(words[:4])}\n{' '.join(words[4:8])}\n")
    arguments = AnalysisArguments(
        sources=sources, output_dir=str(place / "report"), html=True, k=3, sample=20, lengths=[4, 8],
        words=[words[0], HOSTILE], analogies=str(place / "questions.txt"),
    )  # fmt: skip
    analyze_embeddings(arguments, f"hf-embinit analyze {' '.join(sources)} --words '{HOSTILE}'")
    return place / "report"


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: dict[str, list[dict[str, str]]] = defaultdict(list)
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags[tag].append(dict(attrs))
        if tag not in ("meta", "link", "img", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def plain(markdown: str) -> str:
    """Markdown's words without its signs, and without blanks."""
    return re.sub(r"[\s|`*\\#-]|<[^>]*>", "", html.unescape(markdown))


def test_the_page_says_what_the_report_says(folder: Path, page: Page) -> None:
    assert page.open == []
    said = plain(page.text)
    report = (folder / "report.md").read_text(encoding="utf-8")
    for line in report.splitlines():
        if line and not line.startswith(("|", "```", "![")) and "](" not in line and HOSTILE not in line:
            assert plain(line) in said, line
    assert len(page.tags["h1"]) == 1 and len(page.tags["h2"]) == report.count("\n## ")
    rows = [line for line in report.splitlines() if line.startswith("|") and not set(line) <= set("|-: ")]
    assert len(page.tags["tr"]) == len(rows)
    links = [a["href"].removeprefix("#") for a in page.tags["a"] if a["href"].startswith("#")]
    assert links == [section["id"] for section in page.tags["section"]] and len(set(links)) == len(links)


def test_the_page_needs_no_network(page: Page) -> None:
    assert not page.tags["script"] and not page.tags["iframe"]
    loaded = [
        a[k] for name in ("img", "link", "source") for a in page.tags[name] for k in ("src", "href") if k in a
    ]
    assert loaded and all(target.startswith("data:") for target in loaded)
    for target in (a["href"] for a in page.tags["a"]):
        assert target.startswith(("#", "data:"))


def test_every_figure_is_there_with_alt_text_and_caption(folder: Path, page: Page) -> None:
    pictures = page.tags["img"]
    drawn = sorted(path.read_bytes() for path in (folder / "figures").iterdir())
    assert sorted(base64.b64decode(p["src"].partition(",")[2]) for p in pictures) == drawn
    assert len(page.tags["figcaption"]) == len(pictures) == len(drawn)
    for picture in pictures:
        assert len(picture["alt"]) > 10
        assert int(picture["width"]) > 100 and int(picture["height"]) > 100
    for number in range(1, len(pictures) + 1):
        assert f"Figure {number}." in page.text


def test_a_name_of_a_table_is_text(tmp_path: Path) -> None:
    names = ["<img src=x onerror=alert(1)>", "a\n\n## Injected\n\n<script>alert(2)</script> *b*|c"]
    generator = torch.Generator().manual_seed(0)
    for number in (0, 1):
        vectors = PretrainedVectors([f"w{i}" for i in range(30)], torch.randn(30, 8, generator=generator), "")
        write_vectors(tmp_path / f"{number}.txt", vectors)
    args = AnalysisArguments(
        [str(tmp_path / "0.txt"), str(tmp_path / "1.txt")], names=names, output_dir=str(tmp_path / "out"),
        html=True, k=3, sample=20, lengths=[4, 8],
    )  # fmt: skip
    analyze_embeddings(args, shlex.join(["hf-embinit", "analyze", "--names", *names]))
    report = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<(img|script)", report.partition("## How this was made")[0])
    assert not any(line.startswith("## Injected") for line in report.splitlines())
    page = Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert page.open == [] and not page.tags["script"] and "injected" not in page.tags["section"]
    assert len(page.tags["section"]) == report.count("\n## ")
    assert not any("onerror" in picture or "\\" in picture["alt"] for picture in page.tags["img"])
    assert all(f"{name} against" in " ".join(p["alt"] for p in page.tags["img"]) for name in names[:1])


def test_the_numbers_come_with_it(folder: Path, page: Page) -> None:
    (link,) = (a for a in page.tags["a"] if a.get("download"))
    inside = json.loads(base64.b64decode(link["href"].partition(",")[2]))
    assert link["download"] == "results.json" and inside == json.loads((folder / "results.json").read_text())


def test_a_page_comes_from_the_record_alone(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    assert render_page(results, folder) == (folder / "report.html").read_text(encoding="utf-8")
    assert render_report(results) == (folder / "report.md").read_text(encoding="utf-8")


# --- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_in_a_browser(browser: Browser, folder: Path, tmp_path: Path, width: int, dark: bool) -> None:
    browser.events.clear()
    url = (folder / "report.html").as_uri()
    browser.open(url, width, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate(
        "document.images.length > 3 && [...document.images].every(i => i.naturalWidth > 0)"
    )
    assert browser.evaluate("document.title") == "Embedding spaces: wide, narrow"
    cells = "[...document.querySelectorAll('section td, section th, section code')].map(e => e.textContent)"
    assert HOSTILE in browser.evaluate(cells)
    hidden = "e => e.scrollWidth > e.parentElement.clientWidth + 1 && e.parentElement.className != 'scroll'"
    assert browser.evaluate(f"[...document.querySelectorAll('table, img')].filter({hidden}).length") == 0
    colors = browser.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    text, back = (sum(map(int, re.findall(r"\d+", color))) for color in colors)
    assert (text > back + 450) if dark else (back > text + 450)
    picture = tmp_path / "page.png"
    browser.screenshot(picture)
    with Image.open(picture) as image:
        assert image.width == width and image.height > 2000
    assert browser.requests() == [url] and browser.complaints() == []
