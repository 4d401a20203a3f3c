"""What leaves a run folder: the files that the run listed, and nothing that it says of the machine."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from builders.command_line import save_bert
from builders.loopback_hub import Client, Hub, drop_after_sending
from builders.records import make_record
from builders.run_folders import PIXEL, run_folder
from huggingface_hub import ModelCard

import hf_embinit
from hf_embinit.__main__ import main
from hf_embinit.cards import hub_dataset, planned_files
from hf_embinit.errors import RunFolderError
from hf_embinit.records import public_record, read_record, write_record

PLANTED = (
    *("vocab.env", "vocab.pkl", "vocab.txt", "merges.txt", "tokenizer_secret.json", "tokenizer.bak.json"),
    *(
        "model-optimizer.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.bak",
        "spiece.model",
    ),
    *("leak.model", "keys.spm", "private.tiktoken", ".env", "id_rsa", "notes.md", "LICENSE.secret"),
    *("figures/secret.png", "figures/secret.txt", "figures/sub/deep.png", ".eval_results/mine.yaml"),
    *("init/vocab.env", "init/tokenizer_secret.json", "init/leak.model", "init/model-x.safetensors"),
    *("modeling_secret.py", "added_tokens.json"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of GPT-2 in a folder of its own."""
    folder = tmp_path_factory.mktemp("made") / "run"
    run_folder(folder, "gpt2")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


CALL = """
import time
import hf_embinit
time.sleep = lambda seconds: None
try:
    print("ok", getattr(hf_embinit, call)(source, repo_id, **options))
except hf_embinit.EmbinitError as error:
    print(type(error).__name__, error)
"""


def publish(client: Client, source: Path, repo_id: str, call: str = "publish", **options: object) -> str:
    return client.run(CALL, call=call, source=str(source), repo_id=repo_id, options=options)


def change_record(run: Path, **changes: object) -> None:
    values = json.loads((run / "results.json").read_text())
    for name, value in changes.items():
        if isinstance(value, dict):
            values[name] |= value
        else:
            values[name] = value
    (run / "results.json").write_text(json.dumps(values))


def test_a_run_lists_what_may_be_published(run: Path) -> None:
    listed = json.loads((run / "files.json").read_text())
    assert {
        "config.json",
        "model.safetensors",
        "init/model.safetensors",
        "figures/learning_curve.png",
    } <= set(listed)
    for path, digest in listed.items():
        assert digest == "sha256:" + hashlib.sha256((run / path).read_bytes()).hexdigest()
        assert not path.startswith("checkpoint") and path not in ("training_args.bin", "figures/notes.txt")


@pytest.mark.parametrize("with_list", [True, False])
def test_none_of_27_planted_files_is_published(
    hub: Hub, writer: Client, run: Path, tmp_path: Path, with_list: bool
) -> None:
    assert len(PLANTED) == 27
    outside = tmp_path / "outside"
    outside.write_text("secret of this machine")
    if not with_list:
        (run / "files.json").unlink()
    for name in PLANTED:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith((".model", ".env", "secret.png")):
            (run / name).symlink_to(outside)
        else:
            (run / name).write_text("secret")
    standard = {
        "vocab.txt",
        "merges.txt",
        "added_tokens.json",
        "spiece.model",
    }  # names of a tokenizer's files
    if not with_list:  # nothing tells these from the tokenizer's own, but links do not go
        for name in standard - {"spiece.model"}:
            (run / name).unlink()
    repo_id = f"user/planted-{with_list}".lower()
    plan = planned_files(run, repo_id)
    assert publish(writer, run, repo_id).startswith("ok")
    repository = hub.repository(repo_id)
    main_files, init = repository.files(), repository.files("init")
    assert not {name for name in PLANTED if name in main_files or name.removeprefix("init/") in init}
    assert b"secret" not in b"".join([*main_files.values(), *init.values()])
    assert ("figures/learning_curve.png" in main_files) == with_list
    sent = {".gitattributes", "files.json"}  # the Hub's own, and the list of the others
    assert set(main_files) == set(plan["main"]) | sent and set(init) == set(plan["init"]) | sent
    listed = json.loads(main_files["files.json"])
    for path, digest in listed.items():
        assert digest == "sha256:" + hashlib.sha256(main_files[path]).hexdigest()


