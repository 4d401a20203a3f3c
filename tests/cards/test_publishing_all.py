"""`publish_all`: the runs below a folder, their scores and a collection, on the loopback Hub."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.loopback_hub import Client, Hub, refuse
from builders.records import make_record
from builders.run_folders import model_and_tokenizer, run_folder
from safetensors.torch import load_file, save_file

from hf_embinit.__main__ import main
from hf_embinit.cards.publishing_all import planned_runs
from hf_embinit.errors import DataNotFoundError
from hf_embinit.records.record import write_record

COMMAND = """
from hf_embinit.__main__ import main
print(main([*words, "--json"]))
"""
SHOWN = """
from hf_embinit.__main__ import main
print(main(words))
"""
REFUSED = """
import hf_embinit
try:
    hf_embinit.publish(folder, repo_id)
except hf_embinit.EmbinitError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs with weights, one whose weights are gone, a checkpoint, and the numbers of a report."""
    folder = tmp_path_factory.mktemp("runs")
    for name, kind, seed in (("a", "translation", 0), ("b", "translation", 1), ("deep/gpt2 c", "gpt2", 0)):
        run_folder(folder / name, kind, seed)
    write_record(folder / "record only", make_record(seed=7, metrics={"test_bleu": 12.5}))
    model, tokenizer = model_and_tokenizer("gpt2")
    model.save_pretrained(folder / "grown")
    tokenizer.save_pretrained(folder / "grown")
    learnt = {"dataset": "pairs", "init": "fvt", "seed": 0, "arguments": {"vocab_size": 4000}, "report": {}}
    learnt |= {"metrics": {"step_0_accuracy": 0.5}, "runtime": {}, "versions": {}}
    (folder / "grown" / "results.json").write_text(json.dumps(learnt))  # of recipes/retokenize.py --save
    (folder / "report").mkdir()
    (folder / "report" / "results.json").write_text('{"analogies": 1}')
    return folder


def run(writer: Client, *words: str) -> tuple[dict[str, Any], int]:
    """The answer of a command in the client, and its exit code."""
    *answer, code = writer.run(COMMAND, words=[str(word) for word in words]).rstrip().split("\n")
    return json.loads("\n".join(answer)), int(code)


def test_all_runs_their_scores_and_a_collection(hub: Hub, writer: Client, runs: Path) -> None:
    answer, code = run(writer, "publish", "--all", runs, "--license", "mit", "--collection", "All of mine")
    assert code == 0 and not answer["failed"]
    assert {found["repo_id"] for found in answer["published"].values()} == {
        "user/a",
        "user/b",
        "user/deep-gpt2-c",
        "user/grown",
    }
    assert answer["without_weights"] == [str(runs / "record only")]
    for name in ("a", "b", "deep-gpt2-c"):
        files = hub.repository(f"user/{name}").files()
        assert "model.safetensors" in files and "model.safetensors" in hub.repository(f"user/{name}").files(
            "init"
        )
    data = hub.repository("datasets/user/hf-embinit-results").files()
    scores = [json.loads(line) for line in data["scores.jsonl"].splitlines()]
    models = {"user/a", "user/b", "user/deep-gpt2-c"}
    assert {row["model"] for row in scores} == {*models, "user/grown", None}
    assert [row["value"] for row in scores if row["model"] is None] == [12.5]
    kept = [json.loads(line) for line in data["runs.jsonl"].splitlines()]
    assert len(kept) == 5 and json.loads(kept[0]["arguments"])["vectors"] == "de.300d.txt"
    assert str(runs).encode() not in b"".join(data.values())
    _, header, text = data["README.md"].decode().split("---\n", 2)
    card = yaml.safe_load(header)
    assert card["license"] == "mit" and [c["data_files"] for c in card["configs"]] == [
        "scores.jsonl",
        "runs.jsonl",
    ]
    assert f"{len(scores)} scores of 5 runs" in text and "BLEU" in text
    (collection,) = hub.collections.values()
    assert collection["title"] == "All of mine" and answer["collection"].endswith(collection["slug"])
    items = {item["id"]: item["note"]["text"] for item in collection["items"]}
    assert set(items) == {*models, "user/grown", "user/hf-embinit-results"}
    assert "seed 1" in items["user/b"] and "BLEU" in items["user/b"]

    before = {name: dict(r.branches) for name, r in hub.repositories.items()}
    again, code = run(
        writer, "publish", runs, "user", "--all", "--license", "mit", "--collection", "All of mine"
    )
    assert code == 0 and again == answer
    assert before == {name: dict(r.branches) for name, r in hub.repositories.items()}
    assert len(next(iter(hub.collections.values()))["items"]) == 5


def test_a_checkpoint_that_is_no_run(hub: Hub, writer: Client, runs: Path, tmp_path: Path) -> None:
    files = hub.repository("user/grown").files()
    assert "results.json" not in files and set(hub.repository("user/grown").branches) == {"main"}
    card = files["README.md"].decode()
    assert "init:xavier" in card and "- **initialize**: `xavier`" in card
    assert 'AutoModelForCausalLM.from_pretrained("user/grown")' in card
    writer.run(re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0] + "\nassert model.config.embinit")
    again, code = run(writer, "publish", runs / "grown", "user/grown")
    assert code == 0 and again["commit"] == hub.repository("user/grown").branches["main"]
    shutil.copytree(runs / "grown", tmp_path / "trained on")
    file = tmp_path / "trained on" / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if name.endswith("ln_f.weight"))
    save_file(weights | {name: weights[name] * 2}, file, {"format": "pt"})
    said = writer.run(REFUSED, folder=str(tmp_path / "trained on"), repo_id="user/grown")
    assert "user/grown is taken: its model.safetensors is another model's" in said
    model, tokenizer = model_and_tokenizer("gpt2", seed=1)
    model.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    for folder, repo_id in ((tmp_path / "other", "user/grown"), (runs / "grown", "user/a")):
        said = writer.run(REFUSED, folder=str(folder), repo_id=repo_id)
        assert f"{repo_id} is taken: it holds something other than this checkpoint" in said


def test_the_data_set_loads(hub: Hub, writer: Client, tmp_path: Path) -> None:
    writer.run(
        """
