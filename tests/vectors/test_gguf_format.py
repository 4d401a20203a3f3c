"""Tables of GGUF files: the dtypes that the package gguf reads, tokens, paddings, and other files."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from builders.tiny_tokenizers import model, tokenizer

from hf_embinit import compare, initialize
from hf_embinit.__main__ import main
from hf_embinit.errors import DataNotFoundError, EmbinitError, InvalidArgumentError, UnsupportedModelError
from hf_embinit.report.spaces import load_space
from hf_embinit.vectors import load_vectors

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
WORDS = ["<unk>", "<s>", "▁the", "▁cat", "s", "<0x0A>", "[PAD6]", "[PAD7]"]
KINDS = gguf.GGMLQuantizationType
TYPES = [2, 3, 1, 1, 1, 6, 5, 5]
WIDTH = 64


def rows(count: int = len(WORDS)) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(0))


def write(path: Path, kind: str = "F32", *, tokens=WORDS, types=TYPES, name="token_embd.weight", table=None):
    """A file with a table in `kind` and one more tensor."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("llama")
    if tokens is not None:
        writer.add_token_list(tokens)
        writer.add_token_types(types)
    data = (rows() if table is None else table).numpy()
    writer.add_tensor(name, gguf.quants.quantize(data, KINDS[kind]), raw_dtype=KINDS[kind])
    writer.add_tensor("output_norm.weight", torch.ones(WIDTH).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("kind", "error"), [("F32", 0), ("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 2e-2), ("Q4_0", 0.4)]
)
def test_rows_and_tokens(kind: str, error: float, tmp_path: Path) -> None:
    vectors = load_vectors(write(tmp_path / "model.gguf", kind))
    assert vectors.tokens == WORDS[:6] and vectors.family == "sentencepiece"
    assert vectors.matrix.dtype == torch.float32 and vectors.matrix.shape == (6, WIDTH)
    furthest = float((vectors.matrix - rows()[:6]).abs().max())
    assert furthest <= error and (error == 0 or furthest > 0)
    expected = {"dtype": kind, "rows": 8, "rows_without_token": 2, "special_tokens": ["<unk>", "<s>"]}
    assert expected.items() <= vectors.report.items()


def test_it_is_told_by_its_content_and_other_tensors_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "blob", name="output.weight")
    with pytest.raises(UnsupportedModelError, match=r"no token_embd\.weight; choose one with table=: output"):
        load_vectors(file)
    assert torch.equal(load_vectors(file, table="out*t.weight").matrix, rows()[:6])
    with pytest.raises(InvalidArgumentError, match=r"table='x' names no tensors of .*output_norm"):
        load_vectors(file, table="x")
    with pytest.raises(UnsupportedModelError, match=r"is \[64\], expected a matrix"):
        load_vectors(file, table="output_norm.weight")


def test_initialize_compare_and_analyze(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model written as GGUF has the rows that its checkpoint has."""
    t = tokenizer("byte_level")
    m = model("llama", len(t), hidden_size=WIDTH, num_attention_heads=2)
    m.save_pretrained(tmp_path / "model")
    t.save_pretrained(tmp_path / "model")
    table = m.get_input_embeddings().weight.detach().clone()
    names = t.convert_ids_to_tokens(list(range(len(t))))
    file = write(tmp_path / "model.gguf", tokens=names, types=[3] + [1] * (len(t) - 1), table=table)
    compared = compare(str(file), tmp_path / "model")
    assert compared.shared == compared.equal_rows == len(t) and compared.a.manifest == []
    small = write(tmp_path / "small.gguf", "Q8_0", tokens=names, types=[1] * len(t), table=table)
    assert main(["compare", str(small), str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_cosine"] > 0.999
    other = model("llama", len(t), hidden_size=WIDTH, num_attention_heads=2)
    other.get_input_embeddings().weight.data.zero_()
    initialize(other, "pretrained", tokenizer=t, vectors=str(file))
    assert torch.equal(other.get_input_embeddings().weight, table)
    space = load_space(str(file))
    assert len(space.tokens) == len(t) - 1 and space.left_out == {"special": 1} and space.name == "model.gguf"


def test_what_is_wrong_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write(tmp_path / "whole.gguf").read_bytes()
    rng, refused = random.Random(0), 0
    for at in sorted({0, 3, 4, 12, 24, len(whole) - 1, *rng.sample(range(len(whole)), 30)}):
        for data in (whole[:at], whole[:at] + bytes([255]) * 8 + whole[at + 8 :]):
            (tmp_path / "x.gguf").write_bytes(data)
            try:
                load_vectors(tmp_path / "x.gguf")
            except EmbinitError as error:
                assert "x.gguf" in str(error) and "\n" not in str(error)
                refused += 1
    assert refused > 36
    (tmp_path / "x.gguf").write_text("the 1.0 2.0\n")
    with pytest.raises(EmbinitError, match=r"x\.gguf, which is no GGUF file"):
        load_vectors(tmp_path / "x.gguf")
    with pytest.raises(DataNotFoundError, match=r"has no tokenizer\.ggml\.tokens, so its rows have no"):
        load_vectors(write(tmp_path / "x.gguf", tokens=None))
    with pytest.raises(DataNotFoundError, match=r"absent\.gguf' is no file"):
        load_vectors("absent.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(DataNotFoundError, match="which the package gguf reads: pip install gguf"):
        load_vectors(tmp_path / "whole.gguf")


def test_other_byte_orders(tmp_path: Path) -> None:
    for kind, dtype, exact in (("F32", "f4", True), ("F16", "f2", False), ("Q8_0", None, False)):
        writer = gguf.GGUFWriter(str(tmp_path / kind), "llama", endianess=gguf.GGUFEndian.BIG)
        writer.add_token_list(WORDS)
        data = rows().numpy()
        packed = gguf.quants.quantize(data, KINDS[kind]) if dtype is None else data.astype(dtype)
        writer.add_tensor("token_embd.weight", packed, raw_dtype=KINDS[kind] if dtype is None else None)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        if dtype is None:
            with pytest.raises(UnsupportedModelError, match=r"big-endian.*gguf-convert-endian"):
                load_vectors(tmp_path / kind)
        else:
            assert torch.allclose(load_vectors(tmp_path / kind).matrix, rows(), atol=0 if exact else 2e-3)


def test_word_pieces_are_spelled_as_bert_does(tmp_path: Path) -> None:
    """Every row of a BERT comes back, its special tokens' too."""
    t = tokenizer("wordpiece")
    names = t.convert_ids_to_tokens(list(range(len(t))))
    m = model("bert", len(t), hidden_size=WIDTH)
    table = m.get_input_embeddings().weight.detach().clone()
    special = set(t.all_special_tokens)
    spelled = [n if n in special else n[2:] if n.startswith("##") else "▁" + n for n in names]
    writer = gguf.GGUFWriter(str(tmp_path / "bert.gguf"), "bert")
    writer.add_tokenizer_model("bert")
    writer.add_token_list(spelled)
    writer.add_token_types([3 if n in special else 1 for n in names])
    writer.add_tensor("token_embd.weight", table.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    vectors = load_vectors(tmp_path / "bert.gguf")
    assert vectors.tokens == names and vectors.family == "wordpiece" and any("##" in n for n in names)
    other = model("bert", len(t), hidden_size=WIDTH)
    initialize(other, "pretrained", tokenizer=t, vectors=vectors)
    keep = torch.arange(len(t)) != other.get_input_embeddings().padding_idx
    assert torch.equal(other.get_input_embeddings().weight[keep], table[keep])
