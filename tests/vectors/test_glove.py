"""The GloVe trainer: counts, loss and gradients, convergence, what it refuses, and analogies on real text."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.vectors import glove, read_vectors, write_vectors
from hf_embinit.vectors.glove import count_cooccurrences, fit_glove, train_glove

SENTENCES = [
    ["the", "cat", "sees", "the", "dog"],
    ["the", "dog", "chases", "a", "cat", "in", "the", "garden"],
    ["a", "cat", "sleeps"],
    [],
    ["unique", "words", "here"],
    ["the", "dog", "sleeps", "in", "a", "garden"],
] * 3


def corpus(num_sentences: int, *, seed: int = 0) -> list[list[str]]:
    """Sentences in which words of ten topics keep together, with Zipf frequencies."""
    rng = np.random.default_rng(seed)
    sentences = []
    for _ in range(num_sentences):
        topic = int(rng.integers(10))
        words = np.minimum(rng.zipf(1.5, size=rng.integers(5, 20)), 40)
        sentences.append([f"t{topic}w{w}" if rng.random() < 0.7 else f"w{w}" for w in words])
    return sentences


def counted_by_loops(sentences, window, min_count, symmetric, weighted) -> dict[tuple[str, str], float]:
    frequency: dict[str, int] = defaultdict(int)
    for sentence in sentences:
        for word in sentence:
            frequency[word] += 1
    counts: dict[tuple[str, str], float] = defaultdict(float)
    for sentence in sentences:
        kept = [w for w in sentence if frequency[w] >= min_count]
        for i, word in enumerate(kept):
            for d in range(1, min(window, i) + 1):
                counts[word, kept[i - d]] += 1 / d if weighted else 1.0
                if symmetric:
                    counts[kept[i - d], word] += 1 / d if weighted else 1.0
    return dict(counts)


# --- counting


@pytest.mark.parametrize("window", [1, 3, 10])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("chunk", [7, 10**6])
def test_counts_are_those_of_a_plain_loop(window, symmetric, weighted, chunk, monkeypatch):
    monkeypatch.setattr(glove, "CHUNK_PAIRS", chunk)
    sentences = [*SENTENCES, ["rare", "cat"]]
    got = count_cooccurrences(
        sentences, window=window, min_count=2, symmetric=symmetric, distance_weighting=weighted
    )
    expected = counted_by_loops(sentences, window, 2, symmetric, weighted)
    pairs = {
        (got.words[r], got.words[c]): x for r, c, x in zip(got.rows, got.columns, got.counts, strict=True)
    }
    assert pairs == pytest.approx(expected)
    assert got.num_tokens == sum(map(len, sentences))
    assert got.num_sentences == len(sentences)
    assert "rare" not in got.words


def test_words_follow_frequency_then_spelling():
    words = count_cooccurrences([["b", "a", "c", "c", "a", "b", "b"], ["d", "b"]], min_count=1).words
    assert words == ["b", "a", "c", "d"]


def test_the_digest_is_that_of_the_corpus():
    first, again = count_cooccurrences(SENTENCES), count_cooccurrences(iter(SENTENCES))
    other = count_cooccurrences([*SENTENCES, ["cat", "dog"]])
    assert first.digest == again.digest != other.digest


# --- loss and gradients


def one_batch(num_sentences: int = 60):
    counts = count_cooccurrences(corpus(num_sentences), window=5)
    generator = torch.Generator().manual_seed(1)
    words, contexts = glove._initial_tables(len(counts.words), 6, generator, "cpu")
    (batch, *_) = glove._make_batches(counts, 5.0, 0.75, 10**9, generator, "cpu")
    return counts, words[batch.words] * 3, contexts[batch.contexts] * 3, batch


@pytest.mark.filterwarnings("ignore:Sparse (CSR tensor support|invariant checks)")
def test_loss_and_gradients_agree_with_the_formula_and_autograd():
    counts, word, context, batch = one_batch()
    word[:, -1] = context[:, -2] = 1.0
    loss, word_grad, context_grad = glove._loss_and_gradients(word, context, batch)

    dense = torch.zeros(len(counts.words), len(counts.words))
    dense[counts.rows, counts.columns] = torch.from_numpy(counts.counts)
    mask = batch.matrix(torch.ones(len(batch.weights))).to_dense()
    x = torch.where(mask > 0, dense[batch.words][:, batch.contexts], torch.ones(()))
    w, b = word[:, :6].clone().requires_grad_(), word[:, 6].clone().requires_grad_()
    c, d = context[:, :6].clone().requires_grad_(), context[:, 7].clone().requires_grad_()
    weight = (x / 5.0).pow(0.75).clamp(max=1.0) * mask
    expected = 0.5 * (weight * (w @ c.T + b[:, None] + d - x.log()) ** 2).sum()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(word_grad[:, :6], w.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(word_grad[:, 6], b.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(context_grad[:, :6], c.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(context_grad[:, 7], d.grad, atol=1e-5, rtol=1e-4)
    assert not word_grad[:, 7].any() and not context_grad[:, 6].any()


@pytest.mark.filterwarnings("ignore:Sparse (CSR tensor support|invariant checks)")
def test_batches_hold_every_pair_once():
    counts = count_cooccurrences(corpus(100), window=4)
    batches = glove._make_batches(counts, 5.0, 0.75, 300, torch.Generator().manual_seed(0), "cpu")
    assert len(batches) == max(math.ceil(len(counts) / 300), glove.MIN_BATCHES)
    seen = {}
    for batch in batches:
        matrix = batch.matrix(batch.log_counts)
        torch.testing.assert_close(
            batch.transposed_matrix(batch.log_counts).to_dense(), matrix.to_dense().T, rtol=0, atol=0
        )
        rows = torch.repeat_interleave(batch.words, matrix.crow_indices().diff().long())
        columns = batch.contexts[batch.columns.long()]
        for r, c, x in zip(rows.tolist(), columns.tolist(), batch.log_counts.exp().tolist(), strict=True):
            assert (r, c) not in seen
            seen[r, c] = x
    assert seen == pytest.approx(
        {
            (r, c): x
            for r, c, x in zip(counts.rows.tolist(), counts.columns.tolist(), counts.counts, strict=True)
        },
        rel=1e-5,
    )


# --- convergence


def loss_of_pairwise_descent(counts, *, dim: int, epochs: int, x_max: float) -> float:
    """Mean loss of the last epoch when pairs are taken one at a time, as the authors' program does."""
    rng = np.random.default_rng(0)
    v = len(counts.words)
    tables = [(rng.random((v, dim + 1)) - 0.5) / (dim + 1) for _ in range(2)]
    squares = [np.ones((v, dim + 1)) for _ in range(2)]
    weights = np.minimum((counts.counts / x_max) ** 0.75, 1.0)
    logs = np.log(counts.counts)
    total = 0.0
    for _ in range(epochs):
        total = 0.0
        for p in rng.permutation(len(counts)):
            i, j = counts.rows[p], counts.columns[p]
            w, c = tables[0][i], tables[1][j]
            residual = w[:-1] @ c[:-1] + w[-1] + c[-1] - logs[p]
            total += 0.5 * weights[p] * residual**2
            step = 0.05 * weights[p] * residual
            word_step, context_step = step * np.append(c[:-1], 1.0), step * np.append(w[:-1], 1.0)
            w -= word_step / np.sqrt(squares[0][i])
            c -= context_step / np.sqrt(squares[1][j])
            squares[0][i] += word_step**2
            squares[1][j] += context_step**2
    return total / len(counts)