from datasets import load_dataset
scores = load_dataset("user/hf-embinit-results", split="train", cache_dir=cache)  # `scores` by default
assert {"run", "init", "seed", "score", "value", "model"} <= set(scores.column_names), scores
runs = load_dataset("user/hf-embinit-results", "runs", split="train", cache_dir=cache)
assert len(runs) == 5
""",
        cache=str(tmp_path),
    )


def test_one_run_that_is_refused_does_not_stop_the_others(hub: Hub, writer: Client, tmp_path: Path) -> None:
    run_folder(tmp_path / "x", "gpt2", 3)
    run_folder(tmp_path / "y", "gpt2", 4)
    run_folder(tmp_path / "z", "gpt2", 5)
    (tmp_path / "y" / "model.safetensors").write_bytes(b"changed")
    hub.fault("POST .*/user/x/commit/main", refuse(507, "storage is full"))
    printed = writer.run(SHOWN, words=["publish", str(tmp_path), "--all"])
    assert printed.rstrip().endswith("\n1") and "/user/z (" not in printed
    told = {line.partition(":")[0] for line in printed.splitlines()}
    assert told >= {"published", "not published", "scores"}
    assert f"{tmp_path / 'x'}: The Hub refused with status 507: storage is full" in printed
    assert f"{tmp_path / 'y' / 'model.safetensors'} was changed after the run" in printed
    assert "model.safetensors" in hub.repository("user/z").files()
    assert "user/y" not in {name.removeprefix("models/") for name in hub.repositories}


def test_a_run_that_is_not_finished_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder(tmp_path / "done", "gpt2", 1)
    run_folder(tmp_path / "begun", "gpt2", 2)
    (tmp_path / "begun" / "results.json").unlink()
    (tmp_path / "begun" / "arguments.json").write_text("{}")
    assert (tmp_path / "begun" / "init").is_dir()
    main(["publish", str(tmp_path), "me", "--all", "--dry_run"])
    printed = capsys.readouterr().out
    assert "me/done" in printed and "me/begun" not in printed
    assert f"{tmp_path / 'begun'}: the run is not finished" in printed


def test_a_data_set_that_holds_something_else_is_left_alone(
    hub: Hub, writer: Client, runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text("1,2")
    hub.tokens["hf_org"] = ("lab", "write")
    hub.add_folder("datasets/lab/hf-embinit-results", tmp_path)
    try_it = "import hf_embinit\ntry:\n    hf_embinit.publish_all(runs, token='hf_org')\n"
    said = writer.run(f"{try_it}except hf_embinit.EmbinitError as error:\n    print(error)", runs=str(runs))
    assert "lab/hf-embinit-results is taken: it holds mine.csv" in said
    assert "lab/a" not in {name.removeprefix("models/") for name in hub.repositories}


def test_what_would_be_published(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", str(runs), "me", "--all", "--dry_run"]) == 0
    printed = capsys.readouterr().out
    assert "me/deep-gpt2-c" in printed and "me/hf-embinit-results (scores of 5 runs)" in printed
    assert "1 runs without weights" in printed


@pytest.mark.parametrize(
    "words, said",
    [
        (["publish", "nowhere", "--all", "--dry_run"], "no run's results.json below 'nowhere'"),
        (["publish", "nowhere"], "the repository is missing, such as user/name (or give --all)"),
        (["publish", "nowhere", "user/name", "--collection", "Mine"], "only --all makes a collection"),
    ],
)
def test_wrong_command_lines(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) != 0
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_names_that_no_repository_can_have_stop_no_other_run(tmp_path: Path) -> None:
    from hf_embinit.cards import planned_runs

    with pytest.raises(DataNotFoundError, match=r"no run's results\.json"):
        planned_runs(tmp_path)
    names = ("good", "grown (1)", "evil -4 ü", "a b", "a-b", "ü", "x.git", "n" * 120)
    for name in names:
        run_folder(tmp_path / name, "gpt2")
    plan = planned_runs(tmp_path, "me")
    assert set(plan["models"]) == {"me/good", "me/grown-1", "me/evil-4"}
    assert plan["results"]["runs"] == len(names) and not plan["without_weights"]
    failed = {Path(run).name: why for run, why in plan["failed"].items()}
    assert set(failed) == set(names[3:])
    both = "another folder would be the repository 'a-b', too: rename one of them"
    assert failed["a b"] == failed["a-b"] == both
    assert failed["n" * 120].endswith("of 120 characters where the Hub takes 96: rename the folder")
    assert failed["ü"].startswith("it would be the repository '', which the Hub does not take")


def test_checkpoints_alone_are_published_without_a_data_set(
    hub: Hub, writer: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        model, tokenizer = model_and_tokenizer("gpt2")
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    assert main(["publish", str(tmp_path), "me", "--all", "--dry_run"]) == 0
    printed = capsys.readouterr().out
    assert "me/one" in printed and "me/two" in printed and "hf-embinit-results" not in printed
    data_set = hub.repositories.get("datasets/user/hf-embinit-results")
    before = dict(data_set.branches) if data_set else None
    answer, code = run(writer, "publish", tmp_path, "--all", "--collection", "Checkpoints")
    assert code == 0 and answer["results"] is None
    assert {found["repo_id"] for found in answer["published"].values()} == {"user/one", "user/two"}
    data_set = hub.repositories.get("datasets/user/hf-embinit-results")
    assert before == (dict(data_set.branches) if data_set else None)
    (collection,) = (c for c in hub.collections.values() if c["title"] == "Checkpoints")
    assert {item["id"] for item in collection["items"]} == {"user/one", "user/two"}


def test_a_checkpoint_below_a_folder_called_init_is_found(tmp_path: Path) -> None:
    for part in model_and_tokenizer("gpt2"):
        part.save_pretrained(tmp_path / "init" / "bert")
    assert list(planned_runs(tmp_path / "init", "me")["models"]) == ["me/bert"]
