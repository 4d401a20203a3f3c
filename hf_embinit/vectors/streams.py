"""Blocks of bytes from a vector file: plain, `.gz`, or a member of a `.zip`, never unpacked to disk."""

from __future__ import annotations

import queue
import threading
import zipfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import DataNotFoundError, InvalidArgumentError, VectorFileError
from ..foreign import reading

BLOCK = 1 << 18
"""Bytes in a block: large enough to make Python's overhead small, small enough for a core's cache."""
_COMPRESSED_CHUNK = 1 << 16
_BLOCKS_AHEAD = 4
_NOT_VECTORS = (".md", ".pdf", ".html", ".json", ".license", ".py", ".sh", ".log")


_NUMPY = b"\x93NUMPY"
_PICKLE = "a pickle: gensim's vectors are saved for others by kv.save_word2vec_format('vectors.txt')"
_OTHER_FORMATS = (
    (b"GGUF", "a GGUF file: load_vectors reads it (unpacked)"),
    (_NUMPY, "an array of NumPy: give PretrainedVectors(tokens, torch.from_numpy(array), name)"),
    *((b"\x80%c" % version, _PICKLE) for version in range(2, 6)),
    (b"\x1f\x8b", "packed by gzip inside: unpack it first (gunzip)"),
    (b"PK\x03\x04", "packed by zip inside: unpack it first (unzip)"),
    (b"\xfd7zXZ\0", "packed by xz: unpack it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd: unpack it first (unzstd)"),
    (b"7z\xbc\xaf\x27\x1c", "packed by 7-Zip: unpack it first"),
    (b"version https://git-lfs", "what Git LFS left in its place: fetch the file itself (git lfs pull)"),
)
"""How files of other formats begin, and what to do with them."""
_LONGEST_SAFETENSORS_HEADER = 100_000_000


def require_rows(start: bytes, where: str) -> None:
    """Raises `VectorFileError`, with the way out, for the start of a file that is known to hold no rows."""
    for magic, what in _OTHER_FORMATS:
        if start.startswith(magic):
            raise VectorFileError(f"{where} is {what}.")
    if start[8:10] == b'{"' and int.from_bytes(start[:8], "little") < _LONGEST_SAFETENSORS_HEADER:
        raise VectorFileError(f"{where} is a safetensors file: give the folder of its model.")
    if start.startswith(b"BZh") and start[4:10] == b"1AY&SY":
        raise VectorFileError(f"{where} is packed by bzip2: unpack it first (bunzip2).")
    if start[257:262] == b"ustar":
        raise VectorFileError(f"{where} is a tar archive: unpack it first (tar xf).")


def split_member(path: str | Path) -> tuple[Path, str | None]:
    """`archive.zip:member` as `(archive.zip, member)`; any other path as `(path, None)`."""
    text = str(path)
    if not Path(text).exists():
        for colon in (i for i, c in enumerate(text) if c == ":"):
            if is_zip(Path(text[:colon])) or text[:colon].lower().endswith(".zip"):
                return Path(text[:colon]), text[colon + 1 :]
    return Path(text), None


def choose_member(path: Path, member: str | None = None) -> str:
    """The name of the zip member that holds the vectors: `member`, or the only candidate.

    Raises `InvalidArgumentError` that lists the members when the choice is not clear."""
    with _open_zip(path) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
    if member is not None:
        if member not in names:
            raise InvalidArgumentError(f"{path} has no member {member!r}. Its members: {', '.join(names)}.")
        return member
    if any(name.rsplit("/", 1)[-1] == "data.pkl" for name in names):
        raise VectorFileError(
            f"{path} is a file of PyTorch: give PretrainedVectors(tokens, matrix, name) of what it holds."
        )
    if names and all(name.endswith(".npy") for name in names):
        raise VectorFileError(f"{path} is {dict(_OTHER_FORMATS)[_NUMPY]}.")
    candidates = [name for name in names if _may_be_vectors(name)]
    if len(candidates) != 1:
        what = "several members that may hold vectors" if candidates else "no member that looks like vectors"
        example = (candidates or names or ["member.txt"])[0]
        raise InvalidArgumentError(
            f"{path} has {what}: {', '.join(candidates or names) or 'it is empty'}. "
            f"Name one: {str(path) + ':' + example!r}."
        )
    return candidates[0]


