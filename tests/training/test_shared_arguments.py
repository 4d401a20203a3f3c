"""Options of an initialiser on a recipe's command line."""

from __future__ import annotations

import pytest
import torch
from builders import tiny_tokenizers

import hf_embinit
from hf_embinit.errors import DataNotFoundError, EmbinitError, InvalidArgumentError
from hf_embinit.models import VanillaTransformerConfig, VanillaTransformerForCausalLM
from hf_embinit.tasks import get_task
from hf_embinit.training import InitArguments, VanillaArguments
from hf_embinit.vectors import PretrainedVectors


def test_options_are_read_as_json_or_text():
    rows = InitArguments(init_options=["mode=rows"], vectors="some/body")
    assert rows.options_of("glove_shuffled") == {"mode": "rows"}
    assert InitArguments(init_options=["std=1e-5"]).options_of("normal") == {"std": 1e-5}
    assert InitArguments().options_of("xavier") == InitArguments().options_of(None) == {}


@pytest.mark.parametrize(
    ("given", "init", "sentence"),
    [
        (["mode"], "glove_shuffled", "give name=value"),
        (["moda=rows"], "glove_shuffled", "has no option 'moda'. Its options: mode='elements'"),
        (["mode=rows"], "xavier", "has no option 'mode'"),
        (["mode=rows"], None, "needs --init"),
    ],
)
def test_options_that_cannot_work_end_before_any_work(given, init, sentence):
    with pytest.raises(InvalidArgumentError, match=sentence):
        InitArguments(init_options=given).options_of(init)


@pytest.mark.parametrize("mode", ["elements", "rows", "rows_and_columns"])
def test_every_way_to_shuffle_can_be_chosen(mode):
    tokenizer = tiny_tokenizers.tokenizer("wordpiece")
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    matrix = torch.arange(len(tokens) * 4.0).view(-1, 4)
    model = VanillaTransformerForCausalLM(
        VanillaTransformerConfig(
            vocab_size=len(tokens), d_model=4, num_heads=2, d_ff=8, num_layers=1, pad_token_id=None
        )
    )
    vectors = PretrainedVectors(tokens, matrix, "mine", "wordpiece")
    options = InitArguments(init_options=[f"mode={mode}"], vectors="b").options_of("pretrained_shuffled")
    hf_embinit.initialize(model, "pretrained_shuffled", tokenizer=tokenizer, vectors=vectors, **options)
    (event,) = hf_embinit.read_manifest(model)
    assert event["options"] == {"mode": mode}
    known = {tuple(row) for row in matrix.tolist()}
    together = {tuple(sorted(row)) for row in known}
    rows = model.get_input_embeddings().weight.detach().tolist()
    share = sum(tuple(row) in known for row in rows) / len(rows)
    kept = sum(tuple(sorted(row)) in together for row in rows) / len(rows)
    assert (share > 0.9, kept > 0.9) == {
        "elements": (False, False), "rows": (True, True), "rows_and_columns": (False, True),
    }[mode]  # fmt: skip


@pytest.mark.parametrize("init", ["glove", "glove_xavier", "pretrained", "pretrained_orthogonal"])
def test_an_embedded_corpus_has_vectors_and_others_need_some(init):
    assert InitArguments().options_of(init, get_task("translation").datasets["captions"]) == {}
    sentence = (
        "is not on the Hub: give vectors" if init.startswith("glove") else r"needs vectors= \(--vectors"
    )
    for data in (None, get_task("translation").datasets["multi30k"]):
        with pytest.raises(EmbinitError, match=sentence):
            InitArguments().options_of(init, data)


def test_vectors_that_no_initialiser_reads_or_that_are_not_there_are_refused(tmp_path):
    (tmp_path / "v.txt").touch()
    assert VanillaArguments(vectors=str(tmp_path / "v.txt")).options_of("glove") == {}
    assert VanillaArguments(vectors="somebody/vectors").options_of("glove") == {}  # the Hub knows
    with pytest.raises(DataNotFoundError, match=r"^--vectors 'v\.txt' is no file or folder here"):
        VanillaArguments(vectors="v.txt").options_of("glove")
    with pytest.raises(DataNotFoundError, match=r"^The vectors 'glove' are a file that is not on the Hub"):
        VanillaArguments(vectors="glove").options_of("glove_xavier")
    with pytest.raises(InvalidArgumentError, match="is given, but --init xavier reads no vectors"):
        VanillaArguments(vectors="v.txt").options_of("xavier")
