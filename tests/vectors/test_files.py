"""Files of vectors: every format, every damage, only the rows asked for."""

from __future__ import annotations

import bz2
import dataclasses
import datetime
import gzip
import io
import lzma
import math
import os
import pickle
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_embinit.errors import DataNotFoundError, FileWriteError, InvalidArgumentError, VectorFileError
from hf_embinit.vectors import (
    PretrainedVectors,
    check_taken,
    load_vectors,
    read_vectors,
    rows_digest,
    streams,
    write_vectors,
)

PLAIN = b"the 0.1 -0.2 3\nof 1e-3 0 -4.5\n. . . 7 8 9\ncat -1 -2 -3\n"
ROWS = {"the": [0.1, -0.2, 3], "of": [1e-3, 0, -4.5], ". . .": [7, 8, 9], "cat": [-1, -2, -3]}


def write(folder: Path, data: bytes, name: str = "vectors.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def binary(
    rows: dict[str, list[float]], newline: bytes = b"\n", header: tuple[int, int] | None = None
) -> bytes:
    total, dim = header or (len(rows), len(next(iter(rows.values()))))
    body = b"".join(t.encode() + b" " + struct.pack(f"<{len(r)}f", *r) + newline for t, r in rows.items())
    return b"%d %d\n" % (total, dim) + body


