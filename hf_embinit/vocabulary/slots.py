"""Reserved slots: unused tokens of a tokenizer that take new names, so that no table changes its shape."""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from ..errors import InvalidArgumentError, VocabularyWarning
from ..tables import RESERVED_NAMES, EmbeddingTables
from ..tokens import BYTE_TOKEN, tokenizer_of, vocabulary
from .compaction import added_by, merges_of
from .id_fields import chat_templates, id_fields, tokenizer_id_fields

_SENTINEL = re.compile(r"<extra_id_(\d+)>")
"""T5's, of which a text uses those with low numbers first."""
Slots = Literal["reserved"] | Sequence[int]
"""Where new tokens go: unused tokens that are known by their names, or the ids to take, in this order."""


class SlotFiller:
    """Gives new tokens the ids of tokens that nobody uses, in a tokenizer and in copies of it.

    `holder` is the tokenizer as it was given, or a processor with it, whose template and ids count, too.
    Raises `InvalidArgumentError` for ids that cannot be taken, and for tokenizers that cannot be edited.
    """

    def __init__(
        self,
        tables: EmbeddingTables,
        tokenizer: Any,
        slots: Slots,
        rows: int,
        pad_to_multiple_of: int | None,
        holder: Any,
    ):
        if pad_to_multiple_of is not None:
            raise InvalidArgumentError(
                f"pad_to_multiple_of={pad_to_multiple_of} grows the tables, which slots= avoids: give one"
            )
        self.names = vocabulary(tokenizer)
        self.named = slots == "reserved"
        used = _used(tables, holder, rows)
        if isinstance(slots, str) and slots == "reserved":
            templates = chat_templates(holder)
            processed = {*added_by(_spec(tokenizer)["post_processor"])} if _is_fast(tokenizer) else set()
            self.ids = [
                i
                for i, name in enumerate(self.names[:rows])
                if RESERVED_NAMES.match(name)
                and i not in used
                and i not in processed
                and not any(name in template for template in templates)
            ]
            self.ids.sort(key=lambda i: -int(m[1]) if (m := _SENTINEL.fullmatch(self.names[i])) else i)
        else:
            self.ids = _checked(slots, self.names, used, rows)
        if not _is_fast(tokenizer) and not hasattr(tokenizer, "sp_model"):
            raise InvalidArgumentError(
                f"slots= renames tokens in a tokenizer.json or a SentencePiece model, and a "
                f"{type(tokenizer).__name__} has neither: leave slots out, so that the tables grow"
            )

    def require(self, count: int) -> None:
        """Raises unless there are so many slots."""
        if count > len(self.ids):
            way_out = "name further ids (slots=[...], --slots ID ID)" if self.named else "name more"
            what = "unused tokens that could be renamed" if self.named else "ids in slots"
            raise InvalidArgumentError(
                f"there are {len(self.ids)} {what}, for {count} new tokens: {way_out}, or leave slots out, "
                f"so that the tables grow"
            )

    def warn_of_pieces(self, tokenizer: Any, tokens: Sequence[str | AddedToken]) -> None:
        """Warns of the first token for whole words alone that would be a piece like others in its slot."""
        whole = [str(t) for t in tokens if isinstance(t, AddedToken) and t.single_word]
        if whole and _is_fast(tokenizer) and _spec(tokenizer)["model"]["type"] in ("WordPiece", "Unigram"):
            warnings.warn(
                f"in a slot {whole[0]!r} is a piece of this tokenizer like others, single_word or not: words "
                f"that have it in them are split by it, too; leave slots out where they must not be",
                VocabularyWarning,
                stacklevel=5,
            )

    def refuse_pieces(self, id_of: Mapping[str, int], split: Mapping[str, Sequence[int]]) -> None:
        """Raises where a new token's old pieces, of which its row may be made, are among the slots."""
        taken = set(id_of.values())
        for token in id_of:
            for i in taken.intersection(split[token]):
                _refuse(True, i, self.names[i], f"a piece of the new token {token!r}")

    def fill(self, tokenizer: Any, tokens: Sequence[str | AddedToken]) -> None:
        """Renames the first slots of a tokenizer to `tokens`, wherever it keeps their names."""
        self.require(len(tokens))
        new = {
            i: AddedToken(token, normalized=True, special=False) if isinstance(token, str) else token
            for i, token in zip(self.ids, tokens, strict=False)
        }
        added = tokenizer.added_tokens_decoder  # others stand in no list by name, and as words in templates
        named = {self.names[i]: token for i, token in new.items() if i in added}
        if _is_fast(tokenizer):
            spec = _spec(tokenizer)
            _rename_in_spec(spec, new, self.names)
            tokenizer._tokenizer = Tokenizer.from_str(json.dumps(spec))
        else:
            _rename_pieces(tokenizer, new, self.names)
        _rename_in_python(tokenizer, named)
        self._check(tokenizer, new)

    def _check(self, tokenizer: Any, new: Mapping[int, AddedToken]) -> None:
        """Raises unless all names have their ids, and have them still after saving and loading."""
        expected = list(self.names)
        for i, token in new.items():
            expected[i] = str(token)
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            loaded = type(tokenizer).from_pretrained(folder)
        for one in (tokenizer, loaded):
            if vocabulary(one) != expected:
                raise InvalidArgumentError(
                    f"a {type(tokenizer).__name__} brings the old names of its tokens back: leave slots out, "
                    f"so that the tables grow"
                )


