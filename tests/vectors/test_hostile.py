"""Malformed and hostile files of vectors and checkpoints: each is read, or refused by an error that names it.

Seeded; the cases are made from whole files by cutting, flipping bits and putting in wrong values.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import struct
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.tiny_tokenizers import tokenizer
from transformers import BertConfig, BertModel

from hf_embinit.errors import EmbinitError, VectorFileError
from hf_embinit.manifest import read_manifest
from hf_embinit.vectors import (
    PretrainedVectors,
    load_vectors,
    read_embedding_table,
    read_vectors,
    write_vectors,
)

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**12, 10**400, 1.5, float("nan"), "", "../../etc/passwd", [], [[]], {}, {"a": 1},
)  # fmt: skip


def outcomes(cases: Iterator[tuple[str, Callable[[], object]]]) -> tuple[Counter[str], list[str]]:
    """How often a case was read and refused, and the cases that ended in any other way."""
    ended: Counter[str] = Counter()
    bare = []
    for name, read in cases:
        try:
            read()
            ended["read"] += 1
        except EmbinitError as error:
            ended["refused"] += 1
            if not str(error) or len(str(error)) > 2000:
                bare.append(f"{name}: says {str(error)[:60]!r}")
        except Exception as error:
            bare.append(f"{name}: {type(error).__name__}: {str(error)[:120]}")
    return ended, bare


def damaged(data: bytes, rng: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """`data` cut, with bits flipped, with bytes taken out, put in and doubled."""
    for i in range(count):
        at = rng.randrange(len(data))
        kind = ("cut", "flip", "flips", "out", "zeros", "doubled")[i % 6]
        changed = bytearray(data)
        if kind == "cut":
            del changed[at:]
        elif kind in ("flip", "flips"):
            for place in [at] if kind == "flip" else rng.choices(range(len(data)), k=20):
                changed[place] ^= 1 << rng.randrange(8)
        elif kind == "out":
            del changed[at : at + rng.randrange(1, 9)]
        elif kind == "zeros":
            changed[at : at + 8] = bytes(8)
        else:
            changed[at:at] = data[at:]
        yield f"{kind}@{at}", bytes(changed)


# --- files of vectors


@pytest.fixture(scope="module")
def vector_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One whole file of every format that is read."""
    folder = tmp_path_factory.mktemp("whole")
    rows = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    words = [f"w{i}" for i in range(40)]
    write_vectors(folder / "v.txt", PretrainedVectors(words, rows, "v"))
    text = (folder / "v.txt").read_bytes()
    body = b"".join(w.encode() + b" " + r.numpy().tobytes() + b"\n" for w, r in zip(words, rows, strict=True))
    (folder / "v.bin").write_bytes(b"40 6\n" + body)
    (folder / "v.gz").write_bytes(gzip.compress(text, mtime=0))
    for name in ("STORED", "DEFLATED", "BZIP2", "LZMA"):
        info = zipfile.ZipInfo("v.txt", (2024, 1, 1, 0, 0, 0))
        info.compress_type = getattr(zipfile, f"ZIP_{name}")
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            archive.writestr(info, text)
    return {path.name: path for path in sorted(folder.iterdir())}


def test_damaged_files_of_vectors(vector_files: dict[str, Path], tmp_path: Path) -> None:
    rng = random.Random(13)

    def cases() -> Iterator[tuple[str, Callable[[], object]]]:
        for name, whole in vector_files.items():
            for kind, data in damaged(whole.read_bytes(), rng, 48):
                path = tmp_path / name
                path.write_bytes(data)
                tokens = ["w1", "w39"] if rng.random() < 0.5 else None
                yield f"{name} {kind}", lambda path=path, tokens=tokens: read_vectors(path, tokens)

    ended, bare = outcomes(cases())
    assert not bare
    assert ended["refused"] > 50 and ended["read"] > 20, ended