def check(vectors: PretrainedVectors, tokens: list[str] | None = None) -> None:
    tokens = list(ROWS) if tokens is None else tokens
    assert vectors.tokens == tokens
    expected = torch.tensor([ROWS[token] for token in tokens], dtype=torch.float32)
    assert vectors.matrix.dtype == torch.float32
    assert torch.equal(vectors.matrix, expected.reshape(len(tokens), 3))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(PLAIN, id="glove"),
        pytest.param(b"4 3\n" + PLAIN, id="word2vec"),
        pytest.param(b"4 3 \r\n" + PLAIN.replace(b"\n", b"\r\n"), id="crlf"),
        pytest.param(b"4 3\n" + PLAIN.replace(b"\n", b" \n"), id="fasttext"),
        pytest.param(PLAIN[:-1], id="no final newline"),
        pytest.param(b"\xef\xbb\xbf" + PLAIN, id="byte-order mark"),
        pytest.param(PLAIN.replace(b"\n", b"\n\n"), id="blank lines"),
        pytest.param(PLAIN.replace(b" ", b"  ").replace(b".  .  .", b". . ."), id="double spaces"),
        pytest.param(b"the\t0.1\t-0.2\t3\nof\t1e-3\t0\t-4.5\n. . .\t7\t8\t9\ncat\t-1\t-2\t-3\n", id="tabs"),
    ],
)
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_every_text_format_gives_the_same_rows(
    data: bytes, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BLOCK", block)
    path = write(tmp_path, data)
    check(read_vectors(path))
    check(read_vectors(path, ["cat", "absent", "the", "cat"]), ["cat", "the"])
    check(read_vectors(str(path), [". . .", "of"]), [". . .", "of"])
    check(read_vectors(path, ["."]), [])


BINARY_ROWS: dict[str, list[float]] = {
    "the": [0.5, -0.25, 3],
    "of": [1, 0, -4.5],
    "Häuser": [7, 8, 9],
    "": [1e9, 1e-9, 2],
}


@pytest.mark.parametrize("newline", [b"\n", b""], ids=["original", "gensim"])
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_word2vec_binary(newline: bytes, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK", block)
    path = write(tmp_path, binary(BINARY_ROWS, newline), "vectors.bin")
    vectors = read_vectors(path)
    assert vectors.tokens == list(BINARY_ROWS)
    assert torch.equal(vectors.matrix, torch.tensor(list(BINARY_ROWS.values())))
    assert vectors.report["format"] == "binary" and vectors.report["header"] == [4, 3]
    some = read_vectors(path, ["Häuser", "no", "the"])
    assert some.tokens == ["Häuser", "the"]
    assert torch.equal(some.matrix, vectors.matrix[[2, 0]])


def test_binary_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = binary(BINARY_ROWS)
    cut = read_vectors(write(tmp_path, data[:-6], "cut.bin"))
    assert cut.tokens == ["the", "of", "Häuser"]
    assert cut.report["truncated_last_line"] and cut.report["lines"] == 3
    assert "cut off" in caplog.text
    with pytest.raises(VectorFileError, match=r"narrow\.bin.*2 numbers"):
        read_vectors(write(tmp_path, binary(BINARY_ROWS, header=(4, 2)), "narrow.bin"))
    rows = {"a": [1.0, 2.0], "b": [float("nan"), 1.0], "a2": [3.0, 4.0], "a": [1.0, 2.0]}  # noqa: F601
    twice = binary(rows, header=(4, 2)) + b"a " + struct.pack("<2f", 9, 9)
    vectors = read_vectors(write(tmp_path, twice, "nan.bin"))
    assert vectors.tokens == ["a", "a2"] and vectors.matrix[0].tolist() == [1, 2]
    assert vectors.report["duplicates"] == 1 and vectors.report["non_finite"] == ["b"]


@pytest.mark.parametrize("number", [np.float16, np.float64])
@pytest.mark.parametrize("asked", [None, ["w3"]])
def test_binary_rows_of_other_numbers_are_no_truncated_file(number, asked, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(400, 24)).astype(number)
    body = b"".join(f"w{i} ".encode() + row.tobytes() + b"\n" for i, row in enumerate(rows))
    width = 24 if number is np.float16 else 50
    with pytest.raises(VectorFileError, match=f"rows are not {width} numbers|no token there"):
        read_vectors(write(tmp_path, b"400 %d\n" % width + body, "v.bin"), asked)


@pytest.mark.parametrize("newline", [b"\n", b""], ids=["original", "gensim"])
@pytest.mark.parametrize("asked", [None, ["new", "w12"]])
def test_a_token_with_a_space_is_no_word2vec_binary(newline: bytes, asked, tmp_path: Path) -> None:
    """The reader cannot see it, and would take what is between for numbers: up to 1e38."""
    names = [f"w{i}" if i != 10 else "new york" for i in range(200)]
    numbers = np.random.default_rng(0).integers(1, 9, (200, 50)).astype("<f4")  # with bytes of 0
    body = b"".join(t.encode() + b" " + r.tobytes() + newline for t, r in zip(names, numbers, strict=True))
    with pytest.raises(VectorFileError, match=r"row 12: its token .* one before it holds a space.* the text"):
        read_vectors(write(tmp_path, b"200 50\n" + body, "v.bin"), asked)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize("block", [5, 1 << 20])
def test_gzip(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK", block)
    check(read_vectors(write(tmp_path, gzip.compress(PLAIN), "a.txt.gz")))
    two = gzip.compress(PLAIN[:20]) + gzip.compress(PLAIN[20:]) + b"\0" * 9
    check(read_vectors(write(tmp_path, two, "two.gz")))
    packed = gzip.compress(binary(BINARY_ROWS))
    assert read_vectors(write(tmp_path, packed, "a.bin.gz")).tokens == list(BINARY_ROWS)
    damaged = bytearray(gzip.compress(PLAIN))
    damaged[-6] ^= 1
    for bad in (gzip.compress(PLAIN)[:-9], bytes(damaged)):
        with pytest.raises(VectorFileError, match=r"bad\.gz"):
            read_vectors(write(tmp_path, bad, "bad.gz"))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("block", [5, 1 << 20])
def test_zip(method: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK", block)
    extra = {"README.md": b"x", "__MACOSX/._glove.txt": b"y"}
    one = write(tmp_path, zipped({**extra, "glove.txt": PLAIN}, method), "one.zip")
    check(read_vectors(one))
    assert read_vectors(one).report["member"] == "glove.txt"
    six = write(tmp_path, zipped({"a.50d.txt": b"the 1\n", "a.3d.txt": PLAIN}, method), "six.zip")
    check(read_vectors(f"{six}:a.3d.txt"))
    check(read_vectors(six, ["of"], member="a.3d.txt"), ["of"])
    with pytest.raises(InvalidArgumentError, match=r"a\.50d\.txt, a\.3d\.txt.*six\.zip:a\.50d\.txt"):
        read_vectors(six)
    with pytest.raises(InvalidArgumentError, match=r"no member 'x'.*a\.50d\.txt"):
        read_vectors(six, member="x")
    with pytest.raises(InvalidArgumentError, match="not a zip"):
        read_vectors(write(tmp_path, PLAIN), member="a.txt")
    assert sorted(os.listdir(tmp_path)) == ["one.zip", "six.zip", "vectors.txt"]


def test_damaged_zip(tmp_path: Path) -> None:
    data = zipped({"a.txt": PLAIN * 50}, zipfile.ZIP_STORED).replace(b"cat -1 -2", b"cat -1 -7", 1)
    with pytest.raises(VectorFileError, match=r"checksum|CRC"):
        read_vectors(write(tmp_path, data, "stored.zip"))
    data = zipped({"a.txt": os.urandom(4000).hex().encode()})
    data = data[:800] + b"\xff" * 100 + data[900:]
    with pytest.raises(VectorFileError, match=r"deflated\.zip:a\.txt is damaged"):
        read_vectors(write(tmp_path, data, "deflated.zip"), ["a"])
    with pytest.raises(VectorFileError, match=r"cut\.zip"):
        read_vectors(write(tmp_path, data[:2000], "cut.zip"))


def test_duplicates_first_wins_and_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path, b"a 1 2\nb 3 4\na 5 6\na 7 8\n. . 1 1\n. . 2 2\n")
    every = read_vectors(path)
    assert every.tokens == ["a", "b", ". ."] and every.matrix[0].tolist() == [1, 2]
    assert every.report["duplicates"] == 3 and every.report["tokens_with_spaces"] == 2
    assert read_vectors(path, ["a", "b"]).report["duplicates"] == 2


def test_truncated_last_line_is_left_out_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for tail in (b"b", b"b ", b"b 1", b"b 1 2 -"):
        for tokens in (None, ["a", "b"]):
            vectors = read_vectors(write(tmp_path, b"a 1 2 3\nc 4 5 6\n" + tail), tokens)
            assert "b" not in vectors.tokens
            assert vectors.report["truncated_last_line"] and vectors.report["lines"] == 2
    assert "vectors.txt: the last line is cut off and left out" in caplog.text
    whole = read_vectors(write(tmp_path, b"3 2\na 1 2\nb 3 4\n"))
    assert not whole.report["truncated_last_line"] and "no line end" not in caplog.text
    assert len(read_vectors(write(tmp_path, b"2 2\na 1 2\nb 3 7.2"))) == 2  # may have been 7.25e-05
    assert "vectors.txt, line 3: no line end follows" in caplog.text
    assert "header says 3 rows, the file has fewer" in caplog.text and "has more" not in caplog.text
    assert len(read_vectors(write(tmp_path, b"1 2\na 1 2\nb 3 4\n"))) == 2
    assert "header says 1 rows, the file has more" in caplog.text


def test_non_finite_rows_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, b"a 1 2\nb nan 4\nc 5 -inf\nd 1e50 1\ne e NaN 1\nf 3 4\n")
    for tokens in (None, ["f", "e e", "d", "c", "b", "a"]):
        vectors = read_vectors(path, tokens)
        assert sorted(vectors.tokens) == ["a", "f"]
        assert torch.isfinite(vectors.matrix).all()
        assert sorted(vectors.report["non_finite"]) == ["b", "c", "d", "e e"]
        assert vectors.report["found"] == 2
    assert "4 rows with NaN or infinity left out" in caplog.text


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"bad 1", "1 numbers where the rows have 2"),
        (b"bad", "0 numbers where the rows have 2"),
        (b"bad 1 2 3", "3 numbers where the rows have 2"),
        (b"bad 1 x", "'x' is not a number"),
        (b"bad 1 0,5", "'0,5' is not a number"),
    ],
)
def test_a_wrong_row_is_one_error_with_file_and_line(line: bytes, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path, b"a 1 2\nb 3 4\n" + line + b"\nc 5 6\n")
    for tokens in (None, ["c", "bad"]):
        with pytest.raises(VectorFileError) as error:
            read_vectors(path, tokens)
        assert str(error.value) == f"{path}, line 3: {problem}."
    # Rows that are not asked for are not parsed, and do not swallow their neighbors.
    assert read_vectors(path, ["a", "b", "c"]).tokens == ["a", "b", "c"]


