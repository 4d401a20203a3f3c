"""`VanillaTransformerTokenizer`: the vocabulary of one language, or of a source and a target, in one object.

It segments text either into `words` (spaCy's rule tokenizer, lower-cased) or with any pre-trained fast
tokenizer, and numbers only the tokens that the training text has at least `min_frequency` times. The
pre-trained tokenizer is kept whole (`segmenter.json`), so that the segmentation of a text does not change;
tokens outside the compacted vocabulary become `<unk>`.

It is copied into checkpoints, and loads there without hf_embinit (`trust_remote_code=True`), so it imports
nothing of it but the file beside it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerBase

from .segmentation_vanilla_transformer import (
    Attachment,
    PieceSegmenter,
    TokenizerError,
    WordSegmenter,
    continuation_prefix,
    join_words,
    merge_pieces,
    survey,
)

Side = Literal["source", "target"]
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
"""Padding, unknown, start and end of sequence: ids 0 to 3 in every vocabulary."""

_FIXED = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), SPECIAL_TOKENS, strict=True))

VOCAB_FILES_NAMES = {
    "vocab_file": "vocab.json",
    "target_vocab_file": "target_vocab.json",
    "segmenter_file": "segmenter.json",
}


def _check_fixed(name: str, value: Any) -> None:
    if str(value) != _FIXED[name]:
        raise TokenizerError(
            f"{name}={str(value)!r}: ids 0 to 3 are {', '.join(SPECIAL_TOKENS)} in every vocabulary of this "
            "tokenizer; add_tokens adds others beside them"
        )


class VanillaTransformerTokenizer(PreTrainedTokenizer):
    """Text to ids and back for `VanillaTransformer` models, made by `build` or `from_pretrained`.

    `tok(text)` gives `tokens </s>`; `tok(text, text_pair)` gives `tokens </s> tokens </s>` (no
    `token_type_ids`); `tok(text, text_target=...)` adds `labels`, `tokens </s>` in the target vocabulary. The
    decoder starts with `<s>` (`bos_token_id`, the model's `decoder_start_token_id`). `decode` reads target
    ids where there is a target side; `decode(ids, side="source")` reads source ids. Its text is detokenised;
    case is not restored (see `lowercases`). `<pad>`, `<unk>`, `<s>`, `</s>` are ids 0 to 3 on both sides.
    """

    vocab_files_names = VOCAB_FILES_NAMES
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012 (the base class's way)

    segmenter: Tokenizer | None
    """The whole pre-trained tokenizer; None for words."""
    encoder: dict[str, int]
    """Token to id: the source vocabulary, or the only one."""
    target_encoder: dict[str, int]
    """Token to id of the target vocabulary; the same object as `encoder` without `separate_vocabs`."""

    def __init__(
        self,
        vocab_file: str | os.PathLike | dict[str, int],
        target_vocab_file: str | os.PathLike | dict[str, int] | None = None,
        segmenter_file: str | os.PathLike | Tokenizer | None = None,
        *,
        segmenter_name: str = "words",
        source_lang: str | None = None,
        target_lang: str | None = None,
        separate_vocabs: bool = False,
        attached: dict[str, Attachment] | None = None,
        **kwargs: Any,
    ):
        if separate_vocabs and target_vocab_file is None:
            raise ValueError(
                f"separate_vocabs=True needs {VOCAB_FILES_NAMES['target_vocab_file']}, which is missing"
            )
        if segmenter_name != "words" and segmenter_file is None:
            raise ValueError(
                f"{VOCAB_FILES_NAMES['segmenter_file']} (the whole {segmenter_name!r}) is missing"
            )
        self.encoder = _read_vocabulary(vocab_file)
        self.target_encoder = self.encoder
        if target_vocab_file is not None and separate_vocabs:
            self.target_encoder = _read_vocabulary(target_vocab_file)
        self.segmenter = _read_segmenter(segmenter_file) if segmenter_name != "words" else None
        self.segmenter_name = segmenter_name
        self.separate_vocabs = separate_vocabs
        self.source_lang, self.target_lang = source_lang, target_lang
        self.attached = attached or {}
        self._side: Side = "source"
        self._decoders: dict[str, list[str]] = {}  # never filled lazily: use must not change its fingerprint
        self._pieces = (
            PieceSegmenter(self.segmenter, SPECIAL_TOKENS[1]) if self.segmenter is not None else None
        )
        for name, token in _FIXED.items():
            _check_fixed(name, kwargs.get(name, token))
            kwargs[name] = token
        super().__init__(
            segmenter_name=segmenter_name,
            source_lang=source_lang,
            target_lang=target_lang,
            separate_vocabs=separate_vocabs,
            attached=self.attached,
            **kwargs,
        )

    def __setattr__(self, key: str, value: Any) -> None:
        if key in _FIXED:
            _check_fixed(key, value)
        super().__setattr__(key, value)

    def add_special_tokens(self, special_tokens_dict: dict[str, Any], *args: Any, **kwargs: Any) -> int:
        """As in transformers; those of ids 0 to 3 stay as they are, and another raises `TokenizerError`."""
        for name in _FIXED.keys() & special_tokens_dict.keys():
            _check_fixed(name, special_tokens_dict[name])
        return super().add_special_tokens(special_tokens_dict, *args, **kwargs)

    # --- making one

    @classmethod
    def build(
        cls,
        source_texts: Iterable[str],
        target_texts: Iterable[str] | None = None,
        *,
        tokenizer: str | os.PathLike | PreTrainedTokenizerBase = "words",
        source_lang: str | None = None,
        target_lang: str | None = None,
        min_frequency: int = 2,
        separate_vocabs: bool = True,
        **kwargs: Any,
    ) -> VanillaTransformerTokenizer:
        """A tokenizer of the special tokens and of the tokens seen at least `min_frequency` times.

        `tokenizer` is `"words"` (which needs `source_lang`, and `target_lang` when there are target texts:
        spaCy's codes such as `"de"`), or a pre-trained fast tokenizer: an object, a Hub id or a folder. Ids
        follow falling frequency, ties the spelling. With `separate_vocabs=False` source and target share one
        vocabulary. Further arguments (`model_max_length`, `padding_side`) go to the constructor. Raises
        `TokenizerError` for a slow tokenizer, a missing language, a `min_frequency` below 1, and one that
        leaves no token, and for arguments and texts of another type.
        """
        for name, texts in (("source_texts", source_texts), ("target_texts", target_texts)):
            if isinstance(texts, str):
                raise TokenizerError(f"{name} is one string, {texts[:20]!r}: give a list of texts")
            if not isinstance(texts, Iterable) and (name == "source_texts" or texts is not None):
                raise TokenizerError(f"{name}={texts!r}: give a list of texts")
        if type(min_frequency) is not int or min_frequency < 1:
            raise TokenizerError(f"min_frequency={min_frequency!r} must be a whole number, 1 or more")
        if not isinstance(separate_vocabs, bool):
            raise TokenizerError(f"separate_vocabs={separate_vocabs!r} must be True or False")
        source_texts = _texts(source_texts, "source_texts")
        target_texts = None if target_texts is None else _texts(target_texts, "target_texts")
        backend, name = (None, "words") if tokenizer == "words" else _load_segmenter(tokenizer)
        pieces = PieceSegmenter(backend, SPECIAL_TOKENS[1]) if backend is not None else None
        prefix = "" if backend is None else continuation_prefix(backend) or None
        segment = pieces or WordSegmenter(source_lang, "source_lang")
        counts, attachment = survey(segment(source_texts), prefix)
        target_counts: Counter[str] = Counter()
        attached = {"source": attachment}
        if target_texts is None:
            separate_vocabs = False
        else:
            segment = pieces or WordSegmenter(target_lang, "target_lang")
            target_counts, attached["target"] = survey(segment(target_texts), prefix)
        return cls(
            _number(counts if separate_vocabs else counts + target_counts, min_frequency),
            _number(target_counts, min_frequency) if separate_vocabs else None,
            backend,
            segmenter_name=name,
            source_lang=source_lang,
            target_lang=target_lang,
            separate_vocabs=separate_vocabs,
            attached=attached if prefix is not None else None,
            **kwargs,
        )

    # --- text to tokens

    def segment(self, texts: Iterable[str], side: Side = "source") -> Iterator[list[str]]:
        """The tokens of each text before compaction: those that the vocabulary lacks keep their spelling.

        What is unknown to the pre-trained tokenizer itself is `<unk>`.
        """
        segment = self._pieces or WordSegmenter(self._language(side), f"{side}_lang")
        return (tokens for tokens, _ in segment(texts))

    def token_counts(self, texts: Iterable[str], side: Side = "source") -> list[int]:
        """How often each id of a vocabulary occurs in the texts; `<s>` and `</s>` are not counted."""
        encoder = self._encoder(side)
        counts = [0] * len(encoder)
        for tokens in self.segment(texts, side):
            for token in tokens:
                counts[encoder.get(token, encoder[SPECIAL_TOKENS[1]])] += 1
        return counts

    def tokenize_target(self, text: str) -> str:
        """The tokens of a target text joined by blanks, unknown ones as they are spelled.

        References for token-level BLEU are written so.
        """
        return " ".join(next(self.segment([text], "target")))

    def decode_tokens(self, ids: Iterable[int], side: Side | None = None) -> str:
        """The tokens of ids joined by blanks, without padding, `<s>` and all from the first `</s>` on.

        `<unk>` stays. Hypotheses for token-level BLEU are written so.
        """
        tokens = []
        for token in self.convert_ids_to_tokens(ids, side=side or self._decoded_side):
            if token == self.eos_token:
                break
            if token not in (self.pad_token, self.bos_token):
                tokens.append(token)
        return " ".join(tokens)

    @property
    def lowercases(self) -> bool:
        """Whether texts are lower-cased: BLEU must then ignore case, too (`lowercase=True`)."""
        if self.segmenter is None:
            return True
        normalizer = self.segmenter.normalizer
        return normalizer is not None and "A" not in normalizer.normalize_str("A")

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return next(self.segment([text], self._side))

    def _convert_token_to_id_with_added_voc(self, token: str) -> int:
        return self._convert_token_to_id(token)

    def _convert_token_to_id(self, token: str) -> int:
        encoder = self._encoder(self._side)
        return encoder.get(token, encoder[SPECIAL_TOKENS[1]])

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        end = [self.encoder[SPECIAL_TOKENS[3]]]
        return token_ids_0 + end + (token_ids_1 + end if token_ids_1 is not None else [])

    def get_special_tokens_mask(
        self,
        token_ids_0: list[int],
        token_ids_1: list[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        if already_has_special_tokens:
            return super().get_special_tokens_mask(token_ids_0, token_ids_1, already_has_special_tokens=True)
        return (
            [0] * len(token_ids_0) + [1] + ([0] * len(token_ids_1) + [1] if token_ids_1 is not None else [])
        )

    def _switch_to_input_mode(self) -> None:
        self._side = "source"

    def _switch_to_target_mode(self) -> None:
        self._side = "target"

    # --- ids to text

    def convert_ids_to_tokens(
        self, ids: int | Iterable[int], skip_special_tokens: bool = False, side: Side | None = None
    ) -> Any:
        """The token of an id, or a list for several: source ids unless `side="target"`.

        Negative ids (-100, the label that the loss ignores) become padding, ids beyond
        the vocabulary unknown.
        """
        tokens = self._decoders[side or self._side]
        if isinstance(ids, int):
            return self._token(tokens, ids)
        skipped = set(self.all_special_tokens) if skip_special_tokens else set()
        return [token for i in ids if (token := self._token(tokens, int(i))) not in skipped]

    def _decode(
        self,
        token_ids: int | list[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        side: Side | None = None,
        **kwargs: Any,
    ) -> str:
        side = side or self._decoded_side
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        tokens = self.convert_ids_to_tokens(ids, skip_special_tokens=skip_special_tokens, side=side)
        return self.convert_tokens_to_string(tokens, side=side)

    def convert_tokens_to_string(self, tokens: list[str], side: Side | None = None) -> str:
        """Detokenised text.

        Words (and word pieces) are attached as in the training text; other sub-words are decoded by their
        tokenizer; special and added tokens get blanks around them.
        """
        side = side or self._decoded_side
        attachment = self.attached.get(side, {})
        if self.segmenter is None:
            return join_words(tokens, attachment)
        prefix = continuation_prefix(self.segmenter)
        if prefix:
            words = merge_pieces(tokens, prefix, whole=self._added_tokens_encoder)
            return join_words((word for word, _ in words), attachment)
        texts: list[str] = []
        run: list[str] = []
        for token in [*tokens, None]:
            if token is not None and token not in self._added_tokens_encoder:
                run.append(token)
                continue
            if run:
                decoder = self.segmenter.decoder
                texts.append(decoder.decode(run) if decoder is not None else " ".join(run))
                run = []
            if token is not None:
                texts.append(token)
        return texts[0] if len(texts) == 1 else " ".join(text.strip() for text in texts)

    # --- vocabularies

    @property
    def vocab_size(self) -> int:
        """Tokens of the source vocabulary (or the only one), with those added later."""
        return len(self.encoder)

    @property
    def target_vocab_size(self) -> int:
        """Tokens of the target vocabulary, with those added later."""
        return len(self.target_encoder)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.encoder)

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Adds tokens at the end of the source and of the target vocabulary, where their ids may differ.

        Returns the number of tokens that are new in the source vocabulary.
        """
        added = super()._add_tokens(new_tokens, special_tokens=special_tokens)
        for token, index in self._added_tokens_encoder.items():
            self.encoder.setdefault(token, index)
            self.target_encoder.setdefault(token, len(self.target_encoder))
        for side, encoder in (("source", self.encoder), ("target", self.target_encoder)):
            self._decoders[side] = sorted(encoder, key=encoder.__getitem__)
        self._update_total_vocab_size()
        return added

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        contents = {"vocab_file": json.dumps(self.encoder, ensure_ascii=False, indent=0)}
        if self.separate_vocabs:
            contents["target_vocab_file"] = json.dumps(self.target_encoder, ensure_ascii=False, indent=0)
        if self.segmenter is not None:
            contents["segmenter_file"] = self.segmenter.to_str()
        paths = []
        for name, text in contents.items():
            path = Path(save_directory) / (prefix + VOCAB_FILES_NAMES[name])
            path.write_text(text + "\n", encoding="utf-8")
            paths.append(str(path))
        return tuple(paths)

    @property
    def _decoded_side(self) -> Side:
        return "target" if self.separate_vocabs or "target" in self.attached else "source"

    def _language(self, side: Side) -> str | None:
        return self.target_lang if side == "target" and self.target_lang else self.source_lang

    def _encoder(self, side: Side) -> dict[str, int]:
        return self.target_encoder if side == "target" else self.encoder

    def _token(self, tokens: list[str], index: int) -> str:
        if index < 0:
            return SPECIAL_TOKENS[0]
        return tokens[index] if index < len(tokens) else SPECIAL_TOKENS[1]


def _read_vocabulary(source: str | os.PathLike | dict[str, int]) -> dict[str, int]:
    if isinstance(source, dict):
        return dict(source)
    return json.loads(Path(source).read_text(encoding="utf-8"))


def _read_segmenter(source: str | os.PathLike | Tokenizer | None) -> Tokenizer:
    return source if isinstance(source, Tokenizer) else Tokenizer.from_file(str(source))


def _number(counts: Counter[str], min_frequency: int) -> dict[str, int]:
    seen = {token: n for token, n in counts.items() if token not in SPECIAL_TOKENS}
    kept = [token for token, n in seen.items() if n >= min_frequency]
    if not kept:
        most = f"{max(seen, key=lambda token: seen[token])!r} {max(seen.values())} times" if seen else "none"
        raise TokenizerError(
            f"min_frequency={min_frequency} leaves no token of the text; seen most often is {most}"
        )
    kept.sort(key=lambda token: (-seen[token], token))
    return {token: i for i, token in enumerate([*SPECIAL_TOKENS, *kept])}


def _texts(texts: Iterable[str], name: str) -> Iterator[str]:
    """The texts, as they are read; `TokenizerError` at one that is none."""
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TokenizerError(f"{name}[{i}]={text!r}: every text must be a string")
        yield text


def _load_segmenter(tokenizer: str | os.PathLike | PreTrainedTokenizerBase) -> tuple[Tokenizer, str]:
    """A copy of a pre-trained tokenizer's backend, without truncation and padding, and its name."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        if not isinstance(tokenizer, (str, os.PathLike)) or not os.fspath(tokenizer):
            raise TokenizerError(
                f"tokenizer={tokenizer!r}: give 'words', a fast tokenizer, a folder or Hub id"
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        except (OSError, ValueError) as error:
            reason = str(error).strip().split("\n")[0]
            raise TokenizerError(f"tokenizer={str(tokenizer)!r} cannot be loaded: {reason}") from error
    name = str(tokenizer.name_or_path)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(
            f"tokenizer={name!r} has no fast backend (tokenizer.json); choose a fast tokenizer or 'words'"
        )
    if backend.get_vocab_size() <= 1:  # what transformers makes of a folder without tokenizer files
        raise TokenizerError(
            f"tokenizer={name!r} has no vocabulary; give the folder or Hub id of a tokenizer"
        )
    segmenter = Tokenizer.from_str(backend.to_str())
    segmenter.no_truncation()
    segmenter.no_padding()
    return segmenter, Path(name).name if os.path.isdir(name) else name or type(tokenizer).__name__
