"""Small tokenizers that keep tokens in reserve, each as the models do whose kind it is of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors
from transformers import PreTrainedTokenizerFast, T5Tokenizer

from builders import tiny_tokenizers

KINDS = {
    "bert": "[unused{}]",
    "llama3": "<|reserved_special_token_{}|>",
    "gemma": "<unused{}>",
    "t5": "<extra_id_{}>",
}
"""Kind -> how its unused tokens are called; each tokenizer has six."""
COUNT = 6

_CHAT = (
    "{% for m in messages %}<|start|>{{ m['role'] }}<|end|>{{ m['content'] }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>{% endif %}"
)


def tokenizer(kind: str) -> Any:
    """A fresh tokenizer of a kind."""
    names = [KINDS[kind].format(i) for i in range(COUNT)]
    if kind == "bert":  # words of the vocabulary like any other
        plain = tiny_tokenizers.tokenizer("wordpiece")
        return _with_words(plain, names)
    if kind == "llama3":  # added behind the vocabulary, all of them special
        plain = tiny_tokenizers.tokenizer("byte_level")
        plain.add_tokens([AddedToken(n, special=True) for n in ("<|start|>", "<|end|>", *names, "<|eot|>")])
        start = plain.convert_tokens_to_ids("<|endoftext|>")
        plain._tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A",
            pair="<|endoftext|> $A $B",
            special_tokens=[("<|endoftext|>", start)],
        )
        plain.chat_template = _CHAT
        return plain
    if kind == "gemma":  # pieces of the vocabulary, and added
        plain = _with_words(tiny_tokenizers.tokenizer("sentencepiece_bpe"), names)
        plain.add_tokens([AddedToken(n, special=False, normalized=False) for n in names])
        return plain
    spec = json.loads(tiny_tokenizers.tokenizer("unigram").backend_tokenizer.to_str())
    pieces = [tuple(piece) for piece in spec["model"]["vocab"]]
    pieces += [(name, 0.0) for name in reversed(names)]
    return T5Tokenizer(vocab=pieces, extra_ids=COUNT)


def _with_words(plain: Any, names: list[str]) -> PreTrainedTokenizerFast:
    """The tokenizer with more words in its vocabulary."""
    spec = json.loads(plain.backend_tokenizer.to_str())
    spec["model"]["vocab"].update({name: len(plain) + i for i, name in enumerate(names)})
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)), **plain.special_tokens_map
    )


def sentencepiece_tokenizer(folder: Path) -> Any:
    """A slow tokenizer of a SentencePiece model with six unused pieces, `<unused0>` and so on."""
    import sentencepiece
    from transformers import BertGenerationTokenizer

    text = folder / "text.txt"
    text.write_text("\n".join(tiny_tokenizers.texts()), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "spiece"),
        vocab_size=320,
        user_defined_symbols=[f"<unused{i}>" for i in range(COUNT)],
        pad_id=0,
        unk_id=3,
        minloglevel=2,
    )
    return BertGenerationTokenizer(vocab_file=str(folder / "spiece.model"))
