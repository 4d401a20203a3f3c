"""Static embeddings as vectors: what Model2Vec and sentence-transformers average, from their own files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import tiny_models
from builders.loopback_hub import loopback_hub
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import hf_embinit
from hf_embinit.__main__ import main
from hf_embinit.errors import DataNotFoundError, UnsupportedModelError, VectorFileError
from hf_embinit.vectors import load_vectors

_NONE = "sentence-transformers is not installed"
SentenceTransformer = pytest.importorskip("sentence_transformers", reason=_NONE).SentenceTransformer
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules", reason=_NONE)

TOKENS = ["[PAD]", "[UNK]", "the", "cat", "##s", "sat"]


def tokenizer() -> Tokenizer:
    backend = Tokenizer(models.WordPiece({token: i for i, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(TOKENS[:2])
    return backend


def rows(count: int = len(TOKENS)) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0))


def saved_by_sentence_transformers(folder: Path) -> Any:
    module = modules.StaticEmbedding(tokenizer(), embedding_weights=rows())
    SentenceTransformer(modules=[module, modules.Normalize()], device="cpu").save_pretrained(str(folder))
    return module


def saved_as_model2vec(folder: Path, **tensors: Tensor) -> None:
    """The files of Model2Vec 0.10: its tensors, `tokenizer.json`, a config that is none of transformers."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"embeddings": rows(), **tensors}, folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"normalize": True, "max_length": 512}))
    module = {"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}
    (folder / "modules.json").write_text(json.dumps([module]))


def test_what_sentence_transformers_saves(tmp_path: Path) -> None:
    module = saved_by_sentence_transformers(tmp_path)
    vectors = load_vectors(tmp_path)
    assert vectors.tokens == TOKENS and vectors.family == "wordpiece"
    assert torch.equal(vectors.matrix, module.embedding.weight.detach())
    assert vectors.report["special_tokens"] == ["[PAD]", "[UNK]"]


def test_a_command_that_changes_a_model_says_what_it_is(tmp_path: Path, capsys) -> None:
    saved_by_sentence_transformers(tmp_path)
    for command in (["expand", "--tokens", "a"], ["init", "--init", "xavier"]):
        words = [command[0], str(tmp_path), *command[1:], "--output_dir", str(tmp_path / "o")]
        assert main(words) == 1
        assert (
            "holds static embeddings, a table without a model: give it as vectors=" in capsys.readouterr().err
        )


@pytest.mark.parametrize("kept", [(), ("mapping",), ("weights",), ("mapping", "weights")])
def test_what_model2vec_saves_is_what_its_reader_averages(kept: tuple[str, ...], tmp_path: Path) -> None:
    """sentence-transformers' reader of these files is the reference."""
    extra = {"mapping": torch.tensor([0, 0, 1, 2, 2, 1]), "weights": torch.rand(6)}
    smaller = {"embeddings": rows(3).half()} if "mapping" in kept else {}
    saved_as_model2vec(tmp_path, **smaller, **{name: extra[name] for name in kept})
    vectors = load_vectors(tmp_path)
    reference: Any = SentenceTransformer(str(tmp_path), device="cpu")[0]
    assert torch.equal(vectors.matrix, reference.embedding.weight.detach().float())
    for token, row in zip(vectors.tokens[2:], vectors.matrix[2:], strict=True):
        features = {"input_ids": torch.tensor([TOKENS.index(token)]), "offsets": torch.tensor([0])}
        assert torch.equal(reference(features)["sentence_embedding"][0].float(), row)
    assert vectors.report["table"] == "embeddings" and vectors.report["rows"] == len(TOKENS)
    assert vectors.report["dtype"] == ("float16" if smaller else "float32")


def test_a_model_is_initialised_from_them(tmp_path: Path) -> None:
    saved_as_model2vec(tmp_path)
    model = tiny_models.bert(vocab_size=6, hidden_size=4)
    words = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), unk_token="[UNK]", pad_token="[PAD]")
    hf_embinit.initialize(model, "pretrained", tokenizer=words, vectors=tmp_path, seed=0)
    assert torch.equal(model.get_input_embeddings().weight[2:], rows()[2:])


def test_the_folder_of_the_first_module(tmp_path: Path) -> None:
    """Older saves have the static embedding, or the transformer, in a folder of its own."""
    saved_as_model2vec(tmp_path / "0_StaticEmbedding")
    for name in ("config.json", "modules.json"):
        (tmp_path / "0_StaticEmbedding" / name).unlink()
    kind = "sentence_transformers.models.StaticEmbedding"
    (tmp_path / "modules.json").write_text(
        json.dumps([{"idx": 0, "path": "0_StaticEmbedding", "type": kind}])
    )
    assert torch.equal(load_vectors(tmp_path).matrix, rows())


def test_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_as_model2vec(tmp_path / "root")
    saved_as_model2vec(tmp_path / "inner" / "0_StaticEmbedding")
    for name in ("config.json", "modules.json"):
        (tmp_path / "inner" / "0_StaticEmbedding" / name).unlink()
    kind = "sentence_transformers.models.StaticEmbedding"
    listed = json.dumps([{"idx": 0, "path": "0_StaticEmbedding", "type": kind}])
    (tmp_path / "inner" / "modules.json").write_text(listed)
    code = (
        "import sys; from hf_embinit.vectors import load_vectors\n"
        "for name in sys.argv[1:]:\n"
        "    vectors = load_vectors(name)\n"
        "    print(vectors.tokens, vectors.matrix.sum().item())"
    )
    with loopback_hub() as hub:
        for name in ("root", "inner"):
            hub.add_folder(f"someone/{name}", tmp_path / name)
        done = subprocess.run(
            [sys.executable, "-c", code, "someone/root", "someone/inner"],
            env=hub.environment(tmp_path / "cache", None),
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{TOKENS} {rows().sum().item()}"] * 2


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            {"mapping": torch.tensor([0, 1, 2, 3, 4, 9])},
            r"mapping of .* torch.int64 \[6\], expected one of its 6",
        ),
        ({"mapping": torch.rand(6)}, r"mapping of .* torch.float32"),
        ({"weights": torch.rand(5)}, r"weights of .* \[5\], expected one for each of its 6 tokens"),
    ],
)
def test_tensors_that_do_not_fit(tensors: dict[str, Tensor], words: str, tmp_path: Path) -> None:
    saved_as_model2vec(tmp_path, **tensors)
    with pytest.raises(VectorFileError, match=words):
        load_vectors(tmp_path)


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "a\\b", 3])
def test_a_module_outside_of_the_folder(path: object, tmp_path: Path) -> None:
    saved_as_model2vec(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "modules.json").write_text(json.dumps([{"path": path, "type": "StaticEmbedding"}]))
    with pytest.raises(VectorFileError, match="which is no folder beside it"):
        load_vectors(tmp_path)


def test_integers_have_lost_their_scale(tmp_path: Path) -> None:
    saved_as_model2vec(tmp_path, embeddings=torch.ones(6, 4, dtype=torch.int8))
    with pytest.raises(UnsupportedModelError, match=r"torch\.int8"):
        load_vectors(tmp_path)


def test_without_a_tokenizer(tmp_path: Path) -> None:
    saved_as_model2vec(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataNotFoundError, match="no tokenizer files"):
        load_vectors(tmp_path)


def test_the_doctor_says_what_they_are(tmp_path: Path) -> None:
    saved_by_sentence_transformers(tmp_path)
    (finding,) = [one for one in hf_embinit.doctor(tmp_path) if one.code == "cannot_be_loaded"]
    assert "static embeddings" in finding.message and "vectors=" in finding.advice
