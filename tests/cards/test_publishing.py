"""`publish`, and what fails midway: real clients in other processes against a Hub on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from builders.loopback_hub import (
    Client,
    Hub,
    drop,
    drop_after_reading,
    drop_after_sending,
    refuse,
)
from builders.loopback_requests import CutOff, Handler
from builders.run_folders import AUTO, KINDS, run_folder
from huggingface_hub import ModelCard
from safetensors.torch import load, load_file

import hf_embinit
from hf_embinit.errors import RunFolderError

CALLS = """
import json, time
import hf_embinit
time.sleep = lambda seconds: None  # the client's retries, without their pauses
for name, arguments, options in wanted:
    try:
        print(json.dumps(["ok", str(getattr(hf_embinit, name)(*arguments, **options))]))
    except hf_embinit.EmbinitError as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of every kind, and a second translation run, `other`."""
    folder = tmp_path_factory.mktemp("runs")
    for kind in KINDS:
        run_folder(folder / kind, kind)
    run_folder(folder / "other", seed=1)
    run_folder(folder / "fresh", seed=2)  # never published, so that its files are not on the Hub
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def writer(writer: Client) -> Iterator[Client]:
    """That process without a token of its own."""
    writer.run("import os; del os.environ['HF_TOKEN']")
    yield writer
    writer.run("import os; os.environ['HF_TOKEN'] = token", token="hf_writer")


def publish(client: Client, *wanted: tuple[Path, str, dict[str, Any]]) -> list[list[str]]:
    """(`ok` or the error, text) of each call of `hf_embinit.publish`."""
    calls = [["publish", [str(folder), repo_id], options] for folder, repo_id, options in wanted]
    return [json.loads(line) for line in client.run(CALLS, wanted=calls).splitlines()]


WRITE = {"token": "hf_writer"}


@pytest.fixture(scope="module")
def published(writer: Client, runs: Path) -> list[list[str]]:
    """Every kind published as `user/<kind>`, translation twice."""
    before = contents(runs)
    found = publish(writer, *((runs / kind, f"user/{kind}", WRITE) for kind in (*KINDS, KINDS[0])))
    assert contents(runs) == before
    return found


def test_what_is_on_the_hub(hub: Hub, runs: Path, published: list[list[str]]) -> None:
    assert [status for status, _ in published] == ["ok"] * 6, published
    for kind in KINDS:
        repository = hub.repository(f"user/{kind}")
        assert (
            len(repository.titles()) == len(repository.titles("init")) == 2
        )  # the Hub's own, then one commit
        main, init = repository.files(), repository.files("init")
        assert main["model.safetensors"] == (runs / kind / "model.safetensors").read_bytes()
        assert init["model.safetensors"] == (runs / kind / "init" / "model.safetensors").read_bytes()
        assert {"README.md", "results.json", "figures/learning_curve.png", "tokenizer_config.json"} <= set(
            main
        )
        assert "results.json" not in init and "before training" in init["README.md"].decode()
        for name in {*main, *init}:
            assert not name.endswith((".bin", ".pt", ".txt", "arguments.json", "mine.py")), name
            assert "checkpoint" not in name and not name.startswith("init/")
        vanilla = kind not in ("bert", "gpt2")
        assert ("modeling_vanilla_transformer.py" in main) == vanilla
        assert ("auto_map" in json.loads(main["config.json"])) == vanilla
        for name, content in {**main, **init}.items():
            assert str(runs).encode() not in content, f"{name} names a folder of this machine"
    record = json.loads(hub.repository("user/translation").files()["results.json"])
    assert (
        record["arguments"]["vectors"] == "de.300d.txt" and record["arguments"]["output_dir"] == "translation"
    )
    assert published[0] == published[-1]  # again: the same commits, none added


def test_the_cards_on_the_hub(hub: Hub, published: list[list[str]]) -> None:
    for kind in KINDS:
        files = hub.repository(f"user/{kind}").files()
        card = ModelCard(files["README.md"].decode())
        record = json.loads(files["results.json"])
        assert card.data.model_name == kind and f'{AUTO[kind]}.from_pretrained("user/{kind}"' in card.text
        assert 'revision="init"' in card.text and "![Learning curve: losses and score" in card.text
        assert {r.metric_value for r in card.data.eval_results} == set(record["metrics"].values())
        (event,) = json.loads(files["config.json"])["embinit"]
        assert f"`{event['init']}`" in card.text if "init" in event else event["event"] in card.text
    card = hub.repository("user/translation").files()["README.md"].decode()
    assert "| ein Hund | a dog |" in card
    assert 'inputs = tokenizer("ein Hund", return_tensors="pt")' in card and "\n# a dog\n```" in card


PULL = """
import sys
if not installed:
    sys.modules["hf_embinit"] = None  # as if it were not installed
