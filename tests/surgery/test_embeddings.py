"""Word embeddings shuffled, taken from a donor, or drawn by an initialiser of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from builders.surgery_models import BERT, same, values
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_embinit import initialize, surgery
from hf_embinit.errors import InvalidArgumentError, UnsupportedModelError
from hf_embinit.manifest import read_manifest
from hf_embinit.measures.overlap import english_like

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "mark"]
WORDS = [f"{a}{b}" for a in "abcd" for b in "xyz"]
PIECES = [*SPECIAL, *WORDS, *(f"##{w}" for w in "efgh"), "!", "7", "été", "[unused0]"]
FAMILIES = ("wordpiece", "byte_level", "sentencepiece")


def tokenizer(family: str = "wordpiece", pieces: list[str] = PIECES) -> PreTrainedTokenizerFast:
    names = {
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
        "mask_token": "[MASK]", "additional_special_tokens": ["mark"],
    }  # fmt: skip
    if family == "wordpiece":
        backend = Tokenizer(models.WordPiece({t: i for i, t in enumerate(pieces)}, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        start = "Ġ" if family == "byte_level" else "▁"

        def spelled(piece: str) -> str:
            if piece in SPECIAL or not piece.strip("#").isascii():
                return piece
            return piece[2:] if piece.startswith("##") else f"{start}{piece}"

        backend = Tokenizer(models.BPE({spelled(t): i for i, t in enumerate(pieces)}, [], unk_token="[UNK]"))
        level = pre_tokenizers.ByteLevel if family == "byte_level" else pre_tokenizers.Metaspace
        backend.pre_tokenizer = level()  # type: ignore[operator]
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def bert(seed: int = 0, **options: Any) -> transformers.BertForMaskedLM:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        kwargs = {**BERT, "vocab_size": len(PIECES), "num_hidden_layers": 2, **options}
        model = transformers.BertForMaskedLM(transformers.BertConfig(**kwargs))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
    return model.eval()


def table_of(model: transformers.PreTrainedModel) -> torch.Tensor:
    return model.get_input_embeddings().weight.detach().clone()


@pytest.mark.parametrize("family", FAMILIES)
def test_shuffled_embeddings(family: str, global_rng_untouched: None) -> None:
    model, tok = bert(), tokenizer(family)
    before, old = values(model), table_of(model)
    surgery.apply(model, "shuffled_embeddings", tokenizer=tok, seed=1)
    new = table_of(model)
    movable = [i for i, piece in enumerate(PIECES) if i >= len(SPECIAL) and english_like([piece])[0]]
    fixed = [i for i in range(len(PIECES)) if i not in movable]
    assert len(movable) == 16 and PIECES.index("mark") in fixed
    assert torch.equal(new[fixed], old[fixed])
    rows = sorted(map(tuple, old[movable].tolist()))
    assert sorted(map(tuple, new[movable].tolist())) == rows
    assert sum(not torch.equal(new[i], old[i]) for i in movable) > 8
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    changed = {n for n, v in model.state_dict().items() if not torch.equal(v, before[n])}
    tied = model.get_input_embeddings().weight
    assert changed == {n for n, p in model.named_parameters(remove_duplicate=False) if p is tied}
    event = read_manifest(model)[-1]
    assert event["moved"] == {"bert.embeddings.word_embeddings.weight": 16} and event["seed"] == 1
    again = surgery.apply(bert(), "shuffled_embeddings", tokenizer=tokenizer(family), seed=1)
    assert torch.equal(table_of(again), new)
    other = surgery.apply(bert(), "shuffled_embeddings", tokenizer=tok, seed=2)
    assert not torch.equal(table_of(other), new)


def test_shuffling_by_another_pattern_and_family() -> None:
    model, old = bert(), table_of(bert())
    surgery.apply(model, "shuffled_embeddings", tokenizer=tokenizer(), pattern="##[a-z]", seed=3)
    moved = (table_of(model) != old).any(1).nonzero().flatten().tolist()
    assert moved and {PIECES[i] for i in moved} <= {"##e", "##f", "##g", "##h"}
    assert read_manifest(model)[-1]["options"] == {"pattern": "##[a-z]"}
    with pytest.raises(InvalidArgumentError, match=r"matches 0 of 26 .*nothing to shuffle"):
        surgery.apply(bert(), "shuffled_embeddings", tokenizer=tokenizer(), pattern="x{9}")
    model = bert()
    surgery.apply(model, "shuffled_embeddings", tokenizer=tokenizer("byte_level"), family="words")
    assert read_manifest(model)[-1]["moved"] == {"bert.embeddings.word_embeddings.weight": 4}
    with pytest.raises(InvalidArgumentError, match=r"26 source tokens, but .* has 20 rows"):
        surgery.apply(bert(vocab_size=20), "shuffled_embeddings", tokenizer=tokenizer())


def test_an_untied_head_stays() -> None:
    model = bert(tie_word_embeddings=False)
    head = model.get_output_embeddings().weight.detach().clone()
    surgery.apply(model, "shuffled_embeddings+clean_embeddings", tokenizer=tokenizer())
    assert torch.equal(model.get_output_embeddings().weight, head)


def donor(folder: Path, width: int = 16, extra: int = 5) -> tuple[Path, list[str], torch.Tensor]:
    """A saved model with other ids for the specials, more words, and rows beyond them."""
    pieces = [*WORDS, *(f"new{i}".replace("0", "o") for i in range(extra)), "##e", *SPECIAL]
    model = bert(seed=9, vocab_size=len(pieces) + 3, hidden_size=width, pad_token_id=pieces.index("[PAD]"))
    model.save_pretrained(folder)
    tokenizer(pieces=pieces).save_pretrained(folder)
    return folder, pieces, table_of(model)


def test_donor_embeddings(tmp_path: Path, global_rng_untouched: None) -> None:
    path, pieces, rows = donor(tmp_path / "donor")
    model = bert()
    body = values(model.bert.encoder)
    bias = model.get_output_embeddings().bias.detach().clone()
    surgery.apply(model, "donor_embeddings", donor=path)
    assert torch.equal(table_of(model), rows[: len(pieces)])
    assert same(values(model.bert.encoder), body)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    torch.testing.assert_close(model.get_output_embeddings().bias, bias.mean().expand(len(pieces)))
    assert model.config.vocab_size == len(pieces)
    padding = pieces.index("[PAD]")
    assert model.config.pad_token_id == padding == model.get_input_embeddings().padding_idx
    event = read_manifest(model)[-1]
    assert event["rows"] == len(pieces) and event["source"]["digest"].startswith("sha256:")
    assert event["options"]["donor"] == str(path)
    tok = transformers.AutoTokenizer.from_pretrained(path)
    inputs = tok("ax newo", return_tensors="pt")
    out = model(**inputs).logits
    model.save_pretrained(tmp_path / "out")
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "out")
    assert torch.equal(again(**inputs).logits, out)


def test_a_donor_brings_its_tokenizer_to_the_next_step(tmp_path: Path) -> None:
    path, pieces, rows = donor(tmp_path)
    model = surgery.apply(bert(), "donor_embeddings+shuffled_embeddings", donor=path)
    fixed = [pieces.index(t) for t in SPECIAL]
    assert torch.equal(table_of(model)[fixed], rows[fixed])
    assert read_manifest(model)[-1]["moved"]["bert.embeddings.word_embeddings.weight"] == 14


def test_a_donor_of_another_width(tmp_path: Path) -> None:
    path, pieces, rows = donor(tmp_path, width=24)
    model = bert()
    before = values(model)
    with pytest.raises(InvalidArgumentError, match=r"width 24, the model 16: give projection='least_sq"):
        surgery.apply(model, "donor_embeddings", donor=path)
    with pytest.raises(InvalidArgumentError, match=r"projection='pca' is neither"):
        surgery.apply(model, "donor_embeddings", donor=path, projection="pca")
    with pytest.raises(InvalidArgumentError, match="give tokenizer="):
        surgery.apply(model, "donor_embeddings", donor=path, projection="least_squares")
    assert same(values(model), before)
    surgery.apply(model, "donor_embeddings", donor=path, projection="random", seed=1)
    projected = table_of(model)
    assert projected.shape == (len(pieces), 16)
    ratio = (projected.norm(dim=1) / rows[: len(pieces)].norm(dim=1)).square().mean()
    assert 0.8 < ratio < 1.25
    again = surgery.apply(bert(), "donor_embeddings", donor=path, projection="random", seed=1)
    assert torch.equal(table_of(again), projected)

    model = bert()
    own = table_of(model)
    surgery.apply(model, "donor_embeddings", tokenizer=tokenizer(), donor=path, projection="least_squares")
    shared = [(pieces.index(t), PIECES.index(t)) for t in [*WORDS, "##e", *SPECIAL]]
    new_ids, old_ids = map(list, zip(*shared, strict=True))
    # 19 shared tokens and 24 dimensions: the map meets them
    torch.testing.assert_close(table_of(model)[new_ids], own[old_ids], rtol=1e-3, atol=1e-3)


def test_a_wider_model_keeps_the_donors_inner_products(tmp_path: Path) -> None:
    path, pieces, rows = donor(tmp_path, width=8)
    model = surgery.apply(bert(), "donor_embeddings", donor=path, projection="random")
    new, old = table_of(model), rows[: len(pieces)]
    torch.testing.assert_close(new @ new.T, old @ old.T, rtol=1e-4, atol=1e-4)


def test_donors_that_are_refused(tmp_path: Path) -> None:
    path, _, _ = donor(tmp_path)
    with pytest.raises(UnsupportedModelError, match="several"):
        surgery.apply(bert(tie_word_embeddings=False), "donor_embeddings", donor=path)
    with pytest.raises(InvalidArgumentError, match="width 16 already"):
        surgery.apply(bert(), "donor_embeddings", donor=path, projection="random")


def test_a_donor_with_a_row_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    path, pieces, _ = donor(tmp_path)
    model = transformers.BertForMaskedLM.from_pretrained(path)
    with torch.no_grad():
        model.get_input_embeddings().weight[3, 1] = float("nan")
    model.save_pretrained(path)
    with pytest.raises(InvalidArgumentError, match=f"token {pieces[3]!r} is not finite"):
        surgery.apply(bert(), "donor_embeddings", donor=path)


def test_initialisers_of_the_registry(tmp_path: Path) -> None:
    path, _, _ = donor(tmp_path)
    tok = tokenizer()
    for name, options in (("xavier", {}), ("default", {}), ("bert_xavier", {"vectors": path})):
        model, other = bert(), bert()
        surgery.apply(model, name, tokenizer=tok, seed=4, **options)
        initialize(other, name, tokenizer=tok, seed=4, **options)
        assert same(values(model), values(other))
        assert [e["event"] for e in read_manifest(model)] == ["initialize"]
    model = surgery.apply(bert(), "reversed+xavier", seed=4)
    assert [e["event"] for e in read_manifest(model)] == ["surgery", "initialize"]
    with pytest.raises(InvalidArgumentError, match="looks at tokens"):
        surgery.apply(bert(), "reversed+bert_xavier", vectors=path)
    with pytest.raises(InvalidArgumentError, match="no option 'vectors'"):
        surgery.apply(bert(), "xavier", vectors=path)


def test_several_ends_of_a_text_follow_the_donor_or_go(tmp_path: Path) -> None:
    path, pieces, _ = donor(tmp_path)
    model = bert()
    model.config.eos_token_id = [model.config.pad_token_id, 2, 10**6]
    surgery.apply(model, "donor_embeddings", donor=path)
    assert model.config.eos_token_id == [pieces.index("[PAD]"), 2]
    assert read_manifest(model)[-1]["rows"] == len(pieces)


def test_a_projection_is_learned_from_finite_rows_of_the_tokenizer_s_own_table(tmp_path: Path) -> None:
    path, _, _ = donor(tmp_path / "wide", width=24)
    _, pieces, _ = donor(tmp_path / "own")
    own, model = tokenizer(pieces=pieces), bert(vocab_size=len(pieces))
    with torch.no_grad():
        model.get_input_embeddings().weight[len(pieces) - 1] = float("nan")
    projected = {"donor": path, "projection": "least_squares"}
    with pytest.raises(InvalidArgumentError, match=r"tokenizer= has \d+ tokens and the table 9 rows"):
        surgery.apply(bert(vocab_size=9), "donor_embeddings", tokenizer=own, **projected)
    surgery.apply(model, "donor_embeddings", tokenizer=own, **projected)
    assert table_of(model).isfinite().all()
