"""What README and guides tell one to type works: Python blocks run, commands are read by what they call.

Commands are those of `bash` blocks, those in `code` within a line, those in the docstrings of recipes and
in the examples of the command line. `<...>` in a command stands for something of the reader's own.
"""

from __future__ import annotations

import ast
import doctest
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import tomllib
import yaml
from builders import ROOT
from transformers.utils.chat_template_utils import render_jinja_template

import hf_embinit
from hf_embinit.__main__ import COMMANDS, _parser, main
from hf_embinit.training import arguments

RECIPES = sorted((ROOT / "recipes").glob("*.py"))
SKILL = ROOT / "hf_embinit" / "skills" / "hf-embinit" / "SKILL.md"
FOLDER = ROOT / "hf_embinit" / "guides"
OWN = [ROOT / "README.md", ROOT / "recipes" / "README.md", *sorted(FOLDER.glob("*.md")), SKILL]
CARDS = sorted((ROOT / "model_cards").rglob("*.md"))
GUIDES = [*OWN, *CARDS]
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
HARMLESS = {"list", "results"}
"""Commands of the command line that only read, and are run."""
OTHERS = {("hf", "extensions"), ("hf", "download"), ("git", "clone"), ("uv", "build")}
"""Programs of others, which are not read."""
LAUNCHER_FLAGS_WITH_VALUE = {
    *(
        "--num_processes",
        "--num_machines",
        "--mixed_precision",
        "--dynamo_backend",
        "--num_cpu_threads_per_process",
    ),
}