def _is_fast(tokenizer: Any) -> bool:
    return isinstance(getattr(tokenizer, "_tokenizer", None), Tokenizer)


def _spec(tokenizer: Any) -> dict[str, Any]:
    return json.loads(tokenizer._tokenizer.to_str())


def _used(tables: EmbeddingTables, holder: Any, rows: int) -> dict[int, str]:
    """Ids that have a task, and which: special tokens with a role, and those that a configuration or a
    processor names."""
    fields = [*id_fields(tables, rows), *tokenizer_id_fields(holder)]
    names = {i: f"{type(f.holder).__name__}.{f.name}" for f in fields for i in f.ids}
    tokenizer = tokenizer_of(holder)
    for role, token in getattr(tokenizer, "special_tokens_map", {}).items():
        if isinstance(token, str):
            names[int(tokenizer.convert_tokens_to_ids(token))] = f"the tokenizer's {role}"
    return names


def _checked(slots: Any, names: Sequence[str], used: Mapping[int, str], rows: int) -> list[int]:
    """Ids that a caller named."""
    if isinstance(slots, str) or not isinstance(slots, Sequence) or not slots:
        raise InvalidArgumentError(f"slots={slots!r}: expected 'reserved' or a list of ids")
    ids: list[int] = []
    for given in slots:
        i = int(given) if isinstance(given, Integral) and not isinstance(given, bool) else -1
        if not 0 <= i < min(rows, len(names)):
            raise InvalidArgumentError(
                f"slots has {given!r}: expected ids of the tokenizer from 0 to {min(rows, len(names)) - 1}"
            )
        if i in ids:
            raise InvalidArgumentError(f"slots has {i} twice: give each new token an id of its own")
        if not names[i]:
            raise InvalidArgumentError(
                f"slots has {i}, which no token has: leave slots out, and new tokens take such rows"
            )
        if i in used:
            raise InvalidArgumentError(f"slots has {i} ({names[i]!r}), which is {used[i]}: take another id")
        ids.append(i)
    return ids


def _rename_in_spec(spec: dict[str, Any], new: Mapping[int, AddedToken], names: Sequence[str]) -> None:
    """Renames tokens in the JSON of a fast tokenizer: its model, its added tokens, its post-processor."""
    model = spec["model"]
    if model["type"] == "Unigram":
        for i, token in new.items():
            _refuse(i == model["unk_id"], i, names[i], "what unknown characters become")
            _refuse(bool(model.get("byte_fallback") and BYTE_TOKEN.fullmatch(names[i])), i, names[i], _BYTE)
            if i < len(model["vocab"]):
                model["vocab"][i][0] = str(token)
    else:
        _refuse_parts(spec, new, names)
        renamed = {names[i]: str(token) for i, token in new.items()}
        model["vocab"] = {renamed.get(token, token): i for token, i in model["vocab"].items()}
        if model["type"] == "BPE":
            model["merges"] = [[a, b] for a, b, made in merges_of(model) if made not in renamed]
    added = {entry["id"]: entry for entry in spec["added_tokens"]}
    for i, token in new.items():
        added[i] = {"id": i, "content": str(token), **_flags(token)}
    spec["added_tokens"] = [added[i] for i in sorted(added)]
    _rename_in_processor(spec.get("post_processor"), {names[i]: str(token) for i, token in new.items()})


_BYTE = "a byte that texts are made of"


def _refuse(wrong: bool, i: int, name: str, what: str) -> None:
    if wrong:
        raise InvalidArgumentError(f"slots has {i} ({name!r}), which is {what}: take another id")


def _refuse_parts(spec: dict[str, Any], new: Mapping[int, AddedToken], names: Sequence[str]) -> None:
    """Raises for tokens that other tokens are made of."""
    model = spec["model"]
    letters = set(ByteLevel.alphabet()) if "ByteLevel" in json.dumps(spec["pre_tokenizer"]) else set()
    parts = {part for a, b, _ in merges_of(model) for part in (a, b)}
    for i in new:
        _refuse(names[i] == model.get("unk_token"), i, names[i], "what unknown words become")
        _refuse(names[i] in letters, i, names[i], _BYTE)
        _refuse(bool(model.get("byte_fallback") and BYTE_TOKEN.fullmatch(names[i])), i, names[i], _BYTE)
        _refuse(names[i] in parts, i, names[i], "a part that other tokens are merged from")


