"""Rows that other packages gave for the same inputs; `make_parity.py` says which, and how."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from builders.retokenizing import context_of, parity_tokenizers
from builders.tiny_tokenizers import tokenizer

from hf_embinit.retokenize import Coefficients, Step
from hf_embinit.retokenize.from_parallel import with_overlap
from hf_embinit.retokenize.from_vectors import focus, ofa, wechsel
from hf_embinit.retokenize.methods import fvt
from hf_embinit.retokenize.similarity import softmax_weights, sparsemax_weights
from hf_embinit.vectors import PretrainedVectors

DATA = Path(__file__).parent / "data"
MADE = {**np.load(DATA / "packages.npz"), **np.load(DATA / "figures.npz")}
NEW, OLD = parity_tokenizers()
TABLE = torch.from_numpy(MADE["table"])


def vectors(name: str, report: dict | None = None) -> PretrainedVectors:
    matrix = torch.from_numpy(MADE[f"{name}_vectors"]).float()
    return PretrainedVectors(MADE[f"{name}_words"].tolist(), matrix, name, report=report or {})


def test_deepfocus_gives_the_same_rows() -> None:
    """All but drawn ones, and special tokens, which have their roles here."""
    made = focus(context_of(NEW, OLD, TABLE, vectors=vectors("focus")))
    rows, known = made.apply(TABLE), made.step != Step.NONE
    assert int((made.step == Step.METHOD).sum()) > 30 and int((made.step == Step.OVERLAP).sum()) > 100
    torch.testing.assert_close(rows[known], torch.from_numpy(MADE["focus_rows"])[known], atol=1e-5, rtol=1e-5)
    left = [i for i in (~known).nonzero().flatten().tolist() if i > 3]
    found = {NEW.convert_ids_to_tokens(i) for i in left}
    assert not found & set(MADE["focus_words"].tolist())


def test_wechsel_gives_the_same_rows() -> None:
    """All but special tokens, which neither of the fastText models has."""
    fasttext = {"format": "fasttext"}  # as read from a `.bin`: a token has the vector of its text alone
    given = (vectors("wechsel_old", fasttext), vectors("wechsel_new", fasttext))
    pairs = [(f"a{i}", f"b{i}") for i in range(40)]
    new, old = parity_tokenizers(pieces=False)
    table = TABLE[: len(old)]
    made = wechsel(context_of(new, old, table, vectors=given, dictionary=pairs))
    known = made.step == Step.METHOD
    assert int(known.sum()) > 80
    torch.testing.assert_close(
        made.apply(table)[known], torch.from_numpy(MADE["wechsel_rows"])[known].float(), atol=1e-5, rtol=1e-5
    )


def test_ofa_gives_the_same_rows() -> None:
    """All but drawn ones and special tokens, which its code finds by spelling, and id 0 not at all."""
    made = ofa(context_of(NEW, OLD, TABLE, vectors=vectors("ofa")))
    known = made.step != Step.NONE
    known[:4] = False
    assert int((made.step == Step.METHOD).sum()) > 30 and int((made.step == Step.OVERLAP).sum()) > 100
    torch.testing.assert_close(
        made.apply(TABLE)[known], torch.from_numpy(MADE["ofa_rows"])[known].float(), atol=1e-5, rtol=1e-5
    )
    assert (~known).nonzero().flatten().tolist() == sorted({*range(4), *MADE["ofa_drawn"].tolist()})


def test_langsfer_gives_the_same_weights() -> None:
    queries, anchors = torch.from_numpy(MADE["queries"]), torch.from_numpy(MADE["anchors"])
    for name, entries in (
        ("softmax", softmax_weights(queries, anchors, neighbors=10, temperature=0.1)),
        ("sparsemax", sparsemax_weights(queries, anchors)),
    ):
        rows, columns, values = entries
        made = torch.zeros(len(queries), len(anchors), dtype=torch.float64)
        made[rows, columns] = values.double()
        torch.testing.assert_close(made, torch.from_numpy(MADE[f"langsfer_{name}"]), atol=1e-5, rtol=1e-5)


def test_trans_tokenizers_gives_the_same_weights() -> None:
    """Counts over their sum, with one more for the same token in the old vocabulary."""
    new, old = tokenizer("sentencepiece_bpe"), tokenizer("unigram")
    context = context_of(new, old)
    counted = (torch.from_numpy(MADE[name]) for name in ("counted_new", "counted_old", "counts"))
    made = with_overlap(context, Coefficients.from_coo(*counted, context.shape)).normalised()
    expected = np.zeros(made.shape)
    expected[tuple(MADE["weights_at"])] = MADE["weights"]
    for i in sorted(set(MADE["counted_new"].tolist())):
        row = np.zeros(made.shape[1])
        for weight in made.row(i):
            row[weight.id] = weight.value
        np.testing.assert_allclose(row, expected[i], atol=1e-6)
    assert len(set(MADE["counted_new"].tolist())) == 40 and len(MADE["weights"]) > len(MADE["counts"])


def test_tokenizer_adapter_gives_the_same_rows() -> None:
    """Of what starts a word: the package splits a continuation as if it started one, as FVT's code does."""
    recipe = fvt(context_of(NEW, OLD, TABLE))
    rows, theirs = recipe.input.apply(TABLE), torch.from_numpy(MADE["adapter_rows"])
    starts = [i for i in range(4, len(NEW)) if not NEW.convert_ids_to_tokens(i).startswith("##")]
    torch.testing.assert_close(rows[starts], theirs[starts], atol=1e-6, rtol=1e-6)
    others = [i for i in range(4, len(NEW)) if i not in starts and recipe.input.step[i] == Step.PIECES]
    assert others and not torch.allclose(rows[others], theirs[others], atol=1e-3)


@pytest.mark.parametrize("name", ["packages.npz", "figures.npz", "mergekit.npz", "nltk_model1.json"])
def test_data_is_small(name: str) -> None:
    assert (DATA / name).stat().st_size < 40_000