import torch, transformers
if installed:
    import hf_embinit
from safetensors.torch import load_file
for kind, auto in kinds.items():
    vanilla = kind not in ("bert", "gpt2")
    options = {"trust_remote_code": True} if vanilla and not installed else {}
    for revision, folder in (("main", kind), ("init", kind + "/init")):
        options["revision"] = revision
        tokenizer = transformers.AutoTokenizer.from_pretrained("user/" + kind, **options)
        model = getattr(transformers, auto).from_pretrained("user/" + kind, **options)
        expected = load_file(runs + "/" + folder + "/model.safetensors")
        state = model.state_dict()
        assert all(torch.equal(state[name], value) for name, value in expected.items()), (kind, revision)
        assert type(model).__module__.startswith(
            "transformers." if not vanilla else "hf_embinit." if installed else "transformers_modules."
        )
        assert len(tokenizer) > 10 and model.config.embinit
        ids = tokenizer("a small dog", return_tensors="pt")["input_ids"]
        model(input_ids=ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}))
        if installed:
            assert hf_embinit.read_manifest("user/" + kind) == model.config.embinit
"""


TWINS = """
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
for revision, folder in (("main", "/twins/twin-1"), ("init", "/twins/init/twin-1")):
    model = AutoModelForCausalLM.from_pretrained(
        "user/twins", subfolder="twin-1", revision=revision, trust_remote_code=True
    )
    expected = load_file(runs + folder + "/model.safetensors")
    assert all(torch.equal(model.state_dict()[name], value) for name, value in expected.items())
"""


def test_every_kind_loads_where_the_package_is_absent(
    hub: Hub, writer: Client, runs: Path, published: list[list[str]], tmp_path: Path
) -> None:
    run_folder(runs / "twins", "language_modeling", models=("twin-0", "twin-1"))
    ((status, _),) = publish(writer, (runs / "twins", "user/twins", WRITE))
    assert status == "ok"
    with hub.client(tmp_path) as client:
        client.run(PULL, installed=False, runs=str(runs), kinds=AUTO)
        client.run(TWINS, runs=str(runs))
        for kind in (*KINDS, "twins"):
            for revision in ("main", "init"):  # what the cards say
                card = hub.repository(f"user/{kind}").files(revision)["README.md"].decode()
                (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
                client.run(code + "\nassert model.config.embinit and len(tokenizer) > 10")


def test_publishing_again_replaces_what_a_run_has_no_more_and_nothing_else(
    hub: Hub, writer: Client, runs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "gpt2", folder)
    (folder / "figures" / "second.png").write_bytes((folder / "figures" / "learning_curve.png").read_bytes())
    assert publish(writer, (folder, "user/replaced", WRITE))[0][0] == "ok"
    writer.run(
        """
from huggingface_hub import HfApi
api = HfApi(token="hf_writer")
api.upload_file(path_or_fileobj=b"mine", path_in_repo="NOTES.md", repo_id="user/replaced")
"""
    )
    (folder / "figures" / "second.png").unlink()
    assert publish(writer, (folder, "user/replaced", WRITE))[0][0] == "ok"
    files = hub.repository("user/replaced").files()
    assert files["NOTES.md"] == b"mine" and "figures/learning_curve.png" in files
    assert "figures/second.png" not in files and "second.png" not in files["README.md"].decode()
    assert len(hub.repository("user/replaced").titles("init")) == 2  # nothing new there


def test_a_published_run_that_is_changed_is_a_checkpoint_of_its_own(
    hub: Hub, writer: Client, published: list[list[str]], tmp_path: Path
) -> None:
    """Not the run: neither its record nor its scores; it names the model that was changed and keeps terms."""
    grown = tmp_path / "grown"
    writer.run(
        """