def test_batches_converge_as_pair_by_pair_descent_does():
    counts = count_cooccurrences(corpus(250), window=5)
    expected = loss_of_pairwise_descent(counts, dim=20, epochs=8, x_max=10.0)
    vectors = fit_glove(counts, dim=20, epochs=8, x_max=10.0, progress=False)
    assert vectors.report["final_loss"] == pytest.approx(expected, rel=0.05)


def test_words_of_a_topic_end_up_together():
    vectors = train_glove(corpus(1500), dim=16, x_max=10.0, epochs=40, progress=False)
    losses = vectors.report["losses"]
    assert losses[-1] < 0.3 * losses[0]
    unit = torch.nn.functional.normalize(vectors.matrix, dim=1)
    topics = [f"t{t}w{w}" for t in range(10) for w in (1, 2, 3)]
    similarity = unit[[vectors.tokens.index(t) for t in topics]]
    similarity = similarity @ similarity.T
    same = torch.block_diag(*[torch.ones(3, 3)] * 10).bool()
    assert similarity[same & ~torch.eye(30, dtype=torch.bool)].mean() > similarity[~same].mean() + 0.3


def test_report_and_shape():
    vectors = train_glove(SENTENCES, dim=5, epochs=2, min_count=3, seed=4, progress=False, name="mine")
    assert vectors.matrix.shape == (len(vectors.tokens), 5)
    assert vectors.matrix.dtype == torch.float32
    assert (vectors.name, vectors.family) == ("mine", "words")
    assert vectors.report["corpus_tokens"] == sum(map(len, SENTENCES))
    assert vectors.report["final_loss"] == vectors.report["losses"][-1]
    assert vectors.provenance["computed_with"]["threads"] == torch.get_num_threads()
    settings = vectors.report["settings"]
    assert settings["min_count"] == 3 and settings["seed"] == 4 and settings["window"] == 10
    assert vectors.report["pairs"] == len(count_cooccurrences(SENTENCES, min_count=3))
    json.dumps(vectors.report)


