"""Vectors with a past: what they were trained on stays beside them and with every run that reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from builders.recipes import run_recipe

from hf_embinit.errors import FileWriteError, InvalidArgumentError, VectorFileError
from hf_embinit.records.record import read_record
from hf_embinit.training.finish import vector_digests
from hf_embinit.vectors import PretrainedVectors, check_taken, read_vectors, train_glove, write_vectors

SENTENCES = [["a", "small", "corpus"], ["a", "small", "test"]] * 4
SETTINGS = {"dim": 4, "window": 2, "min_count": 1, "x_max": 2.0, "epochs": 2, "progress": False}


def test_trained_vectors_keep_their_settings_beside_them(tmp_path):
    vectors = train_glove(SENTENCES, **SETTINGS)
    write_vectors(tmp_path / "a.4d.txt", vectors)
    read = read_vectors(tmp_path / "a.4d.txt", ["small"])
    assert read.provenance["settings"]["window"] == 2 and read.provenance["corpus_tokens"] == 24
    assert read.source["provenance"] == read.provenance
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.4d.json", "a.4d.txt"]


def test_another_file_under_that_name_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    write_vectors(path, train_glove(SENTENCES, **SETTINGS))
    path.write_bytes(path.read_bytes()[:-20])  # cut short, as by a full disk
    with pytest.raises(VectorFileError, match=r"not the file that a\.json describes.*or delete a\.json"):
        read_vectors(path)
    unknown = PretrainedVectors(["a"], torch.ones(1, 2), "mine")
    write_vectors(path, unknown)  # a new file takes the old one's past away
    assert read_vectors(path).provenance is None and not (tmp_path / "a.json").exists()
    assert "provenance" not in read_vectors(path).source


@pytest.mark.parametrize("text", ["{", "[]", '{"words": 3}', '{"vectors_file": {"name": "other.txt"}}'])
def test_json_of_others_says_nothing(tmp_path, text):
    write_vectors(tmp_path / "a.txt", PretrainedVectors(["a"], torch.ones(1, 2), "mine"))
    (tmp_path / "a.json").write_text(text)
    assert read_vectors(tmp_path / "a.txt").provenance is None


@pytest.mark.parametrize("text", ["{", '{"words": 3}', '{"vectors_file": {"name": "other.txt"}}'])
def test_a_json_of_others_is_left_alone(tmp_path, text):
    beside = tmp_path / "vocab.json"
    beside.write_text(text)
    vectors = PretrainedVectors(["a"], torch.ones(1, 2), "mine")
    write_vectors(tmp_path / "vocab.txt", vectors)
    assert beside.read_text() == text
    (tmp_path / "vocab.txt").unlink()
    vectors.provenance = {"method": "mine"}
    with pytest.raises(FileWriteError, match=r"would replace .*vocab\.json.*move vocab\.json away"):
        write_vectors(tmp_path / "vocab.txt", vectors)
    assert beside.read_text() == text and not (tmp_path / "vocab.txt").exists()


LIMITED = """
import resource, signal, sys, torch
from hf_embinit.vectors import PretrainedVectors, read_vectors, write_vectors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, rows, words = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
write_vectors(path, PretrainedVectors(["old"], torch.ones(1, 4), "x", provenance={"of": "old"}))
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
new = [f"t{i}" for i in range(rows)]
vectors = PretrainedVectors(new, torch.zeros(rows, 4), "x", provenance={"of": "new" * words})
try:
    write_vectors(path, vectors)
except Exception as error:
    print(type(error).__name__)
read = read_vectors(path)
print(read.tokens, read.provenance["of"])
"""


@pytest.mark.parametrize(("rows", "words"), [(200, 1), (2, 1000)])
def test_a_disk_that_takes_half_of_it_leaves_vectors_and_provenance_as_they_were(tmp_path, rows, words):
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "v.txt"), str(rows), str(words)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["FileWriteError", "['old'] old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.json", "v.txt"]


@pytest.mark.parametrize("there", [False, True])
def test_what_is_interrupted_between_the_two_files_is_made_by_the_same_command(tmp_path, monkeypatch, there):
    path = tmp_path / "v.txt"
    vectors = PretrainedVectors(["a"], torch.ones(1, 2), "mine", provenance={"request": "b"})
    if there:
        older = PretrainedVectors(["a"], torch.zeros(1, 2), "mine", provenance={"request": "b", "seed": 1})
        write_vectors(path, older)
    replaced = []

    def replace(source, target):
        if replaced:
            raise KeyboardInterrupt
        replaced.append(target)
        os.rename(source, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "replace", replace)
        write_vectors(path, vectors)
    assert replaced == [tmp_path / "v.json"] and path.exists() == there
    if there:
        with pytest.raises(VectorFileError, match="is not the file that"):
            read_vectors(path)
    check_taken(path, "b", "--output")
    write_vectors(path, vectors)
    assert read_vectors(path).provenance["request"] == "b"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.json", "v.txt"]


def test_vectors_are_not_written_over_their_own_provenance(tmp_path):
    vectors = PretrainedVectors(["a"], torch.ones(1, 2), "mine")
    with pytest.raises(InvalidArgumentError, match=r"choose a name such as vv\.txt"):
        write_vectors(tmp_path / "vv.json", vectors)
    assert not list(tmp_path.iterdir())


def test_a_record_without_a_past_says_so():
    source = {"name": "x.txt", "revision": None, "digest": "sha256:1"}
    event = {"tables": [{"side": "source", "rows": [0, 5], "source": source}]}
    assert vector_digests([event])["vectors, source"] == {
        "rows": 5, "sha256": "1", "name": "x.txt", "revision": None, "provenance": None,
    }  # fmt: skip


def test_a_run_carries_the_past_of_its_vectors(tmp_path):
    corpus = tmp_path / "text.csv"
    corpus.write_text("text\na film is good\nthe film was bad\nthe film was bad\n", encoding="utf-8")
    vectors = tmp_path / "words.8d.txt"
    flags = ["--language", "en", "--dim", "8", "--epochs", "1", "--min_count", "1"]
    done = run_recipe("train_vectors", "--corpus", f"{corpus}:text", *flags, "--output", str(vectors))
    assert done.returncode == 0, done.stderr[-2000:]
    beside = json.loads((tmp_path / "words.8d.json").read_text())
    (read,) = beside["corpora"]
    assert read["corpus"].endswith("text.csv:text") and read["texts"] == 2 and len(read["sha256"]) == 64
    assert beside["versions"]["torch"] == torch.__version__ and beside["language"] == "en"
    small = "--d_model 8 --d_ff 8 --num_layers 1 --num_heads 2 --max_train_samples 32 --max_eval_samples 8"
    rest = "--max_predict_samples 8 --num_train_epochs 1 --use_cpu true --init glove_xavier --output_dir"
    run = tmp_path / "run"
    done = run_recipe("classify", "--vectors", str(vectors), *small.split(), *rest.split(), str(run))
    assert done.returncode == 0, done.stderr[-2000:]
    assert read_record(run).data["vectors, shared"]["provenance"] == beside