import hf_embinit.__main__
assert hf_embinit.__main__.main(["expand", "user/gpt2", "--tokens", "<z>", "--output_dir", grown]) == 0
""",
        grown=str(grown),
    )
    of_a_run = {"results.json", "files.json", "arguments.json", "test_predictions.jsonl", "README.md"}
    assert not of_a_run & set(contents(grown))
    (grown / "LICENSE").write_text("as you like")
    found = publish(
        writer,
        (grown, "user/grown", WRITE),
        (grown, "user/grown", {**WRITE, "license": "mit"}),
        (grown, "user/grown", WRITE),
    )
    assert [status for status, _ in found] == ["ok"] * 3, found
    files = hub.repository("user/grown").files()
    card = ModelCard(files["README.md"].decode())
    assert files["LICENSE"] == b"as you like" and "results.json" not in files
    assert card.data.base_model == "user/gpt2" and card.data.license == "mit"  # said once, kept
    assert card.data.eval_results is None and "The weights are under mit" in card.text
    (grown / "config.json").write_text(json.dumps(json.loads((grown / "config.json").read_text())))
    assert publish(writer, (grown, "user/grown2", WRITE))[0][0] == "ok"
    reversed_, drawn = tmp_path / "reversed", tmp_path / "drawn"
    writer.run(
        """
import hf_embinit.__main__ as commands
assert commands.main(["surgery", "user/gpt2", "reversed", "--output_dir", reversed_]) == 0
drawing = ["init", "user/gpt2", "--init", "xavier", "--config_only", "--output_dir", drawn]
assert commands.main(drawing) == 0
""",
        reversed_=str(reversed_),
        drawn=str(drawn),
    )
    assert hf_embinit.read_manifest(reversed_)[-1]["base_model"] == "user/gpt2"  # loaded, not opened
    assert "base_model" not in hf_embinit.read_manifest(drawn)[-1]  # keeps no weight of it
    told = hub.repository("user/grown2").files()["README.md"].decode()
    assert "the terms of the model that was changed apply" in told


def test_an_interrupt_between_the_branches_puts_init_back_and_says_so(
    hub: Hub, writer: Client, runs: Path
) -> None:
    pid = int(writer.run("import os; print(os.getpid())"))

    def interrupt(handler: Handler) -> None:
        os.kill(pid, signal.SIGINT)
        time.sleep(1)
        raise CutOff

    hub.fault("POST .*/user/interrupted/commit/main", interrupt, times=1)
    told = writer.run(
        """
import logging, signal, hf_embinit
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
heard = []
handler = logging.Handler()
handler.emit = lambda record: heard.append(record.getMessage())
logging.getLogger("hf_embinit.hub.repository").addHandler(handler)
try:
    hf_embinit.publish(run, "user/interrupted", token="hf_writer")
except KeyboardInterrupt:
    print(heard)
