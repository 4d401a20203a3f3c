"""Makes `data/`: what other packages give for inputs of ours. Not run by the tests, which compare only.

    PYTHONPATH=.:tests python tests/retokenize/make_parity.py

Made with torch 2.13.0, transformers 5.23.0, numpy 2.4.6 and nltk 3.10.4, mergekit 0.1.5, deepfocus 1.0.1,
wechsel 0.0.4, trans-tokenizers 0.1.4, tokenizer-adapter 0.2.0, fasttext-wheel 0.9.2, langsfer 0.1.0 and
gensim 4.4.0 (each installed without the versions that it asks for). OFA is no package: `OFA_CODE` is the
folder `ofa` of github.com/cisnlp/ofa at 73fce73. It has no licence, and langsfer's is LGPL: of both only
figures are kept.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from builders.retokenizing import parity_tokenizers
from builders.tiny_tokenizers import tokenizer

DATA = Path(__file__).parent / "data"


def nltk_model1() -> None:
    """Expected counts under nltk's IBM model 1, after five steps.

    No sentence has a word twice: nltk adds up the probabilities of both and divides each by the sum."""
    from nltk.translate import AlignedSent, IBMModel1

    draw = np.random.default_rng(3)
    num_old, num_new, iterations = 8, 9, 5
    old = [draw.integers(0, num_old, draw.integers(1, 6)).tolist() for _ in range(40)]
    new = [draw.permutation(num_new)[: draw.integers(1, 6)].tolist() for _ in range(40)]
    text = [AlignedSent([f"f{i}" for i in n], [f"e{i}" for i in o]) for o, n in zip(old, new, strict=True)]
    table = IBMModel1(text, iterations).translation_table
    counts = np.zeros((num_new, num_old))
    for o, n in zip(old, new, strict=True):
        for j in n:
            given = [table[f"f{j}"][f"e{i}"] for i in o]
            total = sum(given) + table[f"f{j}"][None]
            for i, p in zip(o, given, strict=True):
                counts[j, i] += p / total
    made = {"old": old, "new": new, "num_old": num_old, "num_new": num_new, "iterations": iterations}
    (DATA / "nltk_model1.json").write_text(json.dumps({**made, "counts": counts.round(9).tolist()}) + "\n")


def mergekit() -> None:
    """Supports and coefficients of its pursuit, weights of its interpolation."""
    from mergekit.tokensurgeon.common_interpolation import WeightingScheme, common_interp_approximate
    from mergekit.tokensurgeon.omp import batch_omp

    draw = torch.Generator().manual_seed(0)
    points, targets = torch.randn(40, 20, generator=draw), torch.randn(6, 20, generator=draw)
    made = {"points": points, "targets": targets}
    for k in (4, 8):
        made[f"omp_ids_{k}"], made[f"omp_values_{k}"] = batch_omp(targets, points, k)
    schemes = {
        "inverse_distance": WeightingScheme.DISTANCE_PROPORTIONAL,
        "barycentric": WeightingScheme.BARYCENTRIC,
        "least_squares": WeightingScheme.LEAST_SQUARES,
    }
    for name, scheme in schemes.items():
        made["nearest"], made[name] = common_interp_approximate(targets, points, 6, weight_scheme=scheme)
    np.savez_compressed(DATA / "mergekit.npz", **{name: x.numpy() for name, x in made.items()})


def fasttext_model(words: list[str], path: Path, seed: int) -> tuple[list[str], np.ndarray]:
    """A small fastText model of words without n-grams, saved; its words and their vectors."""
    import fasttext

    draw = np.random.default_rng(seed)
    lines = [" ".join(draw.choice(words, 8)) for _ in range(400)]
    text = path.with_suffix(".txt")
    text.write_text("\n".join(lines))
    model = fasttext.train_unsupervised(
        str(text), dim=6, minn=0, maxn=0, minCount=1, bucket=0, thread=1, epoch=3, verbose=0
    )
    model.save_model(str(path))
    return model.words, np.stack([model.get_word_vector(word) for word in model.words])


def deepfocus(folder: Path, table: torch.Tensor) -> dict[str, np.ndarray]:
    """FOCUS on the vectors of new tokens, some of which have none."""
    from deepfocus import FOCUS

    new, old = parity_tokenizers()
    said = sorted(set(new.get_vocab()) - set(new.all_special_tokens))[10:]  # a text has no special tokens
    words, vectors = fasttext_model(said, folder / "focus.bin", 0)
    rows = FOCUS(new, old, table, fasttext_model_path=str(folder / "focus.bin"), verbosity="silent")
    return {"focus_words": np.array(words), "focus_vectors": vectors, "focus_rows": rows.numpy()}


def wechsel(folder: Path, table: torch.Tensor) -> dict[str, np.ndarray]:
    """WECHSEL on fastText models of both languages and a dictionary, its orthogonal map in double precision:
    in single precision as it stands rows differ by 4e-5."""
    import fasttext
    import wechsel as package
    from scipy.linalg import orthogonal_procrustes
    from wechsel import WECHSEL

    package.orthogonal_procrustes = lambda a, b: orthogonal_procrustes(a.astype(float), b.astype(float))

    new, old = parity_tokenizers(pieces=False)  # a piece such as `##ab` is looked up with its mark
    made: dict[str, np.ndarray] = {}
    models = []
    for number, (name, one) in enumerate((("old", old), ("new", new))):
        words = sorted({one.decode([i]).strip() for i in range(4, len(one))})
        path = folder / f"{name}.bin"
        made[f"wechsel_{name}_words"], made[f"wechsel_{name}_vectors"] = fasttext_model(
            words, path, number + 1
        )
        models.append(fasttext.load_model(str(path)))
    pairs = [(f"a{i}", f"b{i}") for i in range(40)]
    (folder / "dictionary.txt").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    worker = WECHSEL(*models, bilingual_dictionary=str(folder / "dictionary.txt"))
    rows, _ = worker.apply(old, new, table[: len(old)].numpy())
    return {**made, "wechsel_rows": rows}


def ofa(table: torch.Tensor) -> dict[str, np.ndarray]:
    """OFA with the table whole, on vectors of words that both tokenizers split."""
    from gensim.models import KeyedVectors

    sys.path.insert(0, os.environ["OFA_CODE"])
    from utils import (  # type: ignore[import-not-found]
        WordEmbedding,
        create_target_embeddings,
        get_overlapping_tokens,
        get_subword_embeddings_in_word_embedding_space,
    )

    new, old = parity_tokenizers()
    draw = np.random.default_rng(6)
    inside = [f"{a}{b}" for a in "cdefghijklm" for b in "abcdefghijk"]
    words = [f"{c}{''.join(draw.choice(inside, 2))}" for c in draw.choice(list("abc"), 150)]
    words = list(dict.fromkeys([*words, *(f"a{i}" for i in range(60)), *(f"b{i}" for i in range(40)), "cab"]))
    matrix = draw.standard_normal((len(words), 6)).astype(np.float32)
    vectors = KeyedVectors(6)
    vectors.add_vectors(words, matrix)
    spaces = [
        get_subword_embeddings_in_word_embedding_space(one, WordEmbedding(vectors), multilingual=False)[0]
        for one in (old, new)
    ]
    overlap = get_overlapping_tokens(new, old)
    rows = np.zeros((len(new), table.shape[1]))
    for target, source in overlap.values():
        rows[target] = table[source]
    shared = {token: target for token, (target, _) in overlap.items()}
    other = {token: i for token, i in new.get_vocab().items() if token not in shared}
    made, drawn, _ = create_target_embeddings(*spaces, old, new, table.double().numpy(), rows, shared, other)
    return {
        "ofa_words": np.array(words),
        "ofa_vectors": matrix,
        "ofa_rows": made,
        "ofa_drawn": np.array(sorted(drawn)),
    }


def langsfer() -> dict[str, np.ndarray]:
    """Its weights of the cosines of given vectors: softmax of the ten largest, and sparsemax."""
    from langsfer.similarity import CosineSimilarity
    from langsfer.weights import SoftmaxWeights, SparsemaxWeights, TopKWeights

    draw = np.random.default_rng(8)
    queries, anchors = draw.standard_normal((12, 5)), draw.standard_normal((40, 5))
    cosines = CosineSimilarity().apply(queries, anchors)
    return {
        "queries": queries,
        "anchors": anchors,
        "langsfer_softmax": SoftmaxWeights(temperature=0.1).apply(TopKWeights(k=10).apply(cosines)),
        "langsfer_sparsemax": SparsemaxWeights().apply(cosines),
    }


def trans_tokenizers(folder: Path) -> dict[str, np.ndarray]:
    """The weights that counts of aligned tokens become, for words of one token. Both tokenizers mark where a
    word starts: without a mark in either `map_tokens` ends in an `UnboundLocalError`."""
    from transtokenizers import map_tokens

    new, old = tokenizer("sentencepiece_bpe"), tokenizer("unigram")
    names = [t.convert_ids_to_tokens(list(range(len(t)))) for t in (new, old)]
    starts = [[i for i, t in enumerate(n) if t[0] == "▁" and t[1:].isalpha()] for n in names]
    draw = np.random.default_rng(4)
    counts = np.zeros((len(new), len(old)), dtype=np.int64)
    lines = []
    for i in starts[0][:40]:
        for j in draw.choice(starts[1], 3, replace=False):
            counts[i, j] = draw.integers(10, 50)
            lines.append(f"{names[1][j]}\t{names[0][i]}\t-1.0\t{counts[i, j]}")
    (folder / "counts.tsv").write_text("\n".join(lines) + "\n")
    new.save_pretrained(folder / "to")
    old.save_pretrained(folder / "from")
    mapping, _ = map_tokens(str(folder / "counts.tsv"), str(folder / "from"), str(folder / "to"))
    weights = np.zeros(counts.shape, dtype=np.float32)
    for i in starts[0][:40]:
        found = mapping[names[0][i]]
        for other, count in found.items():
            weights[i, old.get_vocab()[other]] = count / sum(found.values())
    entries = np.nonzero(counts)
    return {
        "counted_new": entries[0],
        "counted_old": entries[1],
        "counts": counts[entries],
        "weights_at": np.stack(np.nonzero(weights)),
        "weights": weights[np.nonzero(weights)],
    }


def adapter(table: torch.Tensor) -> dict[str, np.ndarray]:
    """The rows that tokenizer-adapter's `average` gives."""
    from tokenizer_adapter import TokenizerAdapter

    new, old = parity_tokenizers()
    worker = TokenizerAdapter()
    pairs = worker.prepare_correspondance_dict(new, old)
    return {"adapter_rows": worker.process_single_tensor(table, pairs).numpy()}


def main() -> None:
    """All of them."""
    DATA.mkdir(exist_ok=True)
    nltk_model1()
    mergekit()
    _, old = parity_tokenizers()
    table = torch.randn(len(old), 4, generator=torch.Generator().manual_seed(7))
    made = {"table": table.numpy(), **adapter(table)}
    with tempfile.TemporaryDirectory() as folder:
        made |= deepfocus(Path(folder), table)
        made |= wechsel(Path(folder), table)
        made |= trans_tokenizers(Path(folder))
    np.savez_compressed(DATA / "packages.npz", **made)
    np.savez_compressed(DATA / "figures.npz", **ofa(table), **langsfer())


if __name__ == "__main__":
    main()