def test_a_checkpoint_takes_along_what_lies_beside_its_weights(tmp_path: Path) -> None:
    base, folder = save_bert(tmp_path / "base"), tmp_path / "more"
    assert main(["init", str(base), "--init", "xavier", "--output_dir", str(folder)]) == 0
    beside = {
        "modules.json": json.dumps([{"path": path} for path in ("", "1_Pooling", "2_Dense")]),
        "1_Pooling/config.json": '{"pooling_mode_cls_token": true}',
        "2_Dense/config.json": "{}",
        "2_Dense/model.safetensors": "the module's own weights",
        "preprocessor_config.json": "{}",
        "normalizer.json": "{}",
    }
    for name, text in beside.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "2_Dense" / "pytorch_model.bin").write_text("a pickle")
    (folder / "notes.json").write_text("of nobody")
    sent = set(planned_files(folder, "user/name")["main"])
    assert beside.keys() <= sent and {"config.json", "model.safetensors", "README.md"} <= sent
    assert not any("notes" in name or name.endswith(".bin") for name in sent)
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(RunFolderError, match="2_Dense has no safetensors, and pickles are not published"):
        planned_files(folder, "user/name")


def test_the_list_is_shown_without_asking_anybody(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", str(run), "user/name", "--dry_run"]) == 0
    text = capsys.readouterr().out
    size = f"{(run / 'model.safetensors').stat().st_size:,}"
    assert f"{size}  main: model.safetensors" in text and "  init: model.safetensors" in text
    assert "checkpoint-7" not in text and "training_args.bin" not in text


def test_what_was_changed_replaced_by_a_link_or_lies_outside_is_refused(run: Path, tmp_path: Path) -> None:
    listed = json.loads((run / "files.json").read_text())
    (tmp_path / "mine.png").write_bytes(PIXEL)
    (run / "figures" / "learning_curve.png").write_bytes(PIXEL + b"x")
    with pytest.raises(RunFolderError, match="was changed after the run"):
        planned_files(run, "user/name")
    (run / "figures" / "learning_curve.png").unlink()
    (run / "figures" / "learning_curve.png").symlink_to(tmp_path / "mine.png")
    with pytest.raises(RunFolderError, match="is a link"):
        planned_files(run, "user/name")
    (run / "figures" / "learning_curve.png").unlink()
    (run / "figures" / "learning_curve.png").write_bytes(PIXEL)
    for path in ("../outside", "/etc/hostname", "a/../../b", "C:\\x", "figures//x", "."):
        (run / "files.json").write_text(json.dumps({**listed, path: "sha256:0"}))
        with pytest.raises(RunFolderError, match="which is not a path in the folder"):
            planned_files(run, "user/name")
    (run / "files.json").write_text("[")
    with pytest.raises(RunFolderError, match=r"files\.json"):
        planned_files(run, "user/name")


def test_other_settings_and_a_readme_by_hand_are_not_replaced(hub: Hub, writer: Client, run: Path) -> None:
    assert publish(writer, run, "user/mine").startswith("ok")
    head = hub.repository("user/mine").branches["main"]
    change_record(run, arguments={"learning_rate": 1e-3})
    answer = publish(writer, run, "user/mine")
    assert "PublishError" in answer and "this run with other settings, learning_rate 0.0002" in answer
    change_record(
        run,
        arguments={"learning_rate": 2e-4, "output_dir": "elsewhere"},
        data={"train": {"rows": 1, "sha256": "0"}},
    )
    assert "train of digest f00d" in publish(writer, run, "user/mine")
    assert hub.repository("user/mine").branches["main"] == head
    assert publish(writer, run, "user/mine", overwrite=True).startswith("ok")
    upload = """
from huggingface_hub import HfApi
HfApi().create_repo(repo_id, exist_ok=True)
HfApi().upload_file(path_or_fileobj=text.encode(), path_in_repo="README.md", repo_id=repo_id)
"""
    for repo_id in ("user/mine", "user/only-a-readme"):
        writer.run(upload, repo_id=repo_id, text="---\nlicense: mit\n---\n# By hand\n")
        for call in ("publish", "publish_embeddings"):
            answer = publish(writer, run, repo_id, call)
            assert "PublishError" in answer and "README.md that somebody wrote" in answer
        assert "By hand" in hub.repository(repo_id).files()["README.md"].decode()
    assert publish(writer, run, "user/mine", overwrite=True).startswith("ok")
    writer.run(upload, repo_id="user/new", text="---\nlicense: mit\n---\n")  # as the Hub's own page makes it
    assert publish(writer, run, "user/new").startswith("ok")


def test_a_table_of_the_same_name_is_not_replaced(hub: Hub, writer: Client, tmp_path: Path) -> None:
    for place, number in (("a", "1"), ("b", "2")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "glove.txt").write_text(f"the {number} 0.5\na 0.5 {number}\n")
    first, second = (tmp_path / place / "glove.txt" for place in "ab")
    for again in (first, first):
        assert publish(writer, again, "user/table", "publish_embeddings").startswith("ok")
    held = hub.repository("user/table").files()["model.safetensors"]
    answer = publish(writer, second, "user/table", "publish_embeddings")
    assert "PublishError user/table is taken" in answer
    assert hub.repository("user/table").files()["model.safetensors"] == held
    assert publish(writer, second, "user/table", "publish_embeddings", overwrite=True).startswith("ok")


def test_a_lost_reply_names_both_branches_and_the_card_says_which_belong_together(
    hub: Hub, writer: Client, run: Path
) -> None:
    hub.fault("POST .*/user/lost/commit/main", drop_after_sending(5), times=1)
    answer = publish(writer, run, "user/lost")
    repository = hub.repository("user/lost")
    main_commit, init = repository.branches["main"], repository.branches["init"]
    assert f"branch main of user/lost is at commit {main_commit[:8]} now" in answer
    assert f"its branch init at {init[:8]}" in answer
    assert f'revision="{init}"' in repository.files()["README.md"].decode()
    assert publish(writer, run, "user/lost").startswith("ok")
    assert (repository.branches["main"], repository.branches["init"]) == (main_commit, init)


def test_a_folder_of_data_never_becomes_a_hub_id(
    hub: Hub, writer: Client, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = "alice-client/acme-data"
    (tmp_path / "mirror" / data).mkdir(parents=True)
    places = {
        "sha256": "beef",
        "rows": 4,
        "name": "/home/alice/glove.txt",
        "provenance": {"corpora": [{"corpus": "/home/alice/acme:de"}]},
    }
    arguments = {"vectors": "clients/acme/glove.txt", "train_file": "acme/train.jsonl", "data_dir": None}
    for variable in (
        None,
        "HF_EMBINIT_DATA",
    ):  # where the run found it: below the working directory, or there
        if variable:
            monkeypatch.setenv(variable, str(tmp_path / "mirror"))
        else:
            monkeypatch.delenv("HF_EMBINIT_DATA", raising=False)
            monkeypatch.chdir(tmp_path / "mirror")
        (run / "results.json").unlink()
        write_record(
            run,
            make_record(
                task="language_modeling", dataset=data, arguments=arguments, data={"vectors, source": places}
            ),
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("HF_EMBINIT_DATA", raising=False)
        record = read_record(run)
        assert hub_dataset(record) is None and public_record(record).dataset == "acme-data"
        repo_id = f"user/acme-{bool(variable)}".lower()
        assert publish(writer, run, repo_id).startswith("ok")
        files = hub.repository(repo_id).files()
        assert not any(name.startswith(".eval_results") for name in files)
        assert ModelCard(files["README.md"].decode()).data.datasets is None
        for name, content in files.items():
            if name.endswith((".json", ".md")):
                assert b"alice" not in content and b"clients/" not in content and b"acme/" not in content, (
                    name
                )
    assert hub_dataset(make_record(dataset="user/data")) == "user/data"
    assert hub_dataset(make_record(dataset="user/data", arguments={"data_dir": "/x"})) is None
    assert hub_dataset(make_record(arguments={"test_file": "mine.jsonl"})) is None


def test_the_card_in_the_run_folder_names_no_folder_of_the_machine(run: Path) -> None:
    home = "/home/alice/secret-project"
    record = make_record(
        dataset=f"{home}/acme", arguments={"vectors": f"{home}/de.txt", "train_file": f"{home}/train.jsonl"}
    )
    manifest = [
        {
            "event": "initialize",
            "init": "glove",
            "tables": [{"name": "t", "source": {"name": f"{home}/de.txt"}}],
        }
    ]
    card = hf_embinit.cards.write_card(run, record, manifest=manifest).read_text()
    assert "alice" not in card and "secret-project" not in card and "`de.txt`" in card
    assert record.title == "translation on acme, init xavier, seed 3"