def test_wrong_width_after_a_header(tmp_path: Path) -> None:
    with pytest.raises(VectorFileError, match="line 2: 2 numbers where the header on line 1 says 3"):
        read_vectors(write(tmp_path, b"2 3\na 1 2\nb 3 4\n"))
    with pytest.raises(VectorFileError, match=r"line 1: .* is not a token followed by numbers"):
        read_vectors(write(tmp_path, b"Call me Ishmael.\nSome years ago\n"))
    with pytest.raises(VectorFileError, match="is empty"):
        read_vectors(write(tmp_path, b""))
    with pytest.raises(VectorFileError):
        read_vectors(write(tmp_path, os.urandom(5000)))


def test_headers_and_numbers_as_tokens(tmp_path: Path) -> None:
    one = read_vectors(write(tmp_path, b"3 5\n1 7\n2 9\n"))  # width 1: the first line is a row
    assert one.tokens == ["3", "1", "2"] and one.report["header"] is None
    assert read_vectors(write(tmp_path, b"2 1\n1 7\n2 9\n")).tokens == ["1", "2"]
    assert read_vectors(write(tmp_path, b"1 2 3\n2 3 4\n")).tokens == ["1", "2"]
    empty = read_vectors(write(tmp_path, b"0 5\n"))
    assert empty.tokens == [] and empty.matrix.shape == (0, 5)
    number = read_vectors(write(tmp_path, b"a 1 2\nb 1 2\ncat 5 1 2\n"), ["cat 5", "a"])
    assert number.tokens == ["cat 5", "a"]  # asked for, so not a row that is too wide