def blocks(guide: Path, language: str) -> list[str]:
    text = guide.read_text(encoding="utf-8")
    found = re.findall(rf"^([ ]*)```{language}\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    return ["".join(line.removeprefix(indent) for line in code.splitlines(True)) for indent, code in found]


def shown_output(guide: Path) -> list[tuple[str, str]]:
    """(command, output) of the `console` blocks: a line that starts with `$`, and what it prints."""
    found = []
    for code in blocks(guide, "console"):
        for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
            command, _, output = part.replace("\\\n", " ").partition("\n")
            found.append((command, output))
    return found


def is_ours(command: str) -> bool:
    """Whether a line names a recipe or the command line with something to do."""
    starts = re.match(r"(\.venv/bin/)?(python3?|accelerate launch|hf-embinit|hf embinit)\s", command)
    return bool(starts and re.search(r"recipes/\w+\.py|hf[-_ ]embinit\s+\w+ \S", command))


def documented_commands() -> Iterator[tuple[str, str]]:
    """(where, command)"""
    for guide in GUIDES:
        name = guide.relative_to(ROOT).as_posix()
        text = guide.read_text(encoding="utf-8")
        for code in blocks(guide, "bash"):
            for line in code.replace("\\\n", " ").splitlines():
                if line.strip() and not line.startswith("#"):
                    yield name, line.strip()
        for command, _ in shown_output(guide):
            yield name, command
        prose = re.sub(r"^([ ]*)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
        for code in re.findall(r"`([^`]+)`", prose):
            if is_ours(command := " ".join(code.split())) and "..." not in command:
                yield name, command
    for recipe in RECIPES:
        doc = ast.get_docstring(ast.parse(recipe.read_text(encoding="utf-8"))) or ""
        for line in doc.replace("\\\n", " ").splitlines():
            if line.startswith("    ") and is_ours(line.strip()):
                yield recipe.name, " ".join(line.split())
    for name, command in COMMANDS.items():
        for line in command.examples:
            yield f"hf-embinit {name} --help", line


def programs(command: str) -> list[list[str]]:
    """The words of each program in a line, without redirections, with something in the place of `<...>`."""
    command = re.sub(r"<[^<>]*>", "something", command.split("  #")[0])
    command = re.sub(r"\s\d?>>?\s*\S+", "", command)
    words: list[list[str]] = [[]]
    lexer = shlex.shlex(command, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    for word in lexer:
        if set(word) <= set("&|;"):
            words.append([])
        elif not (not words[-1] and re.fullmatch(r"[A-Z_]+=.*", word)):
            words[-1].append(word)
    return [program for program in words if program]


def without_launcher(words: list[str]) -> list[str]:
    """`accelerate launch --flags recipe.py ...` as `recipe.py ...`."""
    rest = words[2:]
    if rest[0] == "-m":
        module, _, name = rest[1].rpartition(".")
        assert module == "hf_embinit.recipes"
        return [f"recipes/{name}.py", *rest[2:]]
    while rest and rest[0].startswith("--"):
        rest = rest[2 if rest[0] in LAUNCHER_FLAGS_WITH_VALUE else 1 :]
    return rest


def read_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails unless the program reads its flags as they stand."""
    name = Path(words[0]).name
    if name == "accelerate":
        read_recipe(without_launcher(words), monkeypatch)
    elif name in ("python", "python3") and words[1] == "-m":
        module, rest = words[2], words[3:]
        if module == "hf_embinit":
            read_command_line(rest)
        else:
            assert module in ("venv", "pytest", "pip"), f"no check for python -m {module}"
    elif name in ("python", "python3"):
        read_recipe(words[1:], monkeypatch)
    elif name == "hf-embinit":
        read_command_line(words[1:])
    elif name == "hf" and words[1] == "embinit":
        read_command_line(words[2:])
    elif name == "pip":
        read_pip(words)
    elif name == "uv" and words[1] == "run":
        rest = words[2:]
        read_recipe(rest[2:] if rest[0] == "--find-links" else rest, monkeypatch)
    else:
        assert (name, words[1]) in OTHERS or name in ("cd", "cat", "ls"), f"no check for {shlex.join(words)}"


def read_command_line(argv: list[str]) -> None:
    try:
        _parser().parse_args(argv)
    except SystemExit as end:
        assert end.code in (0, None), f"hf-embinit does not read {shlex.join(argv)}"


def read_pip(words: list[str]) -> None:
    """The files and extras that pip is pointed to exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for flag, value in pairwise(words):
        if flag == "-c":
            assert (ROOT / value).is_file()
        if flag == "-e" and "[" in value:
            assert set(value[value.index("[") + 1 : -1].split(",")) <= set(extras)


class Parsed(Exception):
    """The recipe has read its arguments."""


def read_recipe(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / words[0]
    assert path in RECIPES, f"there is no recipe {words[0]}"
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)

    def parse(*args, **kwargs):
        arguments.parse_arguments(*args, **kwargs)
        raise Parsed

    assert module.parse_arguments is arguments.parse_arguments
    module.parse_arguments = parse
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(Parsed):
        module.main()


FENCE = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
PAGES = [guide for guide in OWN if FENCE.search(guide.read_text(encoding="utf-8"))]
DRIVER = """
import contextlib, io, json, os, runpy, shlex, sys
import datasets, peft, torch, transformers
import transformers.models.auto.modeling_auto, transformers.models.bert.modeling_bert, transformers.trainer
from transformers.models.gpt2 import modeling_gpt2
assert not any(name.startswith("hf_embinit") for name in sys.modules)

def run(program):
    names, printed = {"__name__": "__main__"}, []
    for language, code in program:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            if language == "python":
                exec(compile(code, "<block>", "exec"), names)
            else:
                name, *words = shlex.split(code)
                if name == "hf-embinit":
                    from hf_embinit.__main__ import main
                    main(words)
                else:
                    sys.argv = words
                    with contextlib.suppress(SystemExit):
                        runpy.run_path(words[0], run_name="__main__")
        printed.append(out.getvalue())
    return printed

for folder, program in json.load(sys.stdin):
    if os.fork() == 0:
        code = 1
        try:
            os.chdir(folder)
            os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT), 2)
            with open("printed.json", "w") as file:
                json.dump(run(program), file)
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.wait()
"""
"""One process that has imported what is slow and nothing of this package, and is forked for each page."""


def steps(page: Path) -> list[tuple[str, str, str | None]]:
    """(language, code, what it prints or None) of the Python blocks and the console commands of a page."""
    found: list[tuple[str, str, str | None]] = []
    for language, code, output in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            found.append((language, code, output or None))
            continue
        for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
            command, _, output = part.replace("\\\n", " ").partition("\n")
            assert re.match(r"hf-embinit \w|python recipes/\w+\.py ", command), command
            found.append((language, command, output))
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """Page -> the folder where its steps ran, from top to bottom."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    made = {page: tmp_path_factory.mktemp(page.stem) for page in PAGES}
    for folder in made.values():
        (folder / "recipes").symlink_to(ROOT / "recipes")
    programs = [(str(made[page]), [(lang, code) for lang, code, _ in steps(page)]) for page in PAGES]
    subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(programs),
        text=True,
        timeout=280,
        env={**os.environ, **OFFLINE, "HF_EMBINIT_DATA": "", "PYTHONPATH": str(ROOT)},
    )
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_does_offline_what_it_shows(page: Path, folders: dict[Path, Path]) -> None:
    """Its Python and its console commands, in one process and one folder. `...` in an output is anything."""
    if "from trl" in page.read_text(encoding="utf-8"):
        pytest.importorskip("trl")
    printed = folders[page] / "printed.json"
    errors = folders[page] / "stderr"
    assert printed.exists() and printed.stat().st_size, errors.read_text()[-3000:] if errors.exists() else ""
    checker = doctest.OutputChecker()
    for (_, code, shown), out in zip(steps(page), json.loads(printed.read_text()), strict=True):
        same = shown is None or checker.check_output(shown, out, doctest.ELLIPSIS)
        assert same, f"{code}\nprints\n{out}\nand not\n{shown}"


def test_the_template_that_marks_answers_writes_what_the_other_does() -> None:
    guide = FOLDER / "chat-and-tools.md"
    (marked,) = blocks(guide, "jinja")
    (plain,) = re.findall(r"tokenizer.chat_template = (\(.*?\n\))", blocks(guide, "python")[0], re.DOTALL)
    turns = [{"role": "user", "content": "dog"}, {"role": "assistant", "content": "A dog."}]
    for prompt in (False, True):
        written = [
            render_jinja_template([turns], chat_template=template, add_generation_prompt=prompt)[0]
            for template in (marked, ast.literal_eval(plain))
        ]
        assert written[0] == written[1]


@pytest.mark.parametrize("guide", CARDS, ids=lambda guide: guide.name)
def test_python_of_cards_is_python(guide: Path) -> None:
    """Cards load checkpoints from the Hub, which tests do not have: other tests load what a card is of."""
    for code in blocks(guide, "python"):
        names = [alias.name for node in ast.walk(ast.parse(code)) for alias in getattr(node, "names", [])]
        assert names, "a card's block imports what it uses"


@pytest.mark.parametrize(("where", "command"), sorted(set(documented_commands())))
def test_documented_commands_are_read(where, command, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"\b[\w.]+\.(?:yaml|json)\b", command):  # a file of settings of the reader's own
        (tmp_path / name).write_text("{}")
    for words in programs(command):
        read_command(words, monkeypatch)


def test_the_skill_is_one_that_agents_can_read() -> None:
    """As the skills of TRL and sentence-transformers: YAML with its name and when to use it, then text."""
    _, head, text = SKILL.read_text(encoding="utf-8").split("---\n", 2)
    head = yaml.safe_load(head)
    assert head["name"] == SKILL.parent.name and head["description"].startswith("Use when")
    assert len(head["description"]) <= 1024  # the limit of the format
    for row in re.findall(r"^\| [^|]+ \| `(\w+)\(", text, re.MULTILINE):
        assert hasattr(hf_embinit, row), f"there is no hf_embinit.{row}"
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (SKILL.parent / link).is_file()


def harmless_commands() -> list[str]:
    found = []
    for _, command in documented_commands():
        start = re.match(r"(python -m hf_embinit|hf-embinit|hf embinit) (\w+)", command)
        if start and start[2] in HARMLESS and not re.search(r"<|user/|\bruns\b", command):
            found.append(command[start.start(2) :])
    return sorted(set(found))


@pytest.mark.parametrize("command", harmless_commands())
def test_commands_that_only_read_are_run(command, monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    code, printed = main(shlex.split(command)), capsys.readouterr()
    assert code == 0 and printed.out, printed.err


def test_the_collector_finds_what_the_readme_shows() -> None:
    commands = [command for where, command in documented_commands() if where == "README.md"]
    assert any("recipes/translate.py --init glove_xavier" in command for command in commands)
    assert any(command.endswith("-m pytest") for command in commands)
    assert any(command.startswith("hf-embinit doctor") for command in commands)
    assert {recipe.name for recipe in RECIPES} <= {where for where, _ in documented_commands()}


@pytest.mark.parametrize(
    "command",
    [
        "python recipes/translate.py --inits xavier",
        "python recipes/nothing.py",
        "accelerate launch recipes/translate.py --num_train_epochs many",
        "hf-embinit lists",
        "python -m hf_embinit list --jsn",
        "make everything",
    ],
)
def test_a_wrong_command_is_noticed(command, monkeypatch) -> None:
    (words,) = programs(command)
    with pytest.raises((AssertionError, SystemExit)):
        read_command(words, monkeypatch)


def test_every_test_that_a_guide_names_is_there() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", "\n".join(texts.values()))
    assert len(named) > 45
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"
    rows = texts["troubleshooting.md"].split("## All threads")[1].strip().splitlines()
    assert sum(line.startswith("| ") and "---" not in line for line in rows) == 1 + 51
