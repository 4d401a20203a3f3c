"""Command lines of the recipes: what is wrong with a flag is said by the parser, before anything heavy."""

from __future__ import annotations

import errno
import importlib.util
import io
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from builders import ROOT
from transformers import Seq2SeqTrainingArguments

from hf_embinit.records import NO_EFFECT
from hf_embinit.training import flag, parse_arguments, run_main

RECIPES = ("translate", "classify", "language_model", "expand_vocab")


class Parsed(Exception):
    """The arguments of a recipe, as its `main` got them."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch):
    """Reads a command line as a recipe does, and stops there; gives its dataclasses as one namespace."""

    def read(name: str, *argv: str) -> dict[str, Any]:
        spec = importlib.util.spec_from_file_location(f"recipe_{name}", ROOT / "recipes" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module: ModuleType = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)

        def parse(*args: Any, **kwargs: Any) -> None:
            raise Parsed(parse_arguments(*args, argv=argv, **kwargs))

        monkeypatch.setattr(module, "parse_arguments", parse)
        with pytest.raises(Parsed) as found:
            module.main()
        assert all(is_dataclass(part) for part in found.value.args[0])
        return {name: value for part in found.value.args[0] for name, value in vars(part).items()}

    return read


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--seeed", "1"], "unknown argument '--seeed'. Did you mean: --seed"),
        (["--seed", "one"], "invalid int value: 'one'"),
        (["--label_names", "a", "--label_names=b"], "--label_names is given twice and only the last would"),
        (["settings.txt"], "'settings.txt' is neither a flag nor a .json or .yaml file"),
        (["missing.yaml"], "the settings file 'missing.yaml' does not exist"),
    ],
)
def test_a_wrong_flag_is_one_sentence(read, capsys, name, argv, sentence) -> None:
    with pytest.raises(SystemExit) as end:
        read(name, *argv)
    assert end.value.code == 2 and sentence in capsys.readouterr().err


@pytest.mark.parametrize("name", RECIPES)
def test_help_says_what_each_flag_of_ours_is(read, capsys, name) -> None:
    with pytest.raises(SystemExit) as end:
        read(name, "--help")
    text = capsys.readouterr().out
    assert end.value.code == 0 and f"accelerate launch recipes/{name}.py" in text
    assert ("default: None" not in text and "--dataset" in text) or "--task" in text


def test_default_folders_tell_settings_apart(read) -> None:
    plain = read("translate")["output_dir"]
    assert plain == "runs/translate/captions-words-xavier-seed42"
    assert read("translate", "--seed", "1")["output_dir"] == "runs/translate/captions-words-xavier-seed1"
    same = (
        "--learning_rate",
        "0.001",
        "--use_cpu",
        "--report_to",
        "none",
        "--resume_from_checkpoint",
        "last",
    )
    assert read("translate", *same)["output_dir"] == plain  # the default, and what changes no result
    faster = read("translate", "--learning_rate", "0.01")["output_dir"]
    assert faster.startswith(f"{plain}-") and faster != read("translate", "--d_model", "64")["output_dir"]
    assert read("translate", "--learning_rate", "1e-2")["output_dir"] == faster
    assert read("translate", "--d_model", "64", "--output_dir", "mine")["output_dir"] == "mine"
    folder = "runs/retokenize/stories260K-fvt_max_tokens_3-seed0"
    given = ["--model", "models/stories260K", "--init", "fvt:max_tokens=3"]
    named = [read("retokenize", *given, *more)["output_dir"] for more in ([], ["--max_steps", "5"])]
    assert all(name.startswith(folder + "-") for name in named) and named[0] != named[1]
    one, other = (read("language_model", "--tokenizer", name)["output_dir"] for name in ("words", "gpt2"))
    assert one != other and "words" in one
    folders = [read("translate", "--dataset", f"{name}/data")["output_dir"] for name in ("a", "b")]
    assert folders[0] != folders[1] and all("/data-" in name for name in folders)
    kept = ["--model", "gpt2", "--init", "xavier"]
    assert (
        len(
            {
                read("language_model", *kept, *more)["output_dir"]
                for more in ([], ["--reinitialize_embeddings"])
            }
        )
        == 2
    )
    assert read("retokenize")["output_dir"] == "runs/retokenize/minilm-trans_tokenizer-seed0"


def test_the_names_of_run_glue_are_read_and_recorded_under_ours(read, tmp_path, capsys) -> None:
    def ours(found):
        return {name: value for name, value in found.items() if name != "distributed_state"}

    usual = ours(read("classify", "--task", "cola", "--model", "google-bert/bert-base-uncased"))
    theirs = ["--task_name", "cola", "--model_name_or_path", "google-bert/bert-base-uncased"]
    assert ours(read("classify", *theirs)) == usual
    assert ours(read("classify", "--dataset-name", "cola", *theirs[2:])) == usual
    given = ("--dataset_name", "a/b", "--dataset_config_name=c", "--tokenizer_name", "gpt2")
    found = read("language_model", *given, "--model_name_or_path", "gpt2")
    assert [found[n] for n in ("dataset", "dataset_config", "tokenizer", "model")] == [
        "a/b",
        "c",
        "gpt2",
        "gpt2",
    ]
    assert found["output_dir"].startswith("runs/language_model/b-gpt2-gpt2-kept-seed42")
    settings = tmp_path / "run.yaml"
    settings.write_text("model_name_or_path: gpt2\ndataset_name: wikitext-2\n")
    found = read("expand_vocab", str(settings))
    assert (found["model"], found["dataset"]) == ("gpt2", "wikitext-2")
    settings.write_text("model_name_or_path: gpt2\nmodel: gpt3\n")
    with pytest.raises(SystemExit):
        read("expand_vocab", str(settings))
    assert "gives --model twice, once as 'model'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "runs/a/model"), "runs/a/model: the disk is full"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "the disk is full: make room"),
        (PermissionError(errno.EACCES, "Permission denied", "/root/.cache"), "HF_HOME"),
        (OSError(errno.EROFS, "Read-only file system", "/mnt/x"), "/mnt/x: the disk is read-only"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "file/run"), "is a file, not a folder"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "aaa"), "the name is too long"),
        (RuntimeError("basic_ios::clear: iostream error"), "the disk is full"),
        (RuntimeError("[enforce fail at inline_container.cc] . unexpected pos 9 vs 8"), "the disk is full"),
    ],
)
def test_what_a_disk_refuses_is_one_sentence(error: Exception, sentence: str) -> None:
    def main() -> None:
        try:
            raise error
        except Exception as cause:
            raise ValueError("a library's own words") from cause

    with pytest.raises(SystemExit, match=sentence):
        run_main(main)


@pytest.mark.parametrize(
    ("number", "code", "told"), [("INT", 130, "interrupted"), ("TERM", 143, "told to end")]
)
def test_a_run_that_is_interrupted_says_how_it_goes_on(capsys, heeds_ctrl_c, number, code, told) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        run_main(lambda: os.kill(os.getpid(), signal.Signals[f"SIG{number}"]))
    said = capsys.readouterr().err
    assert end.value.code == code and said.startswith(f"{told}; ") and "from its last checkpoint" in said
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_worker_of_a_run_ends_at_sigterm_as_any_process_does() -> None:
    def main() -> None:
        worker = os.fork()
        if not worker:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))

    ended: list[int] = []
    run_main(main)
    assert ended == [143]


def test_an_error_of_ours_is_not_hidden() -> None:
    def main() -> None:
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        run_main(main)


def test_a_terminal_without_the_letters(monkeypatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    run_main(lambda: print("schläft"))  # noqa: T201
    out.flush()
    assert out.buffer.getvalue() == b"schl\\xe4ft\n"  # type: ignore[attr-defined]


def test_flags_have_lists_and_choices(tmp_path: Path) -> None:
    @dataclass
    class Arguments:
        """Some."""

        inits: list[str] = flag(["a", "b"], "Names.")
        norm: str = flag("pre", "Where.", choices=["pre", "post"])

    (found,) = parse_arguments((Arguments,), lambda known: {}, description="", argv=["--norm", "post"])
    assert (found.inits, found.norm) == (["a", "b"], "post")
    with pytest.raises(SystemExit):
        parse_arguments((Arguments,), lambda known: {}, description="", argv=["--norm", "mid"])


def test_what_is_not_given_keeps_its_default(read) -> None:
    """Naming the folder parses more than once, and must not touch the flags."""
    usual = Seq2SeqTrainingArguments(output_dir="x").to_dict()
    found = read("translate", "--max_steps", "3")
    assert found["predict_with_generate"] and found["load_best_model_at_end"] and found["d_model"] == 128
    for name in ("average_tokens_across_devices", "save_safetensors", "skip_memory_metrics", "seed", "optim"):
        if name in usual:
            assert str(found[name]).endswith(str(usual[name])) or found[name] == usual[name], name


@pytest.mark.parametrize(
    ("recipe", "argv", "steps"),
    [
        ("language_model", ["--dataset", "wikitext"], 16_000),
        ("language_model", ["--dataset", "wikitext", "--num_train_epochs", "1"], -1),
        ("language_model", ["--dataset", "wikitext", "--num_train_epochs=1", "--max_steps", "7"], 7),
        ("expand_vocab", [], 500),
        ("expand_vocab", ["--num-train-epochs", "2"], -1),
    ],
)
def test_who_asks_for_epochs_gets_them(read, recipe, argv, steps) -> None:
    assert read(recipe, *argv)["max_steps"] == steps


@pytest.mark.parametrize("name", RECIPES)
def test_a_loss_that_is_no_number_is_logged_unless_one_asks_otherwise(read, name) -> None:
    assert read(name)["logging_nan_inf_filter"] is False
    assert read(name, "--logging_nan_inf_filter", "true")["logging_nan_inf_filter"] is True
    if name == "language_model":
        assert read(name, "--twin_seeds", "1", "2")["logging_nan_inf_filter"] is False


def test_flags_of_examples_that_a_recipe_needs_not_change_nothing(read) -> None:
    plain, given = read("translate"), read("translate", "--do_train", "--do_eval", "True", "--do_predict")
    assert {name for name in plain if given[name] != plain[name]} <= {"distributed_state"}
    assert {"do_train", "do_eval", "do_predict"} <= NO_EFFECT


def test_a_reader_that_has_seen_enough() -> None:
    """What `reproduce.py list | head -1` does."""
    code = "from hf_embinit.training import run_main\nrun_main(lambda: [print(9) for _ in range(9**5)])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