""",
        run=str(runs / "other"),
    )
    assert "user/interrupted is as it was. The Hub may still take what was sent" in told, told
    repository = hub.repository("user/interrupted")
    assert set(repository.branches) == {"main"} and repository.titles() == ["initial commit"]


def test_a_folder_that_cannot_be_published_is_refused_without_a_request(runs: Path, tmp_path: Path) -> None:
    for gone, problem in (
        ("model.safetensors", "has no model.safetensors, and pickles are not published"),
        ("config.json", "has no config.json"),
        ("tokenizer*.json", "has no tokenizer"),
        ("modeling_vanilla_transformer.py", "which its auto_map names"),
    ):
        folder = tmp_path / gone.replace("*", "")
        kind = "translation" if gone.endswith(".py") else "bert"
        shutil.copytree(runs / kind, folder)
        for file in folder.glob(gone):
            file.unlink()
        torch.save({}, folder / "pytorch_model.bin")
        with pytest.raises(RunFolderError, match=r"is missing, but files\.json lists it"):
            hf_embinit.publish(folder, "user/refused")
        (folder / "files.json").unlink()  # as of a run before there was such a list
        with pytest.raises(RunFolderError, match=problem):
            hf_embinit.publish(folder, "user/refused")


def test_every_kind_loads_with_the_package_and_without_remote_code(
    hub: Hub, writer: Client, runs: Path, published: list[list[str]], tmp_path: Path
) -> None:
    writer.run(PULL, installed=True, runs=str(runs), kinds=AUTO)
    seen = len(hub.requests)
    with hub.client(Path(writer.cache), HF_HUB_OFFLINE="1") as client:  # what one process has fetched
        client.run(PULL, installed=True, runs=str(runs), kinds=AUTO)
    assert len(hub.requests) == seen


def test_refusals(hub: Hub, writer: Client, runs: Path, tmp_path: Path) -> None:
    hub.add_folder("user/theirs", runs / "bert" / "init")
    hub.add_folder("user/another", runs / "other")
    hub.add_folder("user/hidden", runs / "bert" / "figures", private=True)
    run, plain = runs / "translation", tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text('{"model_type": "gpt2"}')
    before = contents(runs), {name: dict(r.branches) for name, r in hub.repositories.items()}
    found = publish(
        writer,
        (run, "user/new", {}),
        (run, "user/new", {"token": "hf_reader"}),
        (run, "user/new", {"token": "hf_wrong"}),
        (run, "other/new", WRITE),
        (run, "user/theirs", WRITE),
        (run, "user/another", WRITE),
        (run, "user/hidden", {"private": False, **WRITE}),
        (run, "a/b/c", WRITE),
        (run / "figures", "user/new", WRITE),
        (run / "nothing", "user/new", WRITE),
        (plain, "user/new", WRITE),
    )
    expected = [
        ("PublishError", "needs a token with the write role, and there is none. Run `hf auth login`"),
        ("PublishError", "may only read"),
        ("PublishError", "does not know the token"),
        ("PublishError", "is in the namespace of 'other'; the token belongs to 'user'"),
        ("PublishError", "user/theirs is taken: it holds config.json"),
        ("PublishError", "user/another is taken: it holds task translation, dataset captions, init xavier"),
        ("PublishError", "is private, but private=False was asked for"),
        ("InvalidArgumentError", "no name of a Hub repository"),
        ("RunFolderError", "results.json does not exist"),
        ("RunFolderError", "nothing is no folder"),
        ("RunFolderError", "is no run, and a checkpoint whose rows hf_embinit did not make"),
    ]
    for (status, message), (kind, text) in zip(found, expected, strict=True):
        assert status == kind and text in message and "\n" not in message, message
    assert before == (contents(runs), {name: dict(r.branches) for name, r in hub.repositories.items()})


def test_a_lost_connection_leaves_the_repository_as_it_was(hub: Hub, writer: Client, runs: Path) -> None:
    def on_second_commit(repo_id: str) -> Callable[[Handler], None]:
        def action(handler: Handler) -> None:
            if len(hub.repository(repo_id).titles()) == 2:
                raise CutOff

        return action

    hub.fault("PUT /user/upload/lfs", drop_after_reading(1000))
    hub.fault("POST .*/user/init/commit/init", drop, times=1)
    hub.fault("POST .*/user/main/commit/main", drop, times=1)
    hub.fault("POST .*/user/answer/commit/main", drop_after_sending(5), times=1)
    hub.fault("POST .*/user/again/commit/main", on_second_commit("user/again"))
    hub.fault("POST .*/user/full/commit/main", refuse(507, "storage is full"))
    first, second = runs / "translation", runs / "other"
    names = ("upload", "init", "main", "full", "again", "again", "answer")
    wanted = [(first, f"user/{name}", WRITE) for name in names]
    wanted[0] = (runs / "fresh", "user/upload", WRITE)
    wanted[5] = (second, "user/again", {**WRITE, "overwrite": True})
    found = publish(writer, *wanted)
    for status, message in found[:4]:
        assert status == "PublishError" and message.endswith(("it was.", "as it was.")), message
    assert (
        "The connection to http://127.0.0.1" in found[0][1] and "status 507: storage is full" in found[3][1]
    )
    for name in ("upload", "init", "main", "full"):
        repository = hub.repository(f"user/{name}")
        assert set(repository.branches) == {"main"} and repository.titles() == ["initial commit"], name
    # a second publication that breaks off between the branches: both are as the first left them
    assert found[4][0] == "ok" and found[5][0] == "PublishError" and "is as it was" in found[5][1]
    again = hub.repository("user/again")
    assert again.files()["model.safetensors"] == (first / "model.safetensors").read_bytes()
    assert again.files("init")["model.safetensors"] == (first / "init" / "model.safetensors").read_bytes()
    assert again.titles("init")[0] == "As before" and len(again.titles()) == 2
    # the commit was made, its answer lost
    assert found[6][0] == "PublishError" and "is at commit" in found[6][1]
    assert len(hub.repository("user/answer").titles()) == 2

    found = publish(writer, *((first, f"user/{name}", WRITE) for name in ("init", "main", "answer")))
    assert [status for status, _ in found] == ["ok"] * 3, found
    for name in ("init", "main", "answer"):
        repository = hub.repository(f"user/{name}")
        assert len(repository.titles()) == len(repository.titles("init")) == 2
        weights = load(repository.files()["model.safetensors"])
        assert all(torch.equal(weights[k], v) for k, v in load_file(first / "model.safetensors").items())


def test_two_pushes_at_once_do_not_mix(hub: Hub, writer: Client, runs: Path, tmp_path: Path) -> None:
    barrier = threading.Barrier(2)
    met: set[str] = set()

    def meet(handler: Handler) -> None:
        if (who := str(handler.client_address)) not in met and len(met) < 2:
            met.add(who)
            barrier.wait(100)

    hub.fault("POST .*/user/race/preupload", meet)
    folders = ("translation", "other")
    with hub.client(tmp_path) as second:
        second.run("import hf_embinit.cards.publishing")
        for client, run in zip((writer, second), folders, strict=True):
            client.start(
                CALLS, wanted=[["publish", [str(runs / run), "user/race"], {**WRITE, "overwrite": True}]]
            )
        answers = [json.loads(client.result()) for client in (writer, second)]
    (other, message), (status, _) = sorted(answers)
    assert status == "ok" and other == "PublishError" and "at the same time" in message
    repository = hub.repository("user/race")
    assert len(repository.titles()) == len(repository.titles("init")) == 2
    winner = runs / folders[[status for status, _ in answers].index("ok")]
    for revision, folder in (("main", winner), ("init", winner / "init")):
        published = repository.files(revision)["model.safetensors"]
        assert published == (folder / "model.safetensors").read_bytes()


def test_evaluation_results_for_a_data_set_on_the_hub(hub: Hub, writer: Client, tmp_path: Path) -> None:
    record = run_folder(tmp_path / "run", dataset="multi30k", signature={"test_bleu": "nrefs:1|tok:13a"})
    options = {**WRITE, "private": True, "license": "mit"}
    (found,) = publish(writer, (tmp_path / "run", "private-one", options))
    assert found[0] == "ok" and "/user/private-one (" in found[1]
    repository = hub.repository("user/private-one")
    assert repository.private
    files = repository.files()
    (entry,) = yaml.safe_load(files[".eval_results/bentrevett--multi30k.yaml"])
    assert entry["dataset"]["id"] == "bentrevett/multi30k" and entry["value"] == record.metrics["test_bleu"]
    assert "license: mit" in files["README.md"].decode() and 'from_pretrained("user/private-one"' in str(
        files
    )