def test_undecodable_tokens_stay_apart(tmp_path: Path) -> None:
    vectors = read_vectors(write(tmp_path, b"\xff\xfe 1 2\n\xff 3 4\n\xc3\xa4 5 6\n"))
    assert vectors.tokens == ["\\xff\\xfe", "\\xff", "ä"]
    assert read_vectors(tmp_path / "vectors.txt", ["ä", "\udcff"]).tokens == ["ä"]


def saved_by_torch() -> bytes:
    file = io.BytesIO()
    torch.save({"a": torch.ones(2)}, file)
    return file.getvalue()


def saved_by_numpy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.ones((3, 2)))
    return file.getvalue()


def packed_by_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo("vectors.txt")
        member.size = len(PLAIN)
        archive.addfile(member, io.BytesIO(PLAIN))
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (saved_by_torch(), "file of PyTorch.*PretrainedVectors"),
        (saved_by_numpy(), "array of NumPy.*torch.from_numpy"),
        (pickle.dumps({"a": 1}), "a pickle.*save_word2vec_format"),
        (bz2.compress(PLAIN), "bunzip2"),
        (lzma.compress(PLAIN), "unxz"),
        (gzip.compress(saved_by_numpy()), "array of NumPy"),
        (gzip.compress(packed_by_tar()), "a tar archive: unpack it first"),
        (zipped({"a.txt.gz": gzip.compress(PLAIN)}), "packed by gzip inside: unpack it first"),
        (gzip.compress(zipped({"a.txt": PLAIN})), "packed by zip inside: unpack it first"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"),
    ],
    ids=["torch", "npy", "pickle", "bz2", "xz", "npy.gz", "tar.gz", "gz.zip", "zip.gz", "lfs"],
)
def test_files_of_other_formats_say_what_to_do(data: bytes, says: str, tmp_path: Path) -> None:
    for asked in (None, ["the"]):
        with pytest.raises(VectorFileError, match=says):
            read_vectors(write(tmp_path, data), asked)


def test_carriage_returns_alone_are_no_line_ends_here(tmp_path: Path) -> None:
    for asked in (None, ["of"]):
        with pytest.raises(VectorFileError, match="carriage return alone"):
            read_vectors(write(tmp_path, PLAIN.replace(b"\n", b"\r")), asked)
    with pytest.raises(VectorFileError, match="line 2: a carriage return stands inside"):
        read_vectors(write(tmp_path, b"a 1 2\nb 3 4\rc 5 6\nd 7 8\n"))
    check(read_vectors(write(tmp_path, PLAIN.replace(b"\n", b"\r\n"))))


