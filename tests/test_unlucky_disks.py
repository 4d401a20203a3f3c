"""A full disk, a read-only one, no home, a name too long, a terminal without letters: one sentence each.

All cases are called in one process, which sees a disk of 64 KiB and a read-only one, has no home, and writes
ASCII.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT
from builders.command_line import save_bert, save_bert_vectors
from builders.run_folders import run_folder
from builders.tiny_tokenizers import model, tokenizer
from safetensors import SafetensorError

import hf_embinit
from hf_embinit.__main__ import main
from hf_embinit.errors import FileWriteError

LONG = "n" * 300
TRAIN = (
    "--use_cpu --disable_tqdm true --max_steps 1 --max_train_samples 16 --max_eval_samples 4 "
    "--max_predict_samples 4 --d_model 16 --d_ff 16 --num_layers 1 --num_heads 2 --max_target_length 4 "
    "--eval_strategy no --save_strategy no --load_best_model_at_end false"
)
FULL, READ_ONLY, NO_FOLDER, TOO_LONG = (
    "is full",
    "is read-only",
    "is a file, not a folder",
    "name is too long",
)
CASES = [
    "hf-embinit init model --init xavier --output_dir {}",
    "hf-embinit expand model --tokens zyxomma --output_dir {}",
    "hf-embinit surgery model reversed --output_dir {}",
    "hf-embinit doctor model --fix {}",
    "hf-embinit analyze vectors.txt --k 2 --sample 5 --lengths 8 --output_dir {}",
    "hf-embinit cards run {}",
    f"translate {TRAIN} --output_dir {{}}",
    "compare_vocabularies --tokenizer model --reference model --output_dir {}",
]
PLACES = {"small/o": FULL, "readonly/o": READ_ONLY, "file/o": NO_FOLDER, LONG: TOO_LONG}
DRIVER = """
import json, os, shlex, sys, contextlib, io, traceback
sys.path.insert(0, sys.argv[1])
from builders.recipes import run_recipe
from hf_embinit.__main__ import main
for line in json.loads(sys.stdin.read()):
    program, *words = shlex.split(line)
    err = io.StringIO()
    try:
        if program == "hf-embinit":
            with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
                code = main(words)
            text = err.getvalue()
        else:
            done = run_recipe(program, *words)
            code, text = done.returncode, done.stderr
    except BaseException:
        code, text = -1, traceback.format_exc()
    print("@", json.dumps([code, text.strip()[-1500:]]), flush=True)
"""
MOUNTS = (
    "mount -t tmpfs -o size=64k tmpfs small; head -c 65536 /dev/zero > small/fill; "
    "mount -t tmpfs -o ro tmpfs readonly"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("disks")
    save_bert(root / "model")
    save_bert_vectors(root / "vectors.txt")
    run_folder(root / "run")
    (root / "file").write_text("x")
    for name in ("small", "readonly"):
        (root / name).mkdir()
    return root


def test_what_a_disk_refuses_is_one_sentence_in_every_program(place: Path) -> None:
    probe = subprocess.run(["unshare", "-m", "sh", "-c", MOUNTS], cwd=place, capture_output=True)
    if probe.returncode:
        pytest.skip("no disks can be mounted here")
    wanted = [(line.format(where), said) for line in CASES for where, said in PLACES.items()]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "MPL"))}
    env |= {"HOME": "/proc/nowhere", "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "HF_HUB_OFFLINE": "1"}
    env["PYTHONPATH"] = str(ROOT)
    command = f'{MOUNTS} && exec "$0" -c "$1" "$2"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, sys.executable, DRIVER, str(ROOT / "tests")],
        input=json.dumps([line for line, _ in wanted]),
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    told = [json.loads(line[2:]) for line in done.stdout.splitlines() if line.startswith("@ ")]
    assert len(told) == len(wanted), done.stderr[-3000:]
    problems = []
    for (line, said), (code, text) in zip(wanted, told, strict=True):
        last = text.splitlines()[-1] if text else ""
        said = "MiB left" if "MiB left" in last and said == FULL else said  # found before the first byte
        if code != 1 or "Traceback" in text or "error: " not in last or said not in last:
            problems.append((line[:80], code, text[-600:]))
    assert not problems, problems


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_cannot_be_written_is_one_sentence(place: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hf_embinit", "list"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/proc/nowhere"},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1 and "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.stderr.startswith("error: the disk is full")


def _writes_half(tensors, file, metadata=None):
    Path(file).write_bytes(b"half")
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("broken", ["rows", "manifest", "config"])
def test_a_vocabulary_that_does_not_fit_leaves_the_earlier_one_whole(tmp_path, monkeypatch, broken) -> None:
    model_, words = model("gpt2", 500), tokenizer("byte_level", 500)
    hf_embinit.expand_vocabulary(model_, words, ["<one>"], prefixes=())
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert hf_embinit.save_vocabulary(model_, tmp_path)
    before = _content(tmp_path)
    hf_embinit.expand_vocabulary(model_, words, ["<two>", "<three>"], prefixes=())
    write = Path.write_text

    def write_text(self, text, **options):
        if ("peft_type" in text) == (broken == "config"):
            write(self, text[:5], **options)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, text, **options)

    if broken == "rows":
        monkeypatch.setattr("safetensors.torch.save_file", _writes_half)
    else:
        monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(FileWriteError, match="the disk is full"):
        hf_embinit.save_vocabulary(model_, tmp_path)
    monkeypatch.undo()
    assert _content(tmp_path) == before
    assert hf_embinit.save_vocabulary(model_, tmp_path)
    assert _content(tmp_path) != before and "peft_type" in (tmp_path / "adapter_config.json").read_text()


def test_coefficients_that_do_not_fit_leave_nothing(tmp_path, monkeypatch, capsys) -> None:
    model("gpt2", 500).save_pretrained(tmp_path / "model")
    tokenizer("byte_level", 500).save_pretrained(tmp_path / "model")
    tokenizer("unigram", 300).save_pretrained(tmp_path / "new")
    out = tmp_path / "out"
    words = ["retokenize", str(tmp_path / "model"), str(tmp_path / "new"), "--init", "mean"]
    monkeypatch.setattr("hf_embinit.retokenize.coefficients.save_file", _writes_half)
    assert main([*words, "--output_dir", str(out)]) == 1
    assert "the disk is full" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "new"]
    monkeypatch.undo()
    assert main([*words, "--output_dir", str(out), "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["coefficients"]
    assert Path(file).parent == out and Path(file).is_file()
