"""What an adapter trained is in the merged model: in memory, saved, and by the command."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from builders.adapters import quietly, saved_base, stirred
from builders.tiny_models import SEQ2SEQ, V
from builders.tiny_tokenizers import model, tokenizer
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertForSequenceClassification,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
)

import hf_embinit
from hf_embinit.__main__ import main
from hf_embinit.errors import InvalidArgumentError
from hf_embinit.vocabulary import carry_vocabulary

IDS = torch.tensor([[2, 5, 6, 3]])


def marian() -> MarianMTModel:
    return MarianMTModel(MarianConfig(**{**SEQ2SEQ, "vocab_size": 320, "pad_token_id": 0}))


def logits(of) -> torch.Tensor:
    named = {"decoder_input_ids": IDS} if of.config.is_encoder_decoder else {}
    with torch.no_grad():
        return of(input_ids=IDS, **named).logits


TRAINED = {
    "a norm": (lambda: model("llama", 320), ["q_proj"], ["norm"]),
    "a norm with a bias": (lambda: model("gpt2", 320), ["c_attn"], ["ln_f"]),
    "the head of an encoder-decoder": (lambda: model("bart", 320), ["q_proj"], ["lm_head"]),
    "the head of Marian": (marian, ["q_proj"], ["lm_head"]),
    "tables of an encoder and of a decoder": (lambda: model("bart", 320), ["q_proj"], ["embed_tokens"]),
    "LoRA on both of these": (lambda: model("bart", 320), ["q_proj", "embed_tokens"], None),
    "a table beside a bias": (lambda: model("bert", 320), ["query"], ["word_embeddings"]),
    "a head with two names of its bias": (lambda: model("bert", 320), ["query"], ["decoder"]),
}


@pytest.mark.parametrize("trained", TRAINED)
def test_merged_saved_and_loaded_it_says_what_the_adapter_said(trained, tmp_path) -> None:
    build, matrices, whole = TRAINED[trained]
    base = build().eval()
    base.save_pretrained(tmp_path / "base")
    tokenizer("wordpiece").save_pretrained(tmp_path / "base")
    config = LoraConfig(target_modules=matrices, modules_to_save=whole)
    wrapped = stirred(quietly(get_peft_model, type(base).from_pretrained(tmp_path / "base"), config))
    before = logits(wrapped)
    assert not torch.allclose(before, logits(base), atol=1e-2)
    quietly(wrapped.save_pretrained, tmp_path / "adapter")
    merged = quietly(hf_embinit.merge_adapter, copy.deepcopy(wrapped)).eval()
    merged.save_pretrained(tmp_path / "merged")
    folders = [str(tmp_path / name) for name in ("base", "adapter", "of_command")]
    assert quietly(main, ["merge", *folders[:2], "--output_dir", folders[2]]) == 0
    reloaded = [type(base).from_pretrained(tmp_path / name).eval() for name in ("merged", "of_command")]
    for one in (merged, *reloaded):
        torch.testing.assert_close(logits(one), before, atol=1e-4, rtol=1e-4)


def test_a_classifier_is_not_left_out_in_silence(tmp_path, capsys) -> None:
    base = model("bert", 320)
    base.save_pretrained(tmp_path / "base")
    tokenizer("wordpiece").save_pretrained(tmp_path / "base")
    classifier = BertForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    wrapped = get_peft_model(classifier, LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    wrapped.save_pretrained(tmp_path / "adapter")
    given = [str(tmp_path / name) for name in ("base", "adapter", "merged")]
    assert quietly(main, ["merge", *given[:2], "--output_dir", given[2]]) == 1
    said = capsys.readouterr().err
    assert "classifier.bias, which BertForMaskedLM lacks" in said and "AutoPeftModel" in said
    assert not (tmp_path / "merged").exists()


def test_dora_on_an_embedding_is_loaded_although_peft_saves_its_lengths_twice(tmp_path) -> None:
    base, t = saved_base("gpt2", tmp_path / "base")
    hf_embinit.expand_vocabulary(base, t, [" zyxomma"], prefixes=())
    wrapped = get_peft_model(base, LoraConfig(target_modules=["wte"], use_dora=True))
    carry_vocabulary(wrapped)
    quietly(stirred(wrapped).save_pretrained, tmp_path / "adapter")
    loaded = quietly(
        hf_embinit.load_adapter, type(base).from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    torch.testing.assert_close(logits(loaded.eval()), logits(wrapped))


def test_a_vocabulary_with_holes_gives_no_new_token_an_old_id() -> None:
    words = {f"w{i}": i for i in range(V) if i not in (5, 6, 7)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    t = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w0")
    m = model("gpt2", V)
    before = m.get_input_embeddings().weight.detach().clone()
    with pytest.raises(InvalidArgumentError, match=r"'<new>' the id 58, which 'w58' has"):
        hf_embinit.expand_vocabulary(m, t, ["<new>"], prefixes=())
    assert torch.equal(m.get_input_embeddings().weight, before) and len(t) == V - 3


def test_modules_and_templates_beside_the_weights_come_along(tmp_path) -> None:
    t = tokenizer("byte_level")
    t.chat_template = {"default": "A", "rag": "B"}
    model("gpt2", len(t)).save_pretrained(tmp_path / "gpt2")
    t.save_pretrained(tmp_path / "gpt2")
    modules = [{"idx": i, "path": path} for i, path in enumerate(("", "2_Dense", "../elsewhere"))]
    (tmp_path / "gpt2/modules.json").write_text(json.dumps(modules), encoding="utf-8")
    for name in ("gpt2/2_Dense/config.json", "elsewhere/config.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}", encoding="utf-8")
    command = [
        "init",
        str(tmp_path / "gpt2"),
        "--init",
        "xavier",
        "--output_dir",
        str(tmp_path / "new" / "of"),
    ]
    assert quietly(main, command) == 0
    written = tmp_path / "new" / "of"
    assert (written / "2_Dense/config.json").is_file() and not (tmp_path / "new/elsewhere").exists()
    again = PreTrainedTokenizerFast.from_pretrained(written)
    assert again.chat_template == {"default": "A", "rag": "B"}