def _flags(token: AddedToken) -> dict[str, bool]:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {name: getattr(token, name) for name in names}


def _rename_in_processor(processor: Any, names: Mapping[str, str]) -> None:
    if processor is None:
        return
    for inner in processor.get("processors", []):
        _rename_in_processor(inner, names)
    for role in ("sep", "cls"):
        if role in processor:
            processor[role][0] = names.get(processor[role][0], processor[role][0])
    for template in ("single", "pair"):
        for step in processor.get(template) or ():
            special = step.get("SpecialToken") if isinstance(step, dict) else None
            if special:
                special["id"] = names.get(special["id"], special["id"])
    for name, special in list((processor.get("special_tokens") or {}).items()):
        if name in names:
            del processor["special_tokens"][name]
            told = {**special, "id": names[name], "tokens": [names.get(t, t) for t in special["tokens"]]}
            processor["special_tokens"][names[name]] = told


def _rename_in_python(tokenizer: Any, new: Mapping[str, AddedToken]) -> None:
    """Renames what a tokenizer keeps beside its backend: lists of special tokens, and chat templates."""

    def kept(tokens: list[Any]) -> list[Any]:
        renamed = (new.get(str(token), token) for token in tokens)
        return [t for t in renamed if not (isinstance(t, AddedToken) and str(t) in plain and not t.special)]

    plain = {str(token) for token in new.values()}
    if "_extra_special_tokens" in vars(tokenizer):
        tokenizer._extra_special_tokens = kept(tokenizer._extra_special_tokens)
    for key in ("extra_special_tokens", "additional_special_tokens"):
        if isinstance(tokenizer.init_kwargs.get(key), list):
            tokenizer.init_kwargs[key] = kept(tokenizer.init_kwargs[key])
    tokenizer.init_kwargs.pop("added_tokens_decoder", None)  # of before; it is read from the tokens instead
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, str):
        tokenizer.chat_template = _renamed_text(template, new)
    elif isinstance(template, dict):
        tokenizer.chat_template = {name: _renamed_text(text, new) for name, text in template.items()}


def _renamed_text(text: str, new: Mapping[str, AddedToken]) -> str:
    for name in sorted(new, key=len, reverse=True):
        text = text.replace(name, str(new[name]))
    return text


_USER_DEFINED = 4
"""A piece of SentencePiece that a text is always split at."""
_folder: list[tempfile.TemporaryDirectory[str]] = []


def _rename_pieces(tokenizer: Any, new: Mapping[int, AddedToken], names: Sequence[str]) -> None:
    """Renames pieces in the SentencePiece model of a slow tokenizer and in the file that it is saved from."""
    from transformers.convert_slow_tokenizer import import_protobuf

    proto_class = import_protobuf().ModelProto
    offset = _offset(tokenizer, new, names)

    def renamed(data: bytes) -> bytes:
        proto = proto_class.FromString(data)
        for i, token in new.items():
            piece = proto.pieces[i - offset]
            piece.piece, piece.type = str(token), _USER_DEFINED
        return proto.SerializeToString()

    file = Path(tokenizer.vocab_file)
    data = renamed(file.read_bytes())
    tokenizer.sp_model.LoadFromSerializedProto(renamed(tokenizer.sp_model.serialized_model_proto()))
    if not _folder:
        _folder.append(tempfile.TemporaryDirectory(prefix="hf_embinit_"))  # until the process ends
    copy = Path(tempfile.mkdtemp(dir=_folder[0].name)) / file.name
    copy.write_bytes(data)
    tokenizer.vocab_file = str(copy)
    for i, token in new.items():
        for name in [n for n, index in tokenizer._added_tokens_encoder.items() if index == i]:
            del tokenizer._added_tokens_encoder[name]
        tokenizer._added_tokens_decoder[i] = token
        tokenizer._added_tokens_encoder[str(token)] = i
        if token.special:
            tokenizer._extra_special_tokens.append(token)
    tokenizer.tokens_trie = type(tokenizer.tokens_trie)()
    tokenizer._update_trie()


def _offset(tokenizer: Any, new: Mapping[int, AddedToken], names: Sequence[str]) -> int:
    """What to take from an id to have the piece's place in the SentencePiece model."""
    offsets = {i - tokenizer.sp_model.piece_to_id(names[i]) for i in new}
    pieces = all(
        tokenizer.sp_model.id_to_piece(tokenizer.sp_model.piece_to_id(names[i])) == names[i] for i in new
    )
    if not pieces or len(offsets) != 1:
        i = next(iter(new))
        _refuse(True, i, names[i], f"no piece of the SentencePiece model of this {type(tokenizer).__name__}")
    return offsets.pop()