def read_blocks(path: Path, member: str | None = None) -> Generator[bytes]:
    """The bytes of a plain or `.gz` file, or of a zip member, in blocks of about `BLOCK` bytes.

    Close the generator when done. Raises `VectorFileError` for a damaged archive. Compressed data is inflated
    in a thread, a few blocks ahead: zlib releases the interpreter lock, so parsing does not wait.
    """
    if not path.is_file():
        what = "is a folder, not a file of vectors" if path.is_dir() else "does not exist"
        raise DataNotFoundError(f"The vector file {str(path)!r} {what}.")
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic[:4] == b"PK\x03\x04":
        yield from _zip_blocks(path, choose_member(path, member))
    elif member is not None:
        raise InvalidArgumentError(f"member={member!r} was given, but {str(path)!r} is not a zip archive.")
    elif magic[:2] == b"\x1f\x8b":
        yield from _ahead(_gzip_blocks(path))
    else:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(BLOCK):
                yield block


def is_zip(path: Path) -> bool:
    """Whether the file starts as a zip archive does."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _may_be_vectors(name: str) -> bool:
    base = name.rsplit("/", 1)[-1].lower()
    hidden = name.startswith("__MACOSX/") or base.startswith(".")
    return not hidden and not base.startswith(("readme", "license")) and not base.endswith(_NOT_VECTORS)


def _open_zip(path: Path) -> zipfile.ZipFile:
    with reading(f"the zip archive {path}"):
        return zipfile.ZipFile(path)


def _zip_blocks(path: Path, member: str) -> Generator[bytes]:
    with _open_zip(path) as archive:
        info = archive.getinfo(member)
        name = f"{path}:{member}"
        if info.flag_bits & 1:
            raise VectorFileError(f"{name} is encrypted.")
        if info.compress_type == zipfile.ZIP_DEFLATED:
            source = _deflate_blocks(path, info, name)
        else:
            source = _other_blocks(archive, info, name)
        # The checksum is taken here, beside the thread that inflates, and not in it.
        checksum = 0
        for block in _ahead(source):
            checksum = zlib.crc32(block, checksum)
            yield block
        if checksum != info.CRC:
            raise VectorFileError(f"{name} is damaged: its checksum does not match.")


def _deflate_blocks(path: Path, info: zipfile.ZipInfo, name: str) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        file.seek(info.header_offset)
        header = file.read(30)
        file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)
        yield from _inflate(file, info.compress_size, -zlib.MAX_WBITS, name)


def _gzip_blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        yield from _inflate(file, path.stat().st_size, 16 + zlib.MAX_WBITS, str(path))


def _inflate(file: BinaryIO, left: int, wbits: int, name: str) -> Iterator[bytes]:
    """Inflates the next `left` bytes of `file`; a `.gz` file may hold several streams, zeros between them."""
    inflate = zlib.decompressobj(wbits)
    data = b""
    try:
        while True:
            if not data:
                data = file.read(min(_COMPRESSED_CHUNK, left))
                left -= len(data)
            if block := inflate.decompress(data, 4 * BLOCK):
                yield block
            if not inflate.eof:
                if not data and not block:
                    raise VectorFileError(f"{name} ends early: it is damaged, or its download was cut off.")
                data = inflate.unconsumed_tail
                continue
            data = inflate.unused_data.lstrip(b"\0")
            while wbits > 0 and not data and (chunk := file.read(_COMPRESSED_CHUNK)):
                data = chunk.lstrip(b"\0")
            if not data:
                return
            inflate = zlib.decompressobj(wbits)
    except zlib.error as error:
        raise VectorFileError(f"{name} is damaged: {error}.") from error


def _other_blocks(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Iterator[bytes]:
    with reading(name), archive.open(info) as file:
        while block := file.read(BLOCK):
            yield block


def _ahead(source: Iterator[bytes]) -> Generator[bytes]:
    """The same blocks, made in a thread that stays a few blocks ahead; its exceptions are raised here."""
    blocks: queue.Queue[bytes | BaseException | None] = queue.Queue(_BLOCKS_AHEAD)
    stopped = threading.Event()

    def put(item: bytes | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                blocks.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for block in source:
                if not put(block):
                    return
            put(None)
        except BaseException as error:  # handed to the reader
            put(error)

    thread = threading.Thread(target=work, name="hf_embinit-inflate", daemon=True)
    thread.start()
    try:
        while (item := blocks.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