@pytest.mark.parametrize("header", [b"", b"4 3\n"])
def test_a_space_before_each_token_is_none_of_it(header: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, header + b"".join(b" " + line for line in PLAIN.splitlines(keepends=True)))
    check(read_vectors(path))
    check(read_vectors(path, ["cat", "the"]), ["cat", "the"])


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"no\.txt' does not exist"):
        read_vectors(tmp_path / "no.txt", [])
    with pytest.raises(DataNotFoundError, match="is a folder"):
        read_vectors(tmp_path)
    with pytest.raises(InvalidArgumentError, match="list of strings"):
        read_vectors(tmp_path, "the")


token = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=8)
phrase = st.lists(token, min_size=1, max_size=3).map(" ".join)
number = st.floats(width=32, allow_nan=False, allow_infinity=False)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_write_then_read(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is written is read back to the last bit, whatever the block size, with or without the header."""
    dim = data.draw(st.integers(1, 4))
    tokens = data.draw(st.lists(phrase, min_size=1, max_size=6, unique=True))
    tokens = [t for t in tokens if len(t.split(" ")) == 1 or not is_number(t.split(" ")[-1])]
    rows = data.draw(
        st.lists(st.lists(number, min_size=dim, max_size=dim), min_size=len(tokens), max_size=len(tokens))
    )
    matrix = torch.tensor(rows, dtype=torch.float32).reshape(len(tokens), dim)
    path = tmp_path_factory.mktemp("v") / "v.vec"
    write_vectors(path, PretrainedVectors(tokens, matrix, "x"))
    asked = data.draw(st.permutations(tokens))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "BLOCK", data.draw(st.sampled_from([1, 3, 64, 1 << 20])))
        every = read_vectors(path)
        some = read_vectors(path, asked)
    assert every.tokens == tokens and torch.equal(every.matrix, matrix)
    assert every.digest == rows_digest(tokens, matrix)
    assert some.tokens == asked and torch.equal(some.matrix, matrix[[tokens.index(t) for t in asked]])
    assert os.listdir(path.parent) == ["v.vec"]


@pytest.mark.parametrize(
    "bad",
    ["a\nb", " a", "a ", "a\r", "a 1", "a nan", "", "a\tb", "a\vb", "a\fb", "a\rb", "\ud800", "x"],
)
def test_tokens_that_no_text_file_can_hold(bad: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be written"):
        write_vectors(tmp_path / "v.txt", PretrainedVectors(["x", bad], torch.ones(2, 2), "x"))
    assert os.listdir(tmp_path) == []


def test_rows_that_reading_leaves_out_are_not_written(tmp_path: Path) -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(InvalidArgumentError, match="row of token 'y' has NaN or infinity"):
            write_vectors(tmp_path / "v.txt", PretrainedVectors(["x", "y"], torch.tensor([[1], [bad]]), "x"))
    assert os.listdir(tmp_path) == []


def test_other_white_space_is_part_of_a_token(tmp_path: Path) -> None:
    tokens = ["a\x85b", "a\u2028b", "a\u00a0b", "\u3000", "a\x1cb"]
    write_vectors(tmp_path / "v.txt", PretrainedVectors(tokens, torch.randn(5, 3), "x"))
    assert read_vectors(tmp_path / "v.txt").tokens == tokens


def test_equal_rows_have_equal_digests_in_any_dtype() -> None:
    rows = torch.randn(2, 8).half()
    digest = rows_digest(["a", "b"], rows)
    assert digest == rows_digest(["a", "b"], rows.float().requires_grad_())
    assert digest == rows_digest(["a", "b"], rows.double().T.contiguous().T)
    short = rows.bfloat16()
    assert rows_digest(["a", "b"], short) == rows_digest(["a", "b"], short.float())


def test_digest_names_the_rows(tmp_path: Path) -> None:
    plain = read_vectors(write(tmp_path, PLAIN))
    packed = read_vectors(write(tmp_path, gzip.compress(b"4 3\n" + PLAIN), "v.gz"))
    assert plain.digest == packed.digest and str(plain.digest).startswith("sha256:")
    assert read_vectors(tmp_path / "v.gz", ["of", "the"]).digest != plain.digest


MEMORY = """
import sys
from hf_embinit.vectors import read_vectors
def peak():
    status = open("/proc/self/status")
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) // 1024
small, plain, packed = sys.argv[1:]
read_vectors(small)
for path, tokens in ((plain, range(0, 9000, 9)), (packed, range(0, 9000, 9)), (packed, None)):
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts from what is used now
    before = peak()
    vectors = read_vectors(path, tokens and [f"word{i}" for i in tokens])
    print(len(vectors), peak() - before - vectors.matrix.numel() * 4 // 2**20)
    del vectors
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="measured as Linux does")
def test_memory_is_that_of_the_rows_kept(tmp_path: Path) -> None:
    """A file of 54 MB, plain and zipped, some rows and all: under 50 MiB beyond the rows kept."""
    row = b" ".join(b"%d.5" % (i % 10) for i in range(1500))
    body = b"".join(b"word%d " % i + row + b"\n" for i in range(9_000))
    assert len(body) > 54e6
    plain, packed = write(tmp_path, body, "large.txt"), write(tmp_path, zipped({"a.txt": body}), "large.zip")
    del body
    command = [sys.executable, "-c", MEMORY, str(write(tmp_path, PLAIN)), str(plain), str(packed)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    counts, beyond = zip(*(map(int, line.split()) for line in lines), strict=True)
    assert counts == (1000, 1000, 9_000)
    assert max(beyond) < 50, beyond


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "rows", "lines", "duplicates", "header"),
    [
        ("googlenews_word2vec_8000x300.txt", 8000, 8001, 0, [8000, 300]),
        ("glove.6B.300d.3157.txt", 3157, 3157, 0, None),
        ("glove.840B.300d.597.txt", 597, 600, 3, None),  # cut off in its 601st line
    ],
)
def test_real_files(
    name: str, rows: int, lines: int, duplicates: int, header: list[int] | None, data_folder: Path
) -> None:
    path = data_folder / "vectors" / name
    vectors = read_vectors(path)
    assert vectors.matrix.shape == (rows, 300)
    assert vectors.report["lines"] == lines
    assert vectors.report["duplicates"] == duplicates
    assert vectors.report["header"] == header
    assert vectors.report["truncated_last_line"] == (rows == 597)
    some = read_vectors(path, ["in", "nothing like it", "the", "and"])
    expected: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        word, *numbers = line.rsplit(" ", 300)
        expected.setdefault(word, numbers)
    for word, row in zip(some.tokens, some.matrix, strict=True):
        assert torch.equal(row, torch.tensor(np.array(expected[word], dtype=np.float64)).float())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_called_by_its_name(encoding: str, tmp_path: Path) -> None:
    text = "\ufeff" * (encoding != "utf-16") + "das 1 2\nfür 3 4\n"
    with pytest.raises(VectorFileError, match="line 1: the file is UTF-16: convert it, as by iconv"):
        read_vectors(write(tmp_path, text.encode(encoding)))


