"""Embeddings and comparisons by Hub id: `publish_embeddings`, `load_vectors`, `compare`, `read_manifest`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from builders.loopback_hub import Client, Hub
from builders.run_folders import run_folder
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import hf_embinit
from hf_embinit.errors import InvalidArgumentError
from hf_embinit.report import compare
from hf_embinit.vectors import PretrainedVectors

WORDS = ("the", "a", "is", "are", "dog", "on")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for kind in ("translation", "gpt2"):
        run_folder(folder / kind, kind)
    words = [f"{word} {i}.5 -1 {i * i}" for i, word in enumerate(WORDS, 1)]
    (folder / "glove.txt").write_text("\n".join(words) + "\n")
    return folder


PUBLISH = """
import json, torch, hf_embinit
from hf_embinit.cards.embeddings_publishing import publish_embeddings
from hf_embinit.vectors import load_vectors
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model = AutoModelForSeq2SeqLM.from_pretrained(runs + "/translation")
tokenizer = AutoTokenizer.from_pretrained(runs + "/translation")
source, target = model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight
gpt2 = AutoTokenizer.from_pretrained(runs + "/gpt2")
tensor = torch.randn(len(gpt2) + 3, 5, generator=torch.Generator().manual_seed(0))  # padded
wanted = {
    "user/source": ((model,), {"tokenizer": tokenizer}, source),
    "user/target": ((runs + "/translation",), {"table": "*decoder.embed_tokens*"}, target),
    "user/init": ((runs + "/gpt2/init",), {}, None),
    "user/words": ((runs + "/glove.txt",), {}, torch.tensor([[i + 0.5, -1, i * i] for i in range(1, 7)])),
    "user/tensor": ((tensor,), {"tokenizer": gpt2}, tensor[: len(gpt2)]),
}
for repo_id, (arguments, options, expected) in wanted.items():
    first = publish_embeddings(*arguments, repo_id, **options)
    assert first.commit == publish_embeddings(*arguments, repo_id, **options).commit  # nothing new
    vectors = load_vectors(repo_id)
    assert expected is None or torch.equal(vectors.matrix, expected), repo_id
    print(json.dumps([repo_id, vectors.tokens, vectors.family, vectors.revision == first.commit,
                      hf_embinit.read_manifest(repo_id)]))
model.get_input_embeddings()
report = hf_embinit.initialize(model, "pretrained", tokenizer=tokenizer, vectors="user/source",
                               target_vectors="user/target")
assert torch.equal(model.model.decoder.embed_tokens.weight[4:], target[4:])  # by token
for call in (
    lambda: publish_embeddings(tensor, "user/x"),
    lambda: publish_embeddings(tensor[:5], "user/x", tokenizer=gpt2),
    lambda: publish_embeddings(model, "user/x", tokenizer=tokenizer, table="nope"),
    lambda: publish_embeddings(tensor, "user/source", tokenizer=gpt2),
    lambda: publish_embeddings(tensor, "user/x", tokenizer=gpt2, token="hf_reader"),
):
    try:
        call()
    except hf_embinit.EmbinitError as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def test_tables_with_their_tokens_and_manifest(hub: Hub, writer: Client, runs: Path) -> None:
    lines = [json.loads(line) for line in writer.run(PUBLISH, runs=str(runs)).splitlines()]
    found = {line[0]: line[1:] for line in lines[:5]}
    vocabularies = {
        name: json.loads((runs / "translation" / name).read_text())
        for name in ("vocab.json", "target_vocab.json")
    }
    assert found["user/source"][0] == list(vocabularies["vocab.json"])
    assert found["user/target"][0] == list(vocabularies["target_vocab.json"])
    assert found["user/words"][:2] == [[*WORDS], "words"]
    assert found["user/tensor"][1] == "byte_level" and found["user/source"][1] == "wordpiece"
    assert all(same for _, _, same, _ in found.values())
    events = {name: [e["event"] for e in manifest] for name, (*_, manifest) in found.items()}
    assert events["user/source"] == events["user/init"] == ["initialize", "extract"]
    assert events["user/tensor"] == events["user/words"] == ["extract"]
    for name in found:
        repository = hub.repository(name)
        assert len(repository.titles()) == 2 and set(repository.branches) == {"main"}
        card = repository.files()["README.md"].decode()
        assert f'load_vectors("{name}")' in card and f"--vectors {name}" in card and "**extract**" in card
        assert found[name][3][-1]["digest"] in card
        assert str(runs) not in "".join(f.decode("latin-1") for f in repository.files().values())
    errors = [
        ("InvalidArgumentError", "a Tensor has no tokens: give tokenizer="),
        ("InvalidArgumentError", "tokens and the table of a tensor 5 rows"),
        ("InvalidArgumentError", "names none of the input tables: model.encoder.embed_tokens.weight"),
        ("PublishError", "user/source is taken"),
        ("PublishError", "may only read"),
    ]
    for (kind, message), (status, text) in zip(lines[5:], errors, strict=True):
        assert kind == status and text in message, message


