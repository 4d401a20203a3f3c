"""The loopback Hub itself: huggingface_hub, transformers and datasets find in it what they expect."""

from __future__ import annotations

import json
from pathlib import Path

from builders.loopback_hub import Client, Hub, drop_after_sending
from builders.loopback_requests import check_card
from huggingface_hub import ModelCard, ModelCardData

REPOSITORIES = """
import json
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
api = HfApi()
def status(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except HfHubHTTPError as error:
        return type(error).__name__, error.response.status_code
assert api.whoami()["name"] == "user"
assert api.create_repo("one", private=True).repo_id == "user/one"
assert status(api.create_repo, "one") == ("HfHubHTTPError", 409)
api.create_repo("one", exist_ok=True)
assert status(api.create_repo, "other/one") == ("HfHubHTTPError", 403)
assert status(api.create_repo, "two", token="hf_reader") == ("HfHubHTTPError", 403)
assert status(HfApi(token=False).model_info, "user/one") == ("RepositoryNotFoundError", 401)
assert status(api.model_info, "user/one", token="hf_other") == ("RepositoryNotFoundError", 404)
info = api.model_info("user/one")
assert info.private and [s.rfilename for s in info.siblings] == [".gitattributes"]
big = bytes(range(256)) * 2000
adds = [CommitOperationAdd(*pair) for pair in (("a.txt", b"text"), ("sub/b.txt", b"more"), ("w.bin", big))]
first = api.create_commit("user/one", adds, commit_message="add", parent_commit=info.sha)
stale = dict(commit_message="x", parent_commit=info.sha)
assert status(api.create_commit, "user/one", [CommitOperationDelete("a.txt")], **stale)[1] == 412
assert sorted(api.list_repo_files("user/one")) == [".gitattributes", "a.txt", "sub/b.txt", "w.bin"]
tree = {entry.path: entry for entry in api.list_repo_tree("user/one", recursive=True)}
assert tree["w.bin"].lfs.size == len(big) and "sub" in tree
assert {e.path for e in api.list_repo_tree("user/one", "sub")} == {"sub/b.txt"}
assert [e.path for e in api.get_paths_info("user/one", ["a.txt", "none"])] == ["a.txt"]
api.create_branch("user/one", branch="side", revision=first.oid)
assert status(api.create_branch, "user/one", branch="side") == ("HfHubHTTPError", 409)
moves = [CommitOperationCopy("w.bin", "copy.bin"), CommitOperationDelete("sub/", is_folder=True)]
api.create_commit("user/one", moves, commit_message="move", revision="side")
api.create_tag("user/one", tag="v1", revision="side")
assert {b.name for b in api.list_repo_refs("user/one").branches} == {"main", "side"}
files = [".gitattributes", "a.txt", "copy.bin", "w.bin"]
assert sorted(api.list_repo_files("user/one", revision="v1")) == files
api.delete_branch("user/one", branch="side")
assert status(api.model_info, "user/one", revision="side") == ("RevisionNotFoundError", 404)
path = api.hf_hub_download("user/one", "copy.bin", revision="v1")
assert open(path, "rb").read() == big
assert [c.title for c in api.list_repo_commits("user/one")] == ["add", "initial commit"]
assert api.file_exists("user/one", "a.txt") and not api.file_exists("user/one", "b.txt")
api.create_repo("gone")
api.delete_repo("user/gone")
assert not api.repo_exists("user/gone")
"""


def test_repositories_commits_branches_tags(hub: Hub, writer: Client) -> None:
    writer.run(REPOSITORIES)
    assert hub.repository("user/one").titles("v1") == ["move", "add", "initial commit"]