@pytest.mark.parametrize("header", ["3 1000000000000", "1000000000000 1000000000000"])
@pytest.mark.parametrize("rest", ["", "\n", "\na 1 2 3\n", "\na \x00\x01\x02\x03\n"])
def test_a_huge_dimension(header: str, rest: str, tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text(header + rest)
    for tokens in (None, ["a"]):
        with pytest.raises(VectorFileError, match=r"v\.txt"):
            read_vectors(path, tokens)


@pytest.mark.parametrize("line", [b"\0", b"a", b"0 ", b"word 1.0 "])
def test_an_endless_line_is_refused_at_once(line: bytes, tmp_path: Path) -> None:
    """Megabytes of gzip hold gigabytes on one line: no more than a line may have is looked at."""
    path = tmp_path / "v.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(96):
            file.write(line * ((1 << 20) // len(line)))
    started = time.process_time()
    with pytest.raises(VectorFileError, match=r"v\.txt\.gz"):
        read_vectors(path)
    assert time.process_time() - started < 5
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"a 1 2\nb 1 2\n")
        for _ in range(96):
            file.write(line * ((1 << 20) // len(line)))
    with pytest.raises(VectorFileError, match="line 3"):
        read_vectors(path)


# --- checkpoints


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small BERT as one file, as shards with an index, and as a pickle."""
    folder = tmp_path_factory.mktemp("checkpoints")
    words = tokenizer("wordpiece")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=8, **sizes))
    model.config.embinit = [{"event": "initialize"}]
    for name, options in (("single", {}), ("sharded", {"max_shard_size": "3KB"})):
        model.save_pretrained(folder / name, **options)
        words.save_pretrained(folder / name)
    shutil.copytree(folder / "single", folder / "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(model.state_dict(), folder / "pickled" / "pytorch_model.bin")
    return {path.name: path for path in sorted(folder.iterdir())}


def wrong_json(value: Any, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """A JSON value with one of its parts replaced by each kind of wrong one."""
    yield from (("whole", wrong) for wrong in VALUES)
    if isinstance(value, dict):
        for key in value:
            yield f"-{key}", {k: v for k, v in value.items() if k != key}
            for wrong in rng.sample(VALUES, 4):
                yield f"{key}={wrong!r:.20}", {**value, key: wrong}


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file of any header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


TABLE = "embeddings.word_embeddings.weight"
F32 = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
SAFETENSORS = {
    "empty": b"",
    "no header": b"\x08",
    "header too long": safetensors({TABLE: F32}, bytes(16), 2**62),
    "header too short": safetensors({TABLE: F32}, bytes(16), 5),
    "header no JSON": safetensors(b"{" * 64),
    "deep header": safetensors(b"[" * 100_000),
    "header a list": safetensors([]),
    "overlap": safetensors({TABLE: F32, "b": {**F32, "data_offsets": [8, 24]}}, bytes(24)),
    "outside": safetensors({TABLE: {**F32, "data_offsets": [0, 1 << 40]}}, bytes(16)),
    "backwards": safetensors({TABLE: {**F32, "data_offsets": [16, 0]}}, bytes(16)),
    "huge shape": safetensors({TABLE: {**F32, "shape": [1 << 62, 1 << 62]}}, bytes(16)),
    "negative shape": safetensors({TABLE: {**F32, "shape": [-2, -2]}}, bytes(16)),
    "unknown type": safetensors({TABLE: {**F32, "dtype": "F33"}}, bytes(16)),
    "no table": safetensors({"x": F32}, bytes(16)),
    "one dimension": safetensors({TABLE: {**F32, "shape": [4]}}, bytes(16)),
    "no rows": safetensors({TABLE: {"dtype": "F32", "shape": [0, 2], "data_offsets": [0, 0]}}),
    "whole numbers": safetensors({TABLE: {**F32, "dtype": "I32"}}, bytes(16)),
    "eighths": safetensors({TABLE: {**F32, "dtype": "F8_E4M3", "data_offsets": [0, 4]}}, bytes(4)),
}


def checkpoint_cases(whole: dict[str, Path], tmp_path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    rng = random.Random(7)
    number = iter(range(10**6))

    def changed(base: str, file: str, data: bytes) -> Path:
        folder = tmp_path / f"{next(number)}"
        shutil.copytree(whole[base], folder)
        (folder / file).write_bytes(data)
        return folder

    def reads(name: str, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
        yield name, lambda: read_embedding_table(folder, allow_pickle=True)
        shutil.rmtree(folder)

    for base, file in (
        ("single", "config.json"),
        ("single", "tokenizer.json"),
        ("single", "tokenizer_config.json"),
        ("sharded", "model.safetensors.index.json"),
    ):
        data = (whole[base] / file).read_bytes()
        texts = [
            *damaged(data, rng, 24),
            ("deep", b"[" * 200_000),
            ("bytes", b"\xff\xfe\x00"),
            ("empty", b""),
        ]
        for kind, value in wrong_json(json.loads(data), rng):
            texts.append((kind, json.dumps(value).encode()))
        for kind, text in texts:
            yield from reads(f"{file} {kind}", changed(base, file, text))
    index = json.loads((whole["sharded"] / "model.safetensors.index.json").read_bytes())
    for file in VALUES:
        names = dict.fromkeys(index["weight_map"], file)
        text = json.dumps({**index, "weight_map": names}).encode()
        yield from reads(f"shard {file!r:.20}", changed("sharded", "model.safetensors.index.json", text))
    for kind, data in SAFETENSORS.items():
        yield from reads(f"safetensors {kind}", changed("single", "model.safetensors", data))
    for base, file, count in (("single", "model.safetensors", 60), ("pickled", "pytorch_model.bin", 30)):
        for kind, data in damaged((whole[base] / file).read_bytes(), rng, count):
            yield from reads(f"{file} {kind}", changed(base, file, data))


def test_damaged_checkpoints(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    ended, bare = outcomes(checkpoint_cases(checkpoints, tmp_path))
    assert not bare, f"{len(bare)} of {ended}:\n" + "\n".join(bare)
    assert ended["refused"] > 120 and ended["read"] > 20, ended


def test_an_index_reads_no_file_outside_its_folder(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    shutil.copytree(checkpoints["sharded"], folder)
    path = folder / "model.safetensors.index.json"
    shard = next(folder.glob("model-*.safetensors"))
    shutil.move(shard, tmp_path / shard.name)
    for outside in (f"../{shard.name}", str(tmp_path / shard.name), "..", ""):
        names = dict.fromkeys(json.loads(path.read_text())["weight_map"], outside)
        path.write_text(json.dumps({"weight_map": names}))
        with pytest.raises(VectorFileError, match="no file beside it"):
            load_vectors(folder)


def test_manifests_of_the_wrong_type(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = json.loads((checkpoints["single"] / "config.json").read_text())
    assert read_manifest(checkpoints["single"]) == [{"event": "initialize"}]

    def cases() -> Iterator[tuple[str, Callable[[], object]]]:
        for value in VALUES:
            for text in (json.dumps({**config, "embinit": value}), json.dumps(value)):
                path.write_text(text)
                yield text[:40], lambda: read_manifest(tmp_path)
        for _, data in damaged((checkpoints["single"] / "config.json").read_bytes(), random.Random(1), 30):
            path.write_bytes(data)
            yield "damaged", lambda: read_manifest(tmp_path)

    assert not outcomes(cases())[1]
    for event in (
        "x",
        {"event": "expand_vocabulary", "tokens": ["a"]},
        {"tokens": {"a": "b"}},
        {"x": 1},
        {"event": "resize"},
    ):
        path.write_text(json.dumps({**config, "embinit": [event]}))
        with pytest.raises(VectorFileError, match=r"config\.json is no list of events"):
            read_manifest(tmp_path)
