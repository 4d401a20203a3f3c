"""Methods for another tokenizer where new tokens are added beside the old ones."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.command_line import embinit, load, save_bert
from builders.tables import default_dtype
from builders.tiny_tokenizers import logits, model, texts, tokenizer

import hf_embinit
from hf_embinit.errors import InvalidArgumentError, VocabularyWarning
from hf_embinit.tables import EmbeddingTables
from hf_embinit.vectors import PretrainedVectors

WORDS = [" wondering", " lighthouses"]


def vectors(words: Any) -> PretrainedVectors:
    """Words of the vocabulary and the new ones, drawn."""
    names = [word.strip() for word in WORDS]
    names += [t.removeprefix("\u0120") for t in words.get_vocab() if t.startswith("\u0120") and len(t) > 1]
    draw = torch.Generator().manual_seed(0)
    return PretrainedVectors(names, torch.randn(len(names), 8, generator=draw), "words")


def table(words: Any) -> PretrainedVectors:
    """A row for each token of the vocabulary and the new ones, drawn: what a donor has."""
    names = [
        *sorted(words.get_vocab(), key=words.get_vocab().get),
        *(word.replace(" ", "\u0120") for word in WORDS),
    ]
    draw = torch.Generator().manual_seed(0)
    return PretrainedVectors(names, torch.randn(len(names), 16, generator=draw), "donor", family="byte_level")


def given(name: str, words: Any) -> dict[str, Any]:
    """What each method reads."""
    text = [one + " " + " ".join(word.strip() for word in WORDS) for one in texts()[:40]]
    donor = {"donor": table(words)}
    pairs = [(f"we were{word} there", f"we were{word} there") for word in WORDS] * 5
    return {
        "align": {"texts": text}, "tokalign": {"texts": text * 3, "dim": 8, "min_count": 2},
        "focus": {"vectors": vectors(words)}, "wechsel": {"vectors": vectors(words)},
        "ofa": {"vectors": vectors(words)}, "ramen": {"parallel": pairs},
        "trans_tokenizer": {"parallel": pairs}, "clp": {**donor, "neighbors": 5}, "clp_plus": donor,
        "omp": {**donor, "k": 4}, "common_interpolation": {**donor, "k": 4},
        "token_adapt": {"vectors": vectors(words)},
    }.get(name, {})  # fmt: skip


@pytest.mark.parametrize("name", [r.name for r in hf_embinit.list_initializers(purpose="tokenizer")])
def test_every_method_makes_rows_of_added_tokens_and_moves_nothing_else(name: str) -> None:
    m, words = model("llama", 320), tokenizer("byte_level")
    tables, size, ids = EmbeddingTables(m), len(words), torch.tensor([[5, 6, 7]])
    m.eval()
    before = {t.name: tables.read(t).clone() for t in tables.own_tables}
    said, state = logits(m, ids), torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VocabularyWarning)
        report = hf_embinit.expand_vocabulary(
            m, words, WORDS, name, prefixes=(), **given(name, words) | ({"seed": 3})
        )
    assert torch.equal(state, torch.random.get_rng_state()) and len(words) == size + 2
    for t in EmbeddingTables(m).own_tables:
        rows = EmbeddingTables(m).read(t)
        assert torch.equal(rows[:size], before[t.name]) and bool(torch.isfinite(rows).all())
        if name != "tokalign":  # copies an old row for each, which may be the same
            assert not torch.equal(rows[size], rows[size + 1])
    assert torch.equal(logits(m, ids)[..., :size], said)
    steps = report.tables[0]["details"]["steps"]
    assert sum(steps.values()) == 2, steps
    if name not in ("fvt", "random", "reinit", "tokalign"):
        assert steps == {"method": 2}, steps


@pytest.mark.parametrize("name", [r.name for r in hf_embinit.list_initializers(purpose="tokenizer")])
def test_rows_are_the_same_whatever_the_default_dtype(name: str) -> None:
    made, options = [], given(name, tokenizer("byte_level"))
    for dtype in (torch.float32, torch.bfloat16):
        m, words = model("llama", 320), tokenizer("byte_level")
        with default_dtype(dtype), warnings.catch_warnings():
            warnings.simplefilter("ignore", VocabularyWarning)
            hf_embinit.expand_vocabulary(m, words, WORDS, name, prefixes=(), **options)
        made.append(m.state_dict())
    assert all(torch.equal(value, made[1][key]) for key, value in made[0].items())


def test_pieces_are_the_same_as_of_subword_mean_and_biases_follow() -> None:
    made = []
    for name in ("fvt", "subword_mean"):
        m, words = model("bert", 320), tokenizer("wordpiece")
        hf_embinit.expand_vocabulary(m, words, ["wondering", "lighthouses"], name, prefixes=())
        tables = EmbeddingTables(m)
        made.append(
            (tables.read(tables.input_tables[0])[-2:], tables.biases(tables.output_tables[0])[0][-2:])
        )
    (rows, biases), (same, means) = made
    assert torch.allclose(rows, same, atol=1e-6)
    m, words = model("bert", 320), tokenizer("wordpiece")
    (old,) = EmbeddingTables(m).biases(EmbeddingTables(m).output_tables[0])
    pieces = words("wondering", add_special_tokens=False)["input_ids"]
    assert float(biases[0]) == pytest.approx(float(old[pieces].mean()), abs=1e-5)
    assert torch.allclose(biases, means)


def test_what_a_method_does_not_read_or_lacks_is_said_and_nothing_changes() -> None:
    m, words = model("gpt2", 320), tokenizer("byte_level")
    before, size = logits(m, torch.tensor([[5, 6]])), len(words)
    for message, call in (
        ("'trans_tokenizer' needs parallel=", {"init": "trans_tokenizer"}),
        ("'fvt' reads no parallel=", {"init": "fvt", "parallel": [("a", "b")]}),
        ("'mean' reads no texts=", {"init": "mean", "texts": ["a"]}),
        ("'fvt' makes the rows of another tokenizer", {"overrides": {WORDS[0]: "fvt"}}),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            hf_embinit.expand_vocabulary(m, words, WORDS, **call)
    with pytest.raises(InvalidArgumentError, match="'focus' makes the rows of another tokenizer"):
        hf_embinit.initialize(m, "focus", tokenizer=words)
    with pytest.raises(InvalidArgumentError, match="'vipi' makes the rows of another tokenizer"):
        hf_embinit.patch(m, "vipi")
    assert len(words) == size and torch.equal(logits(m, torch.tensor([[5, 6]])), before)


def test_a_broken_old_row_is_refused_where_a_new_one_is_made_of_it() -> None:
    words = tokenizer("byte_level")
    first, *rest = words(WORDS[0])["input_ids"]

    def expand(broken: int) -> Any:
        m, names = model("llama", 320), copy.deepcopy(words)
        m.get_input_embeddings().weight.data[broken] = torch.nan
        hf_embinit.expand_vocabulary(m, names, WORDS[:1], "fvt")
        return m.get_input_embeddings().weight

    with pytest.raises(InvalidArgumentError, match=rf"the first at id {first}: .*repair\("):
        expand(first)
    made = expand(next(i for i in range(300, 320) if i not in rest))
    torch.testing.assert_close(made[320], made[[first, *rest]].mean(0))


def test_a_patched_resize_takes_a_method(tmp_path: Path) -> None:
    m, words = model("gpt2", 320), tokenizer("byte_level")
    hf_embinit.patch(m, "vipi", tokenizer=words)
    words.add_tokens(WORDS)
    m.resize_token_embeddings(len(words))
    pieces = tokenizer("byte_level")(WORDS[0], add_special_tokens=False)["input_ids"]
    rows = m.get_input_embeddings().weight.detach()
    assert float((rows[320] - rows[pieces].mean(0)).abs().max()) < 1.5  # the shortest split may be another
    assert not torch.equal(rows[320], rows[:320].mean(0))


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_bert(tmp_path / "bert")
    text = tmp_path / "text.txt"
    text.write_text("the wondering king and the wondering queen\n" * 5)
    (tmp_path / "new.yaml").write_text("- {name: wondering, single_word: true}\n")
    flags = ["--tokens_file", tmp_path / "new.yaml", "--init", "align", "--texts", text]
    flags += ["--output_dir", tmp_path / "new"]
    code, _, err = embinit(capsys, "expand", folder, *flags)
    assert code == 0, err
    grown, words = load(tmp_path / "new")
    assert words.convert_tokens_to_ids("wondering") == len(words) - 1 == grown.config.vocab_size - 1
    code, _, err = embinit(capsys, "expand", folder, *flags[:-1], tmp_path / "x", "--donor", "nowhere")
    assert code == 1 and "reads no donor=" in err