def test_tokens_that_are_not_utf_8_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    latin = "das 1 2\nfür 3 4\nüber 5 6\n".encode("latin1")
    vectors = read_vectors(write(tmp_path, latin), ["das", "für"])
    assert vectors.tokens == ["das"] and vectors.report["not_utf_8"] == 2
    assert "2 of its first rows have tokens that are not UTF-8" in caplog.text
    assert read_vectors(write(tmp_path, "das 1 2\nfür 3 4\n".encode())).report["not_utf_8"] == 0


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"GGUF\3\0\0\0", "is a GGUF file: load_vectors reads it"),
        (b'\x40\0\0\0\0\0\0\0{"__metadata__":{}}', "is a safetensors file: give the folder"),
    ],
)
def test_files_of_models_are_named(start: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(VectorFileError, match=said):
        read_vectors(write(tmp_path, start + b"\n" * 9))


def test_a_header_that_numbers_the_columns_is_no_word(tmp_path: Path) -> None:
    rows = "".join(f"{word}\t" + "\t".join(["0.5"] * 6) + "\n" for word in ("the", "dog"))
    for first, name in ((0, "word"), (1, "word"), (0, "")):
        header = "\t".join([name, *map(str, range(first, first + 6))])
        with pytest.raises(VectorFileError, match="line 1: it numbers the 6 columns"):
            read_vectors(write(tmp_path, f"{header}\n{rows}".encode()))
    assert len(read_vectors(write(tmp_path, f"word\t{'1 ' * 6}\n{rows}".encode())).tokens) == 3


def test_arrays_of_numpy_together_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", vectors=np.ones((2, 3)), words=np.array(["a", "b"]))
    with pytest.raises(VectorFileError, match=r"two\.npz is an array of NumPy: give PretrainedVectors"):
        load_vectors(tmp_path / "two.npz")


def test_a_member_of_a_zip_of_any_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two.dat", "w") as archive:
        archive.writestr("a.txt", "x 1 2\ny 3 4\n")
        archive.writestr("b.txt", "x 5 6\ny 7 8\n")
    with pytest.raises(InvalidArgumentError, match=r"Name one: '(.*)'") as told:
        load_vectors(tmp_path / "two.dat")
    spec = re.search("Name one: '(.*)'", str(told.value))[1]
    assert spec.endswith("two.dat:a.txt") and load_vectors(spec).matrix.tolist() == [[1, 2], [3, 4]]


def test_write_refuses_before_anything_is_lost(tmp_path: Path) -> None:
    vectors = PretrainedVectors(["a"], torch.ones(1, 2), "x", provenance={"of": "old"})
    write_vectors(tmp_path / "v.txt", vectors)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    dated = dataclasses.replace(vectors, provenance={"day": datetime.date(2026, 1, 1)})
    with pytest.raises(InvalidArgumentError, match=r"kept as JSON, and cannot be: .*date"):
        write_vectors(tmp_path / "v.txt", dated)
    with pytest.raises(InvalidArgumentError, match="rows without a number"):
        write_vectors(tmp_path / "v.txt", PretrainedVectors(["a"], torch.ones(1, 0), "x"))
    with pytest.raises(InvalidArgumentError, match=r"^path='.*gz' says another format .*such as v\.txt$"):
        write_vectors(tmp_path / "v.txt.gz", vectors)
    for name, usual in (("w.bin", "w"), ("w.txt.gz", "w"), ("w.json", "w")):  # before any training
        with pytest.raises(InvalidArgumentError, match=rf"--output '.*{name}' .*such as {usual}\.txt$"):
            check_taken(tmp_path / name, "request", "--output")
    with pytest.raises(InvalidArgumentError, match="path=''"):
        write_vectors("", vectors)
    for folder in (tmp_path, "."):
        with pytest.raises(FileWriteError, match="a folder, not a file"):
            write_vectors(folder, vectors)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_binary_file_without_one_row(tmp_path: Path) -> None:
    with pytest.raises(VectorFileError, match="ends before one row of the 9000 numbers"):
        read_vectors(write(tmp_path, b"1 9000\na " + torch.randn(9).numpy().tobytes()))


def test_options_without_a_meaning_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, b"a 1 2\nb 3 4\n")
    with pytest.raises(InvalidArgumentError, match=r"table='x' was given, but .* has one table"):
        load_vectors(path, table="x")
    vectors = load_vectors(path)
    with pytest.raises(InvalidArgumentError, match=r"table='x' was given, but .* are vectors in memory"):
        load_vectors(vectors, table="x")
    pieces = load_vectors(vectors, family="wordpiece")
    assert (
        pieces.family == "wordpiece"
        and vectors.family == "words"
        and pieces.matrix.data_ptr() == vectors.matrix.data_ptr()
    )
    monkeypatch.chdir(tmp_path)
    path.rename("bert")
    assert load_vectors(Path("bert")).tokens == ["a", "b"]  # and not the model of that name


def test_values_beyond_float32_are_named() -> None:
    rows = torch.tensor([[1.0, 2.0], [1e39, 0.0], [-1e200, 0.0]], dtype=torch.float64)
    with pytest.raises(InvalidArgumentError, match=r"mine: values of 2 rows are beyond float32, .* of 'b': "):
        PretrainedVectors(["a", "b", "c"], rows, "mine")
    rows[1:] = torch.tensor([float("inf"), float("nan")])  # what is not finite is told where it is used
    assert PretrainedVectors(["a", "b", "c"], rows, "mine").matrix.dtype == torch.float32
    kept = torch.ones(1, 2)
    assert PretrainedVectors(["a"], kept, "mine").matrix.data_ptr() == kept.data_ptr()
