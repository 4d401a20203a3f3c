"""The report on embedding spaces as one self-contained page of HTML: text, tables and figures."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..records import to_plain
from .text import render_report

if TYPE_CHECKING:
    from markdown_it.token import Token

_READABLE = 0.62  # of a figure's width in pixels: below that its labels are too small, and it scrolls instead
_COLUMN, _PHONE = 1024, 358  # widths in pixels that a figure has on a wide screen, and on a phone
_STYLE = Path(__file__).with_name("page.css")


def render_page(results: Mapping[str, Any], folder: str | os.PathLike[str]) -> str:
    """The whole page, from the report's `results.json` and the figures in `folder`."""
    parts, contents = report_sections(results, folder)
    title = html.escape(f"Embedding spaces: {', '.join(results['spaces'])}")
    return whole_page(title, contents, "", parts)


def report_sections(
    results: Mapping[str, Any], folder: str | os.PathLike[str]
) -> tuple[str, list[tuple[str, str]]]:
    """The sections of the report as HTML, figures and numbers inside, and the anchor and name of each."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("image", lambda self, tokens, i, options, env: html.escape(tokens[i].content))
    tokens = parser.parse(render_report(results))
    writer = _Writer(parser, Path(folder), captions(results))
    parts = writer.sections(tokens)
    numbers = json.dumps(to_plain(results), indent=2, ensure_ascii=False).encode()
    download = f'download="results.json" href="{_data_uri(numbers, "application/json")}"'
    return parts.replace('href="results.json"', download), writer.contents


def whole_page(
    title: str,
    contents: Sequence[tuple[str, str]],
    lead: str,
    main: str,
    *,
    style: str = "",
    script: str = "",
) -> str:
    """A page of HTML that loads nothing: title, `lead` and links to `contents`, then `main`; all are HTML.

    Its policy lets no other script run than `script`.
    """
    links = "".join(f'<li><a href="#{anchor}">{name}</a></li>' for anchor, name in contents)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; " if script else ""
    policy = (
        f"default-src 'none'; {allowed}style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<title>{title}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{_STYLE.read_text(encoding='utf-8')}{style}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{title}</h1>\n{lead}<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n'
        f"<main>\n{main}</main>\n" + (f"<script>{script}</script>\n" if script else "") + "</body>\n</html>\n"
    )


def captions(results: Mapping[str, Any]) -> dict[str, str]:
    """Path of each figure -> its caption."""
    figures, texts = results["figures"], {}
    for name, path in figures["distribution"].items():
        texts[path] = (
            f"How the values of {name} are spread (blue), beside Xavier's for a table of that size (orange) "
            "and the position encodings' (green, dashed). Left: as they are; right: times sqrt(D), as a "
            "model reads them. Both axes are logarithmic."
        )
    texts[figures["norms"]] = (
        "Norm of each row against the frequency of its token, frequent tokens on the left, with the running "
        "median as a line."
    )
    texts[figures["absorption"]] = (
        "What is left of words (blue) and positions (orange) in their sum, by sentence length: read off "
        "directly (solid) and after a linear map (dashed). Top: rows as they are; bottom: standardized."
    )
    texts[figures["match"]] = (
        "How far two spaces agree on the nearest neighbors of the tokens that both have: KNN match "
        "similarity of each pair, by inner product and by cosine."
    )
    return {path: caption for path, caption in texts.items() if path}


class _Writer:
    """Renders the tokens of the report's Markdown as HTML."""

    def __init__(self, parser: Any, folder: Path, captions: Mapping[str, str]):
        self.parser = parser
        self.folder = folder
        self.captions = captions
        self.contents: list[tuple[str, str]] = []
        """Anchor and name of each section."""
        self.figures = self.tables = 0

    def sections(self, tokens: Sequence[Token]) -> str:
        """A `<section>` for each heading of level 2; the heading of level 1 is the title of the page."""
        starts = [i for i, token in enumerate(tokens) if (token.type, token.tag) == ("heading_open", "h2")]
        parts = []
        for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
            name = self._render(tokens[start + 1 : start + 2])
            anchor = re.sub(r"[^a-z0-9]+", "-", tokens[start + 1].content.lower()).strip("-")
            self.contents.append((anchor, name))
            body = self._blocks(tokens[start + 3 : end], self._words(tokens[start + 1]))
            parts.append(f'<section id="{anchor}">\n<h2>{name}</h2>\n{body}</section>\n')
        return "".join(parts)

    def _blocks(self, tokens: Sequence[Token], heading: str) -> str:
        """The blocks as HTML: paragraphs that are a picture become figures, tables scroll by themselves."""
        parts, plain, i = [], list[Any](), 0
        while i < len(tokens):
            token = tokens[i]
            if token.type == "heading_open":
                heading = self._words(tokens[i + 1])
            picture = self._picture(tokens[i : i + 3])
            if picture is not None or token.type == "table_open":
                parts.append(self._render(plain))
                plain = []
            if picture is not None:
                parts.append(self._figure(picture))
                i += 3
            elif token.type == "table_open":
                end = next(j for j in range(i, len(tokens)) if tokens[j].type == "table_close") + 1
                self.tables += 1
                label = html.escape(f"Table {self.tables}, {heading}")
                parts.append(f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">\n')
                parts.append(self._render(tokens[i:end]) + "</div>\n")
                i = end
            else:
                plain.append(token)
                i += 1
        return "".join([*parts, self._render(plain)])

    def _picture(self, tokens: Sequence[Token]) -> Token | None:
        if [token.type for token in tokens] != ["paragraph_open", "inline", "paragraph_close"]:
            return None
        children = tokens[1].children or []
        return children[0] if len(children) == 1 and children[0].type == "image" else None

    def _figure(self, image: Token) -> str:
        from PIL import Image

        path = str(image.attrs["src"])
        self.figures += 1
        with Image.open(self.folder / path) as picture:
            width, height = picture.size
        source = _data_uri((self.folder / path).read_bytes(), "image/png")
        alt, caption = html.escape(self._words(image)), html.escape(self.captions[path])
        least = min(round(_READABLE * width), _COLUMN)
        wide = ' class="wide"' if least > _PHONE else ""
        return (
            f"<figure{wide}>\n"
            f'<div class="scroll" tabindex="0" role="region" aria-label="Figure {self.figures}">'
            f'<img src="{source}" alt="{alt}" width="{width}" height="{height}" '
            f'style="min-width: {least}px; max-width: {width}px"></div>\n'
            f"<figcaption><b>Figure {self.figures}.</b> {caption}</figcaption>\n</figure>\n"
        )

    def _words(self, token: Token) -> str:
        """The text of a heading or of a picture, without the signs of Markdown."""
        return self.parser.renderer.renderInlineAsText(token.children or [], self.parser.options, {})

    def _render(self, tokens: Sequence[Token]) -> str:
        return self.parser.renderer.render(list(tokens), self.parser.options, {})


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
