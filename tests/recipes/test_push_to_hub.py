"""`--push_to_hub` of the recipes: refused before training, or published after it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from builders import ROOT
from builders.loopback_hub import Client, Hub
from builders.recipes import Done
from builders.run_folders import run_folder
from safetensors.torch import load, load_file

from hf_embinit.vectors import read_vectors

SMALL = {
    "max_train_samples": 64,
    "max_eval_samples": 8,
    "d_model": 16,
    "d_ff": 32,
    "num_layers": 1,
    "num_heads": 2,
    "per_device_train_batch_size": 16,
    "num_train_epochs": 1,
    "use_cpu": True,
    "disable_tqdm": True,
    "push_to_hub": True,
}


STARTED = """
import json, sys

sys.path[:0] = [tests]
from builders.recipes import run_recipe

print(json.dumps(vars(run_recipe(name, settings, HF_TOKEN=token))))
"""


def recipe(client: Client, folder: Path, name: str, token: str = "hf_writer", **flags: object) -> Done:
    """`run_recipe` in the client's process, by `token`."""
    settings = folder / "settings.json"
    settings.write_text(json.dumps(flags))
    values = {"tests": str(ROOT / "tests"), "name": name, "settings": str(settings), "token": token}
    return Done(**json.loads(client.run(STARTED, **values)))


def test_a_translation_run_is_published(hub: Hub, writer: Client, tmp_path: Path) -> None:
    small = {"max_predict_samples": 8, "max_target_length": 12, "min_frequency": 1}
    name = {"hub_model_id": "user/translated", "hub_private_repo": True}
    run = {**SMALL, **small, "output_dir": str(tmp_path / "run")}
    done = recipe(writer, tmp_path, "translate", **run, **name)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{hub.url}/user/translated" in done.stdout and "revision='init'" in done.stdout
    repository = hub.repository("user/translated")
    assert repository.private and len(repository.titles()) == len(repository.titles("init")) == 2
    files = repository.files()
    assert files["model.safetensors"] == (tmp_path / "run" / "model.safetensors").read_bytes()
    assert json.loads(files["results.json"])["arguments"]["push_to_hub"] is True
    assert str(tmp_path).encode() not in b"".join(files.values())
    assert not any(name.startswith("checkpoint") for name in files) and "training_args.bin" not in files


def test_it_is_refused_before_any_work(hub: Hub, writer: Client, tmp_path: Path) -> None:
    made = set(hub.repositories)
    run = {**SMALL, "output_dir": str(tmp_path / "run"), "hub_model_id": "user/never"}
    done = recipe(writer, tmp_path, "classify", "hf_reader", **run)
    assert done.returncode == 1 and "may only read" in done.stderr and "Traceback" not in done.stderr
    assert set(hub.repositories) == made and not (tmp_path / "run" / "init").exists()
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "README.md").write_text("by hand")
    hub.add_folder("user/by-hand", tmp_path / "page")
    done = recipe(writer, tmp_path, "classify", **{**run, "hub_model_id": "user/by-hand"})
    assert done.returncode == 1 and "A recipe replaces nothing: run it without --push_to_hub" in done.stderr


def test_trained_vectors_are_published(hub: Hub, writer: Client, tmp_path: Path) -> None:
    output = tmp_path / "captions.txt"
    small = {"corpus": ["captions:de"], "language": "de", "output": str(output), "dim": 4, "epochs": 1}
    name = {"push_to_hub": True, "hub_model_id": "user/vectors"}
    done = recipe(writer, tmp_path, "train_vectors", **small, **name)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{hub.url}/user/vectors" in done.stdout
    files = hub.repository("user/vectors").files()
    written = read_vectors(output)
    assert torch.equal(load(files["model.safetensors"])["embeddings.weight"], written.matrix)
    assert json.loads(files["tokenizer.json"])["model"]["vocab"] == {
        w: i for i, w in enumerate(written.tokens)
    }

    again = recipe(writer, tmp_path, "train_vectors", **small, **name)
    assert again.returncode == 0, again.stderr[-3000:]  # the same vectors: nothing new is sent
    before = hub.repository("user/vectors").files()
    small |= {"dim": 5, "output": str(tmp_path / "other.txt")}
    other = recipe(writer, tmp_path, "train_vectors", **small, **name)
    assert other.returncode == 1 and "user/vectors is taken" in other.stderr, other.stderr[-2000:]
    assert "tokenizing" not in other.stderr, "it is asked before the work"
    assert hub.repository("user/vectors").files() == before


def test_a_pickled_model_is_refused_unless_asked_for(hub: Hub, writer: Client, tmp_path: Path) -> None:
    run_folder(tmp_path / "gpt2", "gpt2")
    weights = load_file(tmp_path / "gpt2" / "model.safetensors")
    (tmp_path / "gpt2" / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "gpt2" / "pytorch_model.bin")
    hub.add_folder("user/pickled", tmp_path / "gpt2")
    run = {"model": "user/pickled", "output_dir": str(tmp_path / "run"), "max_steps": 1, "inits": ["mean"]}
    done = recipe(writer, tmp_path, "expand_vocab", **run)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "--model user/pickled" in done.stderr and "--allow_pickle" in done.stderr
    assert "pytorch_model.bin" not in hub.downloads
