"""The command line: what each command does, prints and leaves, its exit codes, and how it is installed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.command_line import embinit, load
from builders.forks import Fork
from builders.loopback_hub import Client, Hub
from builders.run_folders import run_folder
from builders.tiny_tokenizers import tokenizer
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedTokenizerBase

import hf_embinit
from hf_embinit import __main__ as cli
from hf_embinit.cli.command import read_options
from hf_embinit.report import AnalysisArguments


def equal_but_embeddings(a: BertForMaskedLM, b: BertForMaskedLM) -> bool:
    other = b.state_dict()
    return all(
        torch.equal(value, other[name])
        for name, value in a.state_dict().items()
        if name not in ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight")
    )


# --- help, examples, exit codes


def test_help_lists_every_command_and_the_exit_codes(capsys) -> None:
    code, out, _ = embinit(capsys, "--help")
    assert code == 0
    for name, command in cli.COMMANDS.items():
        assert f"  {name} " in out and command.summary in out
    for number in (0, 1, 2, 130, 141, 143):
        assert f" {number} " in out
    assert embinit(capsys, "--version")[1] == f"hf-embinit {hf_embinit.__version__}\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_explains_itself_with_examples_that_parse(name: str, capsys) -> None:
    code, out, _ = embinit(capsys, name, "--help")
    command = cli.COMMANDS[name]
    assert code == 0 and "".join(command.description.split()) in "".join(out.split())
    assert command.examples and "--json" in out
    for line in command.examples:
        assert f"\n  {line}\n" in f"{out}\n"
        program, *words = shlex.split(line)
        assert program == "hf-embinit" and cli._parser().parse_args(words).command == name


def test_every_flag_says_what_it_is_for() -> None:
    (subparsers,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, parser in subparsers.choices.items():
        for action in parser._actions:
            assert action.help, f"{name} {action.dest}"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["lst"],
        ["list", "--colour"],
        ["init", "x", "--init", "xavier"],
        ["expand", "x", "--output_dir", "y"],
        ["expand", "x", "--tokens", "a"],
        ["expand", "x", "--tokens", "a", "--tokens_file", "b", "--output_dir", "y"],
        ["init", "x", "--init", "xavier", "--output_dir", "y", "--option", "scale"],
        ["surgery"],
        ["surgery", "x", "reversed"],
        ["results"],
        ["results", ""],
        ["doctor", " "],
        ["list", "--js"],
    ],
    ids=" ".join,
)
def test_a_command_line_that_cannot_be_read_ends_with_2(
    words: list[str], capsys, monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = embinit(capsys, *words)
    assert (code, out) == (2, "") and "error:" in err and not list(tmp_path.iterdir())


def test_an_error_of_ours_is_one_line_and_1(capsys, tmp_path, model) -> None:
    for words, message in (
        (["init", model, "--init", "glvoe", "--output_dir", tmp_path / "o"], "Did you mean: glove"),
        (
            ["init", model, "--init", "glove", "--output_dir", tmp_path / "o", "--option", "x=1"],
            "no option 'x'",
        ),
        (["init", tmp_path / "no", "--init", "xavier", "--output_dir", tmp_path / "o"], "model '"),
        (["init", model, "--init", "xavier", "--output_dir", model], "is not empty"),
        (["expand", model, "--tokens_file", tmp_path / "no", "--dry_run"], "--tokens_file"),
        (["surgery", model, "upside_down", "--output_dir", tmp_path / "o"], "Unknown surgery 'upside_down'"),
        (["results", tmp_path], "no run's results.json below"),
        (["manifest", tmp_path], "no config.json"),
    ):
        code, out, err = embinit(capsys, *words)
        assert (code, out) == (1, ""), words
        last = err.splitlines()[-1]
        assert last.startswith("error: ") and message in last
    assert not list(tmp_path.iterdir())


def test_options_are_json_or_text() -> None:
    assert read_options(["scale=1e-5", "of=king", 'words=["a"]']) == {
        "scale": 1e-5,
        "of": "king",
        "words": ["a"],
    }


NO_PATHS = {
    *("arguments", "collection", "init", "keep", "language", "license", "match", "names", "option"),
    *("pattern", "purpose", "recipe", "refill", "refine", "repo_id", "revisions", "shell", "side", "slots"),
    *("surgery", "table", "token", "tokens", "words"),
}


def test_a_home_folder_is_meant_by_every_path(monkeypatch, capsys, model, tmp_path) -> None:
    (subparsers,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    actions = [action for parser in subparsers.choices.values() for action in parser._actions]
    texts = {a.dest for a in actions if a.nargs != 0 and a.type in (None, str, cli._not_empty)}
    assert texts == cli.PATHS | NO_PATHS
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model, tmp_path / "base")
    grow = ["expand", "~/base", "--tokens", "~", "~/a", "--output_dir=~/grown"]
    assert embinit(capsys, *grow)[0] == 0
    code, out, _ = embinit(capsys, "manifest", "~/grown")
    assert code == 0 and "expand" in out
    added = json.loads((tmp_path / "grown" / "tokenizer.json").read_text())["added_tokens"]
    assert {"~", "~/a"} <= {token["content"] for token in added}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "grown"]


def test_underscores_and_dashes_are_the_same_in_flags() -> None:
    words = ["expand", "m", "--tokens-file", "f", "--output-dir", "o", "--pad-to-multiple-of", "8"]
    args = cli._parser().parse_args(words)
    assert (args.tokens_file, args.output_dir, args.pad_to_multiple_of) == ("f", "o", 8)


# --- list, manifest


def test_list(capsys) -> None:
    names = [record.name for record in hf_embinit.list_initializers("glove*")]
    code, out, _ = embinit(capsys, "list", "glove*")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == names
    _, out, _ = embinit(capsys, "list", "--purpose", "rows", "--json")
    found = json.loads(out)
    assert [r["name"] for r in found] == [r.name for r in hf_embinit.list_initializers(purpose="rows")]
    assert {"name", "makes", "summary", "source", "needs", "options"} <= set(found[0])
    (options,) = [r["options"] for r in found if r["name"] == "mean_cov"]
    assert isinstance(options["scale"], float)  # a JSON number, not its Python text


@pytest.mark.parametrize(
    ("words", "code", "near"),
    [(["list", "glovee*"], 1, "Did you mean: glove"), (["lst"], 2, "Did you mean: list")],
)
def test_a_misspelt_name_is_answered_by_the_nearest(words, code, near, capsys) -> None:
    found, out, err = embinit(capsys, *words)
    assert (found, out) == (code, "") and near in err


# --- init


def test_init_is_initialize_and_keeps_the_rest(model, vectors, tmp_path, capsys) -> None:
    out = tmp_path / "deep" / "out"
    words = ("--init", "pretrained_xavier", "--vectors", vectors, "--seed", "3", "--output_dir", out)
    code, text, err = embinit(capsys, "init", model, *words)
    assert code == 0, err
    before, reader = load(model)
    expected = hf_embinit.initialize(
        before, "pretrained_xavier", tokenizer=reader, vectors=str(vectors), seed=3
    )
    assert text == f"{expected}\nsaved: {out}\n"
    after, saved_reader = load(out)
    assert torch.equal(after.get_input_embeddings().weight, before.get_input_embeddings().weight)
    assert equal_but_embeddings(after, load(model)[0])
    assert saved_reader.get_vocab() == reader.get_vocab()
    code, text, _ = embinit(capsys, "manifest", out, "--json")
    assert json.loads(text) == hf_embinit.read_manifest(out) and json.loads(text)[0]["seed"] == 3
    code, text, _ = embinit(capsys, "manifest", out)
    assert text.startswith("initialize ") and "seed 3" in text.splitlines()[0] and ": rows 0 to " in text
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_init_from_the_config_alone_draws_everything_from_the_seed(model, tmp_path, capsys) -> None:
    state = torch.get_rng_state()
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        words = ("--config_only", "--init", "xavier", "--seed", seed, "--output_dir", tmp_path / name)
        code, _, err = embinit(capsys, "init", model, *words)
        assert code == 0, err
    assert torch.equal(state, torch.get_rng_state())
    a, b, c = (load(tmp_path / name)[0] for name in "abc")
    assert equal_but_embeddings(a, b) and not equal_but_embeddings(a, c)
    assert not equal_but_embeddings(a, load(model)[0])
    assert torch.equal(a.get_input_embeddings().weight, b.get_input_embeddings().weight)


def test_init_of_our_own_model_as_json(tmp_path, capsys) -> None:
    run_folder(tmp_path / "run", "translation")
    code, out, err = embinit(
        capsys, "init", tmp_path / "run", "--init", "xavier", "--output_dir", tmp_path / "o", "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["output_dir"] == str(tmp_path / "o") and {t["side"] for t in found["tables"]} == {
        "source",
        "target",
    }
    from transformers import AutoModelForSeq2SeqLM

    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "o")
    assert type(loaded).__name__ == "VanillaTransformerForConditionalGeneration"


@pytest.mark.parametrize("error, code", [(OSError("disk full"), 1), (KeyboardInterrupt(), 130)])
def test_a_failure_while_saving_leaves_nothing(model, tmp_path, capsys, monkeypatch, error, code) -> None:

    def fail(*_: Any, **__: Any) -> None:
        (hidden,) = tmp_path.iterdir()
        assert (hidden / "config.json").exists() and hidden.name.startswith(".out.")
        raise error

    monkeypatch.setattr(PreTrainedTokenizerBase, "save_pretrained", fail)
    words = ("--init", "xavier", "--tokenizer", model, "--output_dir", tmp_path / "out")
    found, out, err = embinit(capsys, "init", model, *words)
    assert (found, out) == (code, "") and not list(tmp_path.iterdir())
    assert err.splitlines()[-1] in (
        "interrupted",
        f"error: the folder {tmp_path / 'out'} cannot be written: disk full",
    )


TERMINATED = """
import os, signal
from transformers import PreTrainedTokenizerBase
from hf_embinit.__main__ import run
PreTrainedTokenizerBase.save_pretrained = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
run()
"""


def test_told_to_end_it_leaves_nothing(model, tmp_path) -> None:
    words = ["init", str(model), "--init", "xavier", "--tokenizer", str(model)]
    fork = Fork(TERMINATED, *words, "--output_dir", str(tmp_path / "out"))
    out, err = fork.communicate()
    assert (fork.poll(), out) == (143, "") and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_an_empty_output_folder_is_filled(model, tmp_path, capsys) -> None:
    assert embinit(capsys, "init", model, "--init", "zeros", "--output_dir", tmp_path)[0] == 0
    assert (tmp_path / "model.safetensors").is_file()
    (tmp_path / "file").touch()
    code, _, err = embinit(capsys, "init", model, "--init", "zeros", "--output_dir", tmp_path / "file")
    assert code == 1 and "is a file" in err


def test_a_pickle_is_refused_unless_asked_for(model, tmp_path, capsys) -> None:
    folder = tmp_path / "pickled"
    loaded, reader = load(model)
    loaded.config.save_pretrained(folder)
    reader.save_pretrained(folder)
    torch.save(loaded.state_dict(), folder / "pytorch_model.bin")
    words = ("init", folder, "--init", "zeros", "--output_dir", tmp_path / "o")
    code, _, err = embinit(capsys, *words)
    assert code == 1 and "safetensors" in err
    assert embinit(capsys, *words, "--allow_pickle")[0] == 0


# --- expand, surgery


def test_expand_is_expand_vocabulary(model, tmp_path, capsys) -> None:
    (tmp_path / "words.txt").write_text("<aragorn>\n\n<frodo>\n", encoding="utf-8")
    words = ("--tokens_file", tmp_path / "words.txt", "--init", "subword_mean")
    code, out, err = embinit(capsys, "expand", model, *words, "--output_dir", tmp_path / "o", "--json")
    assert code == 0, err
    found = json.loads(out)
    before, reader = load(model)
    expected = hf_embinit.expand_vocabulary(before, reader, ["<aragorn>", "<frodo>"], init="subword_mean")
    assert found["shift"] is None
    assert found["bound"] == expected.bound and [t["token"] for t in found["tokens"]] == [
        "<aragorn>",
        "<frodo>",
    ]
    after, saved_reader = load(tmp_path / "o")
    assert saved_reader.convert_tokens_to_ids(["<aragorn>", "<frodo>"]) == expected.token_ids
    assert torch.equal(after.get_input_embeddings().weight, before.get_input_embeddings().weight)
    assert torch.equal(after.cls.predictions.bias, before.cls.predictions.bias)
    words = (*words, "--output_dir", tmp_path / "measured", "--measure", "--json")
    code, out, err = embinit(capsys, "expand", model, *words)
    assert code == 0, err
    shift = json.loads(out)["shift"]
    assert shift["kl_mean"] == pytest.approx(expected.shift.kl_mean, abs=1e-6)
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "measured" / file).read_bytes() == (tmp_path / "o" / file).read_bytes()
    code, out, _ = embinit(capsys, "expand", model, "--tokens", "<aragorn>", "--dry_run")
    assert code == 0 and out.startswith("would add 1 tokens by mean")


def test_measuring_a_model_without_a_head_says_that_nothing_was_measured(tmp_path, capsys) -> None:
    words = tokenizer("wordpiece")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    for part in (BertModel(BertConfig(vocab_size=len(words), **sizes)), words):
        part.save_pretrained(tmp_path / "encoder")
    flags = ("--tokens", "[tool]", "--measure", "--output_dir", tmp_path / "more")
    code, said, _ = embinit(capsys, "expand", tmp_path / "encoder", *flags)
    assert code == 0 and "--measure measured nothing: BertModel gives no distribution over tokens" in said


@pytest.mark.filterwarnings("default::hf_embinit.errors.VocabularyWarning")
def test_a_warning_is_one_line_on_stderr(model, tmp_path, capsys) -> None:
    words = ("--tokens", "aragorn", "frodo", "--init", "copy", "--option", "of=the")
    code, _, err = embinit(capsys, "expand", model, *words, "--output_dir", tmp_path / "o")
    (line,) = (line for line in err.splitlines() if "equal rows" in line)
    assert code == 0 and line.startswith("warning: some of the new tokens have equal rows")


def test_surgery(model, tmp_path, capsys) -> None:
    spec = "reversed+shuffled_embeddings"
    code, out, err = embinit(capsys, "surgery", model, spec, "--seed", "2", "--output_dir", tmp_path / "o")
    assert code == 0, err
    expected, reader = load(model)
    hf_embinit.surgery.apply(expected, spec, tokenizer=reader, seed=2)
    after, _ = load(tmp_path / "o")
    assert all(torch.equal(v, after.state_dict()[k]) for k, v in expected.state_dict().items())
    assert out.startswith(f"{spec} (seed 2): BertForMaskedLM with ")


def test_surgery_that_brings_a_tokenizer_saves_it(model, tmp_path, capsys) -> None:
    donor = tmp_path / "donor"
    words = tokenizer("words")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(donor)
    words.save_pretrained(donor)
    options = ("--option", f"donor={donor}", "--output_dir", tmp_path / "o", "--json")
    code, out, err = embinit(capsys, "surgery", model, "donor_embeddings", *options)
    assert code == 0, err
    assert json.loads(out)["events"][-1]["surgery"] == "donor_embeddings"
    after, reader = load(tmp_path / "o")
    assert reader.get_vocab() == words.get_vocab() and after.config.vocab_size == len(words)


def test_surgery_lists_its_interventions(capsys) -> None:
    names = [record.name for record in hf_embinit.surgery.list()]
    code, out, _ = embinit(capsys, "surgery", "--list")
    assert code == 0 and [line.split()[0] for line in out.splitlines()[:-1]] == names
    assert [r["name"] for r in json.loads(embinit(capsys, "surgery", "--list", "--json")[1])] == names


# --- analyze


def test_analyze_has_the_flags_of_the_recipe_and_writes_its_report(vectors, tmp_path, capsys) -> None:
    parsed = cli._parser().parse_args(["analyze", "a", "b"])
    defaults = AnalysisArguments(sources=["a", "b"])
    for field in dataclasses.fields(AnalysisArguments):
        assert getattr(parsed, field.name) == getattr(defaults, field.name), field.name
    out = tmp_path / "report"
    words = ("--k", "3", "--sample", "20", "--lengths", "4", "8", "--output_dir", out, "--html")
    code, text, err = embinit(capsys, "analyze", vectors, *words)
    assert code == 0, err
    assert "sd is" in text and f"page:   {out / 'report.html'}" in text
    kept = json.loads((out / "results.json").read_text())
    assert kept["command"] == shlex.join(["hf-embinit", "analyze", str(vectors), *map(str, words)])
    assert kept["arguments"]["lengths"] == [4, 8] and (out / "report.html").is_file()
    code, text, _ = embinit(capsys, "analyze", vectors, *words[:-1], "--json")
    found = json.loads(text)
    assert code == 0 and found["spaces"] == json.loads((out / "results.json").read_text())["spaces"]
    assert not (out / "report.html").exists()  # an older report's page does not stay beside the new report


# --- results, compare, publish


def test_results(tmp_path, capsys) -> None:
    for seed in (1, 2):
        run_folder(tmp_path / "runs" / "deep" / f"seed{seed}", seed=seed)
    from hf_embinit.records import find_records, results_table

    records = find_records(tmp_path / "runs")[0].values()
    code, out, _ = embinit(capsys, "results", tmp_path / "runs")
    assert code == 0 and out == results_table(records)
    (tmp_path / "runs" / "report").mkdir()
    (tmp_path / "runs" / "report" / "results.json").write_text('{"spaces": {}}')  # no run's
    sources = (tmp_path / "runs" / "deep" / "seed1", tmp_path / "runs")
    code, out, _ = embinit(capsys, "results", *sources, "--json")
    assert code == 0 and [r["seed"] for r in json.loads(out)] == [1, 1, 2]
    code, _, err = embinit(capsys, "results", "user/name")
    assert code == 1 and "Hub" in err


def test_compare_hands_on(capsys, monkeypatch) -> None:
    class Comparison:
        def to_dict(self) -> dict[str, float]:
            return {"knn_match": 0.5}

        def __str__(self) -> str:
            return "they agree"

    asked = []
    monkeypatch.setattr(hf_embinit, "compare", lambda a, b, **o: asked.append((a, b, o)) or Comparison())
    assert embinit(capsys, "compare", "x", "y")[:2] == (0, "they agree\n")
    words = ("--revisions", "init", "main", "--k", "3", "--json")
    assert json.loads(embinit(capsys, "compare", "x", "y", *words)[1]) == {"knn_match": 0.5}
    defaults = {"k": 10, "table": None, "revisions": (None, None), "allow_pickle": False}
    assert asked == [("x", "y", defaults), ("x", "y", {**defaults, "k": 3, "revisions": ("init", "main")})]


def test_compare(model, vectors, tmp_path, capsys) -> None:
    init = ("--init", "pretrained", "--vectors", vectors, "--output_dir", tmp_path / "o")
    assert embinit(capsys, "init", model, *init)[0] == 0
    code, out, err = embinit(capsys, "compare", model, tmp_path / "o", "--k", "3", "--json")
    assert code == 0, err
    expected = hf_embinit.compare(model, tmp_path / "o", k=3).to_dict()
    assert json.loads(out)["knn_match"] == expected["knn_match"] and json.loads(out)["k"] == 3


COMMANDS = """
import contextlib, io, json
from hf_embinit.__main__ import main
for words in commands:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def test_publish_and_results_of_the_hub(hub: Hub, writer: Client, tmp_path: Path) -> None:
    record = run_folder(tmp_path / "run", "gpt2")
    commands = [
        ["publish", str(tmp_path / "run"), "user/mine", "--private", "--json"],
        ["results", "user/mine", "--json"],
        ["manifest", "user/mine", "--json"],
        ["publish", str(tmp_path), "user/mine"],
    ]
    answers = map(json.loads, writer.run(COMMANDS, commands=commands).splitlines())
    (*published, _), (_, results, _), (_, manifest, _), failed = answers
    assert hub.repository("user/mine").private
    assert published[0] == 0 and json.loads(published[1])["repo_id"] == "user/mine"
    (found,) = json.loads(results)
    assert (found["init"], found["seed"]) == (record.init, record.seed)
    assert json.loads(manifest)[0]["init"] == "xavier"
    assert failed[:2] == [1, ""] and "error: " in failed[2]