COMPARE = """
import json
import hf_embinit
for a, b, options in wanted:
    try:
        comparison = hf_embinit.compare(a, b, **options)
        print(json.dumps([str(comparison), comparison.to_dict()]))
    except hf_embinit.EmbinitError as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def test_compare_by_hub_id_also_offline(hub: Hub, writer: Client, runs: Path, tmp_path: Path) -> None:
    hub.add_folder("user/run", runs / "gpt2")
    repository = hub.add_folder("user/both", runs / "gpt2" / "init")
    repository.branches["old"] = repository.branches["main"]
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    for file in (runs / "gpt2").iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            (pickled / file.name).write_bytes(file.read_bytes())
    torch.save({"transformer.wte.weight": torch.randn(320, 16)}, pickled / "pytorch_model.bin")
    hub.add_folder("user/pickled", pickled)
    hub.add_folder("user/hidden", runs / "gpt2", private=True)
    wanted = [
        ["user/run", "user/both", {}],
        ["user/both", "user/both", {"revisions": ["old", None]}],
        ["user/both", str(runs / "glove.txt"), {}],
        ["user/both", "user/pickled", {}],
        ["user/both", "user/nothing", {}],
    ]
    lines = [json.loads(line) for line in writer.run(COMPARE, wanted=wanted).splitlines()]
    local = compare(runs / "gpt2", runs / "gpt2" / "init")
    text, trained = lines[0]
    assert trained["knn_match"] == local.knn_match and trained["shared"] == local.shared == 320
    assert [e["init"] for e in trained["a"]["manifest"]] == ["xavier"]
    assert "KNN match (k = 10)" in text and "user/both" in text and "initialize init xavier seed 0" in text
    assert lines[1][1]["knn_match"] == 1.0 and lines[1][1]["equal_rows"] == lines[1][1]["shared"]
    assert lines[2][0].startswith(" ") and 2 <= lines[2][1]["shared"] <= len(WORDS)
    assert lines[2][1]["mean_cosine"] is None and lines[2][1]["b"]["manifest"] == []
    assert lines[3][0] == "InvalidArgumentError" and "allow_pickle=True" in lines[3][1]
    assert lines[4][0] == "DataNotFoundError"
    seen = len(hub.requests)
    with hub.client(writer.cache, HF_HUB_OFFLINE="1") as client:
        again = client.run(COMPARE, wanted=[*wanted[:2], ["user/both", "user/unseen", {}]]).splitlines()
    assert [json.loads(line) for line in again[:2]] == lines[:2]
    assert json.loads(again[2])[0] == "DataNotFoundError" and "HF_HUB_OFFLINE" in again[2]
    assert len(hub.requests) == seen


def test_compare_of_tables_without_neighbors_or_shared_tokens(runs: Path) -> None:
    tokens = ["a", "b", "c", "d"]
    table = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    table[0] = 0.0
    one = PretrainedVectors(tokens, table, "one")
    flat = PretrainedVectors(tokens[::-1], torch.ones(4, 3), "flat")
    comparison = compare(one, flat, k=2)
    assert comparison.shared == 3 and comparison.knn_match is None and comparison.knn_problem
    assert comparison.knn_problem in str(comparison)
    shuffled = PretrainedVectors(["d", "c", "x", "b", "a"], table[[3, 2, 0, 1, 0]] * 2, "shuffled")
    comparison = compare(one, shuffled, k=2)
    assert comparison.knn_match == 1.0 and comparison.mean_cosine == pytest.approx(1.0)
    assert comparison.equal_rows == 0
    with pytest.raises(InvalidArgumentError, match="share 1 tokens"):
        compare(one, PretrainedVectors(["b", "z"], torch.ones(2, 3), "other"))


def test_rows_are_not_published_under_the_names_of_another_numbering() -> None:
    """Told before the Hub is asked."""
    backend = Tokenizer(models.WordLevel({"dog": 0, "a": 1}))
    other = PreTrainedTokenizerFast(tokenizer_object=backend)
    vectors = PretrainedVectors(["a", "dog"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "mine")
    with pytest.raises(InvalidArgumentError, match="numbers its tokens otherwise than mine its rows"):
        hf_embinit.publish_embeddings(vectors, "user/mine", tokenizer=other)
    with pytest.raises(InvalidArgumentError, match="on meta, expected"):
        hf_embinit.publish_embeddings(torch.ones(2, 2, device="meta"), "user/mine", tokenizer=other)