def test_a_wrong_digest_and_a_file_that_was_not_uploaded_are_refused(hub: Hub, writer: Client) -> None:
    writer.run(
        """
import hashlib
from huggingface_hub import HfApi, get_session
HfApi().create_repo("digest", exist_ok=True)
oid = hashlib.sha256(b"right").hexdigest()
assert get_session().put(f"{url}/user/digest/lfs/{oid}", content=b"wrong").status_code == 400
lines = ['{"key": "header", "value": {"summary": "x"}}',
         '{"key": "lfsFile", "value": {"path": "w.bin", "algo": "sha256", "oid": "%s", "size": 5}}' % oid]
headers = {"Authorization": "Bearer hf_writer"}
def commit():
    body = "\\n".join(lines)
    return get_session().post(f"{url}/api/models/user/digest/commit/main", content=body, headers=headers)
answer = commit()
assert answer.status_code == 400, answer.text
assert get_session().put(f"{url}/user/digest/lfs/{oid}", content=b"right").status_code == 200
answer = commit()
assert answer.status_code == 200, answer.text
""",
        url=hub.url,
    )
    assert hub.repository("user/digest").files()["w.bin"] == b"right"


TRAINER = """
import torch
from transformers import (AutoModelForSequenceClassification, AutoTokenizer, BertConfig,
                          BertForSequenceClassification, BertTokenizerFast, Trainer, TrainingArguments)
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
backend = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}, unk_token="[UNK]"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
model = BertForSequenceClassification(BertConfig(vocab_size=4, **sizes))
data = [{"input_ids": [2 + i % 2], "attention_mask": [1], "labels": i % 2} for i in range(8)]
args = TrainingArguments(folder, push_to_hub=True, hub_model_id="user/trained", max_steps=2, use_cpu=True,
                         save_strategy="no", report_to=[], disable_tqdm=True, hub_private_repo=True)
trainer = Trainer(model, args, train_dataset=data, processing_class=tokenizer)
trainer.train()
trainer.push_to_hub("the stock push")
back = AutoModelForSequenceClassification.from_pretrained("user/trained")
assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), back.state_dict().values()))
assert AutoTokenizer.from_pretrained("user/trained").get_vocab() == tokenizer.get_vocab()
model.push_to_hub("user/pushed")
try:
    AutoModelForSequenceClassification.from_pretrained("user/trained", token=False)
except OSError as error:
    print("refused", "user/trained" in str(error))
print([c for c in AutoModelForSequenceClassification.from_pretrained("user/pushed").config.architectures])
"""


def test_a_stock_trainer_pushes_and_a_private_model_is_refused(
    hub: Hub, writer: Client, tmp_path: Path
) -> None:
    out = writer.run(TRAINER, folder=str(tmp_path / "run"))
    assert "refused True" in out and "['BertForSequenceClassification']" in out
    repository = hub.repository("user/trained")
    assert repository.private and repository.titles()[0] == "the stock push"
    assert {"model.safetensors", "training_args.bin", "README.md"} <= set(repository.files())


def test_a_download_that_breaks_off_goes_on_where_it_stopped(
    hub: Hub, writer: Client, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 400)
    hub.add_folder("user/large", tmp_path)
    hub.fault("GET /user/large/lfs", drop_after_sending(70_000), times=1)
    writer.run(
        """
import time
time.sleep = lambda seconds: None
from huggingface_hub import hf_hub_download
assert open(hf_hub_download("user/large", "model.safetensors"), "rb").read() == bytes(range(256)) * 400
"""
    )
    assert hub.downloads.count("model.safetensors") >= 2


def test_data_sets_load(hub: Hub, writer: Client, tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 2)):
        rows = [{"de": f"Hund {i}", "en": f"dog {i}"} for i in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    hub.add_folder("datasets/user/pairs", tmp_path)
    out = writer.run(
        """
import datasets
data = datasets.load_dataset("user/pairs")
print(sorted(data), [row["en"] for row in data["train"]], len(data["test"]))
"""
    )
    assert out == "['test', 'train'] ['dog 0', 'dog 1', 'dog 2'] 2\n"


def test_metadata_of_cards_is_checked() -> None:
    good = ModelCard(f"---\n{ModelCardData(language='de', tags=['x'], datasets=['a/b'])}\n---\n\ntext")
    assert check_card(str(good)) == ([], [])
    assert check_card("no metadata")[1]
    for bad in ("tags: x", "language: german!", "pipeline_tag: nonsense", "model-index: [{name: x}]", "a: ["):
        assert check_card(f"---\n{bad}\n---\n")[0], bad
