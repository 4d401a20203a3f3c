"""What modules around a model keep of its tokens follows: ids, words that are skipped, widths, in memory and
beside a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.tiny_tokenizers import model, tokenizer
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertModel, LlamaConfig, LlamaForCausalLM

from hf_embinit import expand_vocabulary, prune_vocabulary, replace_tokenizer
from hf_embinit.__main__ import main
from hf_embinit.errors import InvalidArgumentError, UnsupportedModelError
from hf_embinit.tables import EmbeddingTables, unwrap
from hf_embinit.vocabulary import used_tokens

sentence_transformers = pytest.importorskip("sentence_transformers", reason="it is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::hf_embinit.errors.VocabularyWarning")
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
PAIR = [("a man", "a dog")]
TEXTS = ["a dog .", "the man and a dog ."]
ANSWERS = ["yes", "no"]


def with_answers(size: int = 320) -> Any:
    t = tokenizer("byte_level", size)
    t.add_tokens(ANSWERS)
    t.pad_token = t.eos_token
    return t


@pytest.fixture
def reranker(tmp_path: Path) -> Any:
    """A CrossEncoder of a causal model, which scores by the logits of "yes" and "no"."""
    t = with_answers()
    config = LlamaConfig(
        vocab_size=len(t), num_key_value_heads=2, bos_token_id=0, eos_token_id=0, pad_token_id=0, **SMALL
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    t.save_pretrained(tmp_path / "llama")
    return sentence_transformers.CrossEncoder(str(tmp_path / "llama"), device="cpu")


def score_ids(m: Any) -> list[int]:
    return [m[1].true_token_id, m[1].false_token_id]


def saved_bert(folder: Path, kind: Any = BertModel) -> str:
    t = tokenizer("wordpiece")
    kind(BertConfig(vocab_size=len(t), **SMALL)).save_pretrained(folder)
    t.save_pretrained(folder)
    return str(folder)


def late_interaction(folder: Path, **options: Any) -> Any:
    """A ColBERT with a mask of its own."""
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    m = sentence_transformers.MultiVectorEncoder(saved_bert(folder), device="cpu")
    modules = [MultiVectorMask(**options) if isinstance(one, MultiVectorMask) else one for one in m]
    return sentence_transformers.MultiVectorEncoder(modules=modules, device="cpu")


def mask_of(m: Any) -> Any:
    return next(one for one in m if type(one).__name__ == "MultiVectorMask")


def assert_same(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(left, right, strict=True))


def test_a_reranker_scores_by_the_same_tokens(reranker, tmp_path) -> None:
    before = reranker.predict(PAIR)
    expand_vocabulary(reranker, reranker.tokenizer, ["zyxomma"], prefixes=())
    report = prune_vocabulary(reranker, reranker.tokenizer, used_tokens(reranker.tokenizer, PAIR[0]))
    assert report.new_num_embeddings < 320  # and keeps "yes" and "no", which nothing asked for
    assert score_ids(reranker) == reranker.tokenizer.convert_tokens_to_ids(ANSWERS)
    assert reranker.predict(PAIR) == before
    replace_tokenizer(reranker, reranker.tokenizer, with_answers(330))
    assert score_ids(reranker) == reranker.tokenizer.convert_tokens_to_ids(ANSWERS) == [330, 331]
    reranker.save_pretrained(str(tmp_path / "saved"))
    again = sentence_transformers.CrossEncoder(str(tmp_path / "saved"), device="cpu")
    assert again.predict(PAIR) == reranker.predict(PAIR)


def test_a_reranker_whose_tokens_are_gone_is_left_as_it_was(reranker) -> None:
    old = reranker.tokenizer
    with pytest.raises(InvalidArgumentError, match=r"LogitScore.true_token_id is 320 \('yes'\), which the"):
        replace_tokenizer(reranker, old, tokenizer("byte_level", 400))
    assert reranker.tokenizer is old and score_ids(reranker) == [320, 321]
    assert EmbeddingTables(reranker).vocab_size() == 322


def test_a_reranker_in_its_files(reranker, tmp_path, capsys) -> None:
    reranker.save_pretrained(str(tmp_path / "st"))
    (tmp_path / "corpus.txt").write_text("a man a dog\n")
    command = ["prune", str(tmp_path / "st"), "--corpus", str(tmp_path / "corpus.txt")]
    assert main([*command, "--output_dir", str(tmp_path / "small")]) == 1
    assert "true_token_id 320, which is 'yes' and no token any more: keep" in capsys.readouterr().err
    assert not (tmp_path / "small").exists()
    assert not main([*command, "--keep", *ANSWERS, "--output_dir", str(tmp_path / "small")])
    again = sentence_transformers.CrossEncoder(str(tmp_path / "small"), device="cpu")
    assert score_ids(again) == again.tokenizer.convert_tokens_to_ids(ANSWERS) != [320, 321]
    assert again.predict(PAIR) == pytest.approx(reranker.predict(PAIR))


def test_words_that_are_skipped_are_looked_up_again(tmp_path) -> None:
    m = late_interaction(tmp_path / "bert", skiplist_words=[".", "a", "zyxomma"])
    mask, before = mask_of(m), m.encode_document(TEXTS)
    assert len(mask._skiplist_ids) == 2 and len(before[0]) == 3
    expand_vocabulary(m, m.tokenizer, ["zyxomma"], prefixes=())
    assert mask._skiplist_ids.tolist() == m.tokenizer.convert_tokens_to_ids([".", "a", "zyxomma"])
    assert_same(m.encode_document(TEXTS), before)
    prune_vocabulary(m, m.tokenizer, used_tokens(m.tokenizer, TEXTS) - {m.tokenizer.vocab["."]})
    assert mask._skiplist_ids.tolist() == m.tokenizer.convert_tokens_to_ids([".", "a", "zyxomma"])
    assert m.tokenizer.vocab_size < 20
    assert_same(m.encode_document(TEXTS), before)
    replace_tokenizer(m, m.tokenizer, tokenizer("unigram", 400))
    found = [i for i in m.tokenizer.convert_tokens_to_ids([".", "a"]) if i != m.tokenizer.unk_token_id]
    assert mask._skiplist_ids.tolist() == found
    m.save_pretrained(str(tmp_path / "saved"))
    again = sentence_transformers.MultiVectorEncoder(str(tmp_path / "saved"), device="cpu")
    assert_same(again.encode_document(TEXTS), m.encode_document(TEXTS))


def test_ids_that_alone_are_scored_follow_or_are_asked_for(tmp_path) -> None:
    words = ["dog", "man"]
    m = late_interaction(
        tmp_path / "bert", keep_only_token_ids=tokenizer("wordpiece").convert_tokens_to_ids(words)
    )
    before = m.encode_document(TEXTS)
    assert [len(one) for one in before] == [1, 2]
    prune_vocabulary(m, m.tokenizer, used_tokens(m.tokenizer, TEXTS))
    assert mask_of(m).keep_only_token_ids == m.tokenizer.convert_tokens_to_ids(words)
    assert_same(m.encode_document(TEXTS), before)
    m.save_pretrained(str(tmp_path / "saved"))
    assert not main(
        ["expand", str(tmp_path / "saved"), "--tokens", "zyxomma", "--output_dir", str(tmp_path / "more")]
    )
    again = sentence_transformers.MultiVectorEncoder(str(tmp_path / "more"), device="cpu")
    assert_same(again.encode_document(TEXTS), before)
    with pytest.raises(InvalidArgumentError, match=r"MultiVectorMask.keep_only_token_ids is .*'(dog|man)'"):
        replace_tokenizer(m, m.tokenizer, tokenizer("byte_level", 260))


def test_one_model_behind_two_routes(tmp_path) -> None:
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer

    shared = Transformer(saved_bert(tmp_path / "bert"))
    router = Router.for_query_document(
        [shared, Pooling(16, pooling_mode="cls")], [shared, Pooling(16, pooling_mode="mean")]
    )
    m = sentence_transformers.SentenceTransformer(modules=[router], device="cpu")
    before = m.encode_query(TEXTS), m.encode_document(TEXTS)
    assert unwrap(m) is shared.model
    expand_vocabulary(m, m.tokenizer, ["zyxomma"], prefixes=())
    assert_same([m.encode_query(TEXTS), m.encode_document(TEXTS)], before)
    new = tokenizer("wordpiece", 400)
    replace_tokenizer(m, m.tokenizer, new)
    assert m.tokenizer is new
    m.save_pretrained(str(tmp_path / "saved"))
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert_same([again.encode_query(TEXTS)], [m.encode_query(TEXTS)])

    table = StaticEmbedding(tokenizer("wordpiece"), embedding_dim=16)  # with a tokenizer of its own
    router = Router.for_query_document([table], [shared, Pooling(16)])
    m = sentence_transformers.SentenceTransformer(modules=[router], device="cpu")
    queries, newer = m.encode_query(TEXTS), tokenizer("wordpiece", 300)
    replace_tokenizer(m, new, newer)
    assert shared.tokenizer is newer and EmbeddingTables(m).vocab_size() == len(newer)
    assert_same([m.encode_query(TEXTS)], [queries])


def test_a_weight_for_each_token_is_told(tmp_path, capsys) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer, WordWeights

    transformer = Transformer(saved_bert(tmp_path / "bert"))
    words = sorted(transformer.tokenizer.vocab, key=transformer.tokenizer.vocab.get)
    weights = WordWeights(words, {word: float(i + 1) for i, word in enumerate(words)})
    m = sentence_transformers.SentenceTransformer(modules=[transformer, weights, Pooling(16)], device="cpu")
    for change in (
        lambda: expand_vocabulary(m, m.tokenizer, ["zyxomma"], prefixes=()),
        lambda: prune_vocabulary(m, m.tokenizer, ["a", "dog"]),
        lambda: replace_tokenizer(m, m.tokenizer, tokenizer("wordpiece", 400)),
    ):
        with pytest.raises(UnsupportedModelError, match="holds a WordWeights, with a weight for each token"):
            change()
    assert len(m.tokenizer) == len(words)
    m.save_pretrained(str(tmp_path / "st"))
    out = ["--output_dir", str(tmp_path / "out")]
    assert main(["expand", str(tmp_path / "st"), "--tokens", "zyxomma", *out]) == 1
    assert "1_WordWeights is a WordWeights with a weight for each token of the old" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not main(["init", str(tmp_path / "st"), "--init", "xavier", *out])  # whose tokens are the same


def test_a_splade_in_its_files_is_as_wide_as_its_logits(tmp_path) -> None:
    m = sentence_transformers.SparseEncoder(saved_bert(tmp_path / "bert", BertForMaskedLM), device="cpu")
    m.encode(TEXTS)  # its width is known from then on
    m.save_pretrained(str(tmp_path / "st"))
    config = "1_SpladePooling/config.json"
    assert json.loads((tmp_path / "st" / config).read_text())["embedding_dimension"] == 320
    assert not main(
        ["expand", str(tmp_path / "st"), "--tokens", "zyxomma", "--output_dir", str(tmp_path / "more")]
    )
    assert json.loads((tmp_path / "more" / config).read_text())["embedding_dimension"] == 321
    again = sentence_transformers.SparseEncoder(str(tmp_path / "more"), device="cpu")
    assert again.get_embedding_dimension() == again.encode(TEXTS).shape[1] == 321


def test_a_colbert_of_pylate_skips_the_same_words() -> None:
    class ColBERT(nn.Sequential):  # what PyLate 1.4 keeps, which looks nothing up again
        def __init__(self, t: Any, words: list[str] | None) -> None:
            super().__init__(model("bert", 320))
            self.skiplist_words, self.document_prefix_id = words, t.vocab["the"]
            self.skiplist = t.convert_tokens_to_ids(words) if words is not None else []

    for words in ([".", "a"], None):
        t = tokenizer("wordpiece")
        m = ColBERT(t, words)
        expand_vocabulary(m, t, ["zyxomma"], prefixes=())
        prune_vocabulary(m, t, ["dog"])
        assert m.skiplist == t.convert_tokens_to_ids(words or []) and t.vocab_size < 20
        assert m.document_prefix_id == t.vocab["the"]
        new = tokenizer("wordpiece", 300)
        replace_tokenizer(m, t, new)
        assert m.skiplist == new.convert_tokens_to_ids(words or [])
        assert m.document_prefix_id == new.vocab["the"]


def test_a_module_without_its_settings_is_no_obstacle(tmp_path) -> None:
    m = sentence_transformers.SparseEncoder(saved_bert(tmp_path / "bert", BertForMaskedLM), device="cpu")
    m.save_pretrained(str(tmp_path / "st"))
    (tmp_path / "st" / "1_SpladePooling" / "config.json").unlink()
    out = tmp_path / "out"
    assert not main(["expand", str(tmp_path / "st"), "--tokens", "zyxomma", "--output_dir", str(out)])


def test_ids_of_a_module_of_ones_own_follow() -> None:
    class Scorer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.yes_token_id, self.max_token_id = model("gpt2", 320), 300, None

    m, t = Scorer(), tokenizer("byte_level")
    name = t.convert_ids_to_tokens(300)
    prune_vocabulary(m, t, ["a"])
    assert m.yes_token_id == t.convert_tokens_to_ids(name) != 300 and m.max_token_id is None
