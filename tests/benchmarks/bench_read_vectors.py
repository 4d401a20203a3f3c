"""How long `read_vectors` takes for 8,000 of 400,000 words x 300, against `wc -l`, inflate and other readers.

    python tests/benchmarks/bench_read_vectors.py [--others]

Writes a file of about 1.1 GB and its zip to a temporary folder, so that it is cached, and measures everything
in turn, several times; the least time of each counts. Targets: 4 times `wc -l`; 1.15 times bare inflate of a
zip, which takes a second core; 50 MiB of memory beyond the rows kept. gensim and polars where installed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hf_embinit.vectors import read_vectors


def write_file(path: Path, rows: int, dim: int) -> None:
    """Text in GloVe's format; the numbers of a row are one of 2,000 draws, so that this takes seconds."""
    draws = (0.4 * np.random.default_rng(0).standard_normal((2000, dim))).astype(np.float32)
    bodies = [" ".join(f"{x:.6g}" for x in draw).encode() for draw in draws]
    choice = random.Random(0)
    with open(path, "wb") as file:
        for i in range(rows):
            file.write(b"word%d %s\n" % (i, choice.choice(bodies)))


def plain_loop(path: Path, wanted: set[str]) -> None:
    """What one would write by hand: parses only the rows that are wanted."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            word = line[: line.index(" ")]
            if word in wanted:
                found[word] = np.array(line.split(" ")[1:], dtype=np.float32)


def inflate(path: Path) -> None:
    """Decompresses the only member of a zip and throws it away."""
    with zipfile.ZipFile(path) as archive:
        info = archive.infolist()[0]
    with open(path, "rb", buffering=0) as file:
        file.seek(info.header_offset + 26)
        file.seek(sum(int.from_bytes(file.read(2), "little") for _ in range(2)), 1)
        decompress = zlib.decompressobj(-zlib.MAX_WBITS)
        left = info.compress_size
        while left:
            data = file.read(min(left, 1 << 18))
            left -= len(data)
            decompress.decompress(data)


MEMORY = """
import sys
from hf_embinit.vectors import read_vectors
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
words = sys.stdin.read().split()
open("/proc/self/clear_refs", "w").write("5")  # the peak starts from what is used now
before = peak()
vectors = read_vectors(sys.argv[1], words)
print((peak() - before) / 1024 - vectors.matrix.numel() * 4 / 2**20)
"""


def memory(path: Path, words: list[str]) -> float:
    """MiB beyond the rows kept, at the highest, in a process of its own (Linux)."""
    command = [sys.executable, "-c", MEMORY, str(path)]
    done = subprocess.run(command, input=" ".join(words), capture_output=True, text=True, check=True)
    return float(done.stdout)


def other_readers(path: Path) -> dict[str, Callable[[], object]]:
    readers: dict[str, Callable[[], object]] = {}
    try:
        from gensim.models import KeyedVectors

        readers["gensim load_word2vec_format"] = lambda: KeyedVectors.load_word2vec_format(
            str(path), no_header=True
        )
    except ImportError:
        pass
    try:
        import polars

        readers["polars read_csv"] = lambda: polars.read_csv(
            path, separator=" ", has_header=False, quote_char=None
        )
    except ImportError:
        pass
    return readers


def least(measured: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each, the least of `repeats` turns."""
    seconds = dict.fromkeys(measured, float("inf"))
    for _ in range(repeats):
        for name, fn in measured.items():
            start = time.perf_counter()
            fn()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000, help="words in the file")
    parser.add_argument("--dim", type=int, default=300, help="numbers a word")
    parser.add_argument("--wanted", type=int, default=8_000, help="words asked for")
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    parser.add_argument("--others", action="store_true", help="gensim and polars too (one turn, minutes)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, packed = Path(folder) / "vectors.txt", Path(folder) / "vectors.zip"
        write_file(path, arguments.rows, arguments.dim)
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, path.name)
        words = [f"word{i}" for i in random.Random(1).sample(range(arguments.rows), arguments.wanted)]
        wanted = set(words)
        print(f"{path.stat().st_size / 1e9:.2f} GB, {packed.stat().st_size / 1e9:.2f} GB zipped")
        seconds = least(
            {
                "wc -l": lambda: subprocess.run(["wc", "-l", path], stdout=subprocess.DEVNULL, check=True),
                "read_vectors": lambda: read_vectors(path, words),
                "plain loop": lambda: plain_loop(path, wanted),
            },
            arguments.repeats,
        )
        seconds |= least(
            {
                "inflate": lambda: inflate(packed),
                "read_vectors of a zip": lambda: read_vectors(packed, words),
            },
            max(1, arguments.repeats // 2),
        )
        if arguments.others:
            seconds |= least(other_readers(path), 1)
        for name, value in seconds.items():
            base = "inflate" if name == "read_vectors of a zip" else "wc -l"
            print(f"{name:30s} {value:8.3f} s   {value / seconds[base]:7.2f} x {base}")
        for file in (path, packed):
            print(f"memory beyond the rows kept, {file.suffix}: {memory(file, words):.0f} MiB")


if __name__ == "__main__":
    main()