def test_the_seed_decides_and_the_global_generator_is_left_alone():
    torch.manual_seed(7)
    state = torch.get_rng_state()
    a, b, c = (train_glove(SENTENCES, dim=4, epochs=3, seed=s, progress=False) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(a.matrix, b.matrix) and a.digest == b.digest
    assert not torch.equal(a.matrix, c.matrix) and a.digest != c.digest


def test_written_vectors_read_back(tmp_path):
    vectors = train_glove(SENTENCES, dim=4, epochs=2, progress=False)
    write_vectors(tmp_path / "v.txt", vectors)
    again = read_vectors(tmp_path / "v.txt")
    assert again.tokens == vectors.tokens
    assert torch.equal(again.matrix, vectors.matrix)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_vectors():
    counts = count_cooccurrences(corpus(300))
    a, b = (fit_glove(counts, dim=16, epochs=5, device=d, progress=False) for d in ("cpu", "cuda"))
    torch.testing.assert_close(a.matrix, b.matrix, atol=1e-3, rtol=1e-2)


# --- refusals


@pytest.mark.parametrize(
    "settings",
    [{"dim": 0}, {"epochs": 0}, {"batch_size": 0}, {"window": 0}, {"min_count": 0}, {"x_max": 0.0},
     {"alpha": -1.0}, {"learning_rate": math.nan}],
)  # fmt: skip
def test_settings_that_cannot_work_are_named(settings):
    (name,) = settings
    with pytest.raises(InvalidArgumentError, match=name):
        train_glove(SENTENCES, progress=False, **settings)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([], "have no words"),
        ([[], []], "have no words"),
        ([["once"]], "min_count"),
        (iter([[1, 2]]), "sentences has 1"),
        (iter([None]), "sentences has None"),
        ([["alone"], ["alone"]], "one sentence"),
        (["a text, not a list of words"], "list of words"),
    ],
)
def test_a_corpus_without_pairs_is_refused(sentences, message):
    with pytest.raises(InvalidArgumentError, match=message):
        train_glove(sentences, progress=False)


# --- real text


@pytest.mark.data
def test_vectors_of_real_text_answer_analogies_and_spread_widely():
    """2.5 million English tokens, 50 dimensions, 8 epochs."""
    folder = os.environ.get("HF_EMBINIT_DATA")
    if not folder:
        pytest.skip("HF_EMBINIT_DATA is not set")
    data = Path(folder)
    texts = dict.fromkeys(
        json.loads(line)["translation"]["en"]
        for line in (data / "tatoeba/train.jsonl").open(encoding="utf-8")
    )
    lines = [json.loads(line)["text"] for line in (data / "wikitext-2-v1/train.jsonl").open(encoding="utf-8")]
    sentences = [t.lower().replace(".", " .").replace(",", " ,").split() for t in [*texts, *lines]]
    vectors = train_glove(sentences, dim=50, min_count=20, x_max=10.0, epochs=8, progress=False)

    index = {token: i for i, token in enumerate(vectors.tokens)}
    questions = torch.tensor(
        [
            [index[w] for w in words]
            for line in (data / "analogies/questions-words.txt").open(encoding="utf-8")
            if len(words := line.lower().split()) == 4 and all(w in index for w in words)
        ]
    )
    unit = torch.nn.functional.normalize(vectors.matrix, dim=1)
    right = 0
    for a, b, c, answer in (q.T for q in questions.split(1000)):
        scores = (unit[b] - unit[a] + unit[c]) @ unit.T
        scores.scatter_(1, torch.stack([a, b, c], 1), -math.inf)
        right += int((scores.argmax(1) == answer).sum())
    assert len(questions) > 1000
    assert right / len(questions) > 100 / len(vectors)
    assert vectors.matrix.std() > 0.15
    assert vectors.matrix.abs().max() > 1.0
