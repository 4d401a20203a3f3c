"""Foreign text is made harmless where it is printed, tabled or drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from builders.records import make_record
from builders.run_folders import run_folder
from markdown_it import MarkdownIt

from hf_embinit.__main__ import main
from hf_embinit.cards import render_card
from hf_embinit.display import counted, markdown_code, markdown_table, markdown_text, printable
from hf_embinit.drawing import new_figure, save_figure
from hf_embinit.errors import InvalidArgumentError, UnknownNameError
from hf_embinit.records import results_table, write_record

EVIL = "a\x1b[2J\x9b31m\r\n| forged | row |\u202e![x](http://evil.example/x.png)`<img src=x>"
UNREADABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_counted() -> None:
    assert [counted(n, "run") for n in (0, 1, 1200)] == ["0 runs", "1 run", "1,200 runs"]


def test_printable_spells_out_what_is_not_for_reading() -> None:
    assert printable("a\x1b[2J\x9b\nb\u202e\ud800") == "a\\x1b[2J\\x9b\\nb\\u202e\\ud800"
    assert printable("Käse 猫 می\u200cخواهم") == "Käse 猫 می\u200cخواهم"
    assert not UNREADABLE.search(printable(EVIL))


@pytest.mark.parametrize(
    "word", [EVIL, "``", "`", "a|b", "\\", "**", "[x](y)", "<b>", "![x](http://e/x)", "``a`"]
)
def test_no_word_has_an_effect_in_a_table(word: str) -> None:
    table = markdown_table(["a", "b"], [[markdown_text(word), markdown_code(word)], [word, "x"]], "lr")
    assert table.count("\n") == 4
    html = MarkdownIt("commonmark").enable("table").render("\n".join(table.split("\n")[:3]))
    assert html.count("<td") == 2 and "<img" not in html and "<a " not in html and "<b>" not in html
    assert "<strong>" not in html and html.count("<code>") == 1
    shown = re.search(r"<code>(.*?)</code>", html)
    assert shown and len(shown[1]) >= len(word.replace("\\", ""))


def test_errors_are_one_line_that_a_terminal_can_show() -> None:
    for error in (InvalidArgumentError(f"no {EVIL}"), UnknownNameError("name", EVIL, ["x"])):
        assert "\n" not in str(error) and not UNREADABLE.search(str(error)) and "forged" in str(error)


def test_a_record_from_elsewhere_forges_no_row_and_moves_no_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = make_record(dataset=EVIL, init=EVIL, tokenizer=EVIL, arguments={"model": EVIL})
    table = results_table([record])
    assert len(table.strip().split("\n")) == 3 and not UNREADABLE.search(table)
    write_record(tmp_path, record)
    for flags in ([], ["--json"]):
        assert main(["results", str(tmp_path), *flags]) == 0
        assert not UNREADABLE.search(capsys.readouterr().out)
    manifest = [
        {"event": EVIL, EVIL: EVIL, "tables": [{"name": EVIL, "side": EVIL, "source": {"name": EVIL}}]}
    ]
    card = render_card(record, manifest=manifest, samples=[{"source": EVIL}], repo_id="user/name")
    assert not UNREADABLE.search(card.text)
    html = MarkdownIt("commonmark").enable("table").render(card.text)
    assert "<img" not in html and "<td>forged" not in html


def test_names_in_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder(tmp_path / "run", "gpt2")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["embinit"] = [{"event": EVIL, "init": EVIL, "tables": [{"name": EVIL, "source": {"name": EVIL}}]}]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    for command in (
        ["manifest", str(tmp_path / "run")],
        ["compare", str(tmp_path / "run"), str(tmp_path / "run")],
    ):
        for flags in ([], ["--json"]):
            assert main([*command, *flags]) == 0
            out = capsys.readouterr().out
            assert "forged" in out and not UNREADABLE.search(out)
            assert not any(line.startswith("| forged") for line in out.split("\n"))
            if flags:
                assert json.loads(out)


@pytest.mark.parametrize("text", ["$x_{$", "$", "a$b$c", "\\frac", EVIL])
def test_any_name_can_be_drawn(tmp_path: Path, text: str) -> None:
    figure, axes = new_figure(16, 5)
    ax = axes.flat[0]
    ax.plot([1, 2], [1, 100], label=text)
    ax.set_yscale("log")
    ax.set_title(text)
    if text != EVIL:  # labels of ticks are made again while drawing
        ax.set_xticks([1, 2], [text, "b"])
    ax.legend()
    figure.suptitle(text)
    assert save_figure(figure, tmp_path / "figure.png").stat().st_size > 1000
    assert text == EVIL or ax.get_title() == text


def test_the_page_of_a_report_loads_nothing(tmp_path: Path) -> None:
    words = [
        "![x](http://evil.example/x.png)",
        "<img src=http://evil.example/y>",
        "[a](http://evil.example/z)",
        "$x_{$",
    ]
    lines = [f"{word} {i}.5 -1 {i * i}" for i, word in enumerate([*words, *"abcdefghijklmnopqrstuvwxyz"], 1)]
    (tmp_path / "v.txt").write_text("\n".join(lines) + "\n")
    names = ["![n](http://evil.example/n.png)$x_{$"]
    flags = ["--names", *names, "--words", words[0], "--html", "--output_dir", str(tmp_path / "report")]
    assert main(["analyze", str(tmp_path / "v.txt"), *flags]) == 0
    (page,) = (tmp_path / "report").glob("*.html")
    html = page.read_text(encoding="utf-8")
    loaded = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert loaded and all(link.startswith(("data:", "#")) for link in loaded)
    assert "<img src=http" not in html and "evil.example" in html  # as words
