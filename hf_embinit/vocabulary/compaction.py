"""A `tokenizer.json` with fewer tokens and consecutive ids, that splits texts of kept tokens as before."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from ..errors import InvalidArgumentError
from ..tokens import tokenizer_of
from .id_fields import chat_templates


def required_ids(holder: Any, keep: set[int], special: set[int]) -> dict[str, set[int]]:
    """Ids that must stay with `keep`, by reason. `holder` is the tokenizer or a processor with it, `special`
    are those that the model's configuration names.

    BPE reaches a token through merges, so all tokens that any merge builds a kept token from stay: then every
    merge of a text whose tokens are kept is still there, in the same order. Greedy longest match
    (WordPiece) and the best path (Unigram) need nothing more, since dropping other pieces cannot beat the
    choice that was made.
    """
    tokenizer = tokenizer_of(holder)
    spec = _spec(tokenizer)
    model = spec["model"]
    vocabulary = _vocabulary(model)
    everything = set(tokenizer.get_vocab().values())
    added = {t["id"] for t in spec["added_tokens"] if t["special"]}
    found = {"special": (added | set(tokenizer.all_special_ids) | special) & everything}
    templates = chat_templates(holder)
    written = (t["id"] for t in spec["added_tokens"] if any(t["content"] in text for text in templates))
    found["template"] = set(written) & everything
    unknown = model.get("unk_token")
    if model["type"] == "Unigram":
        scores = [score for _, score in model["vocab"]]
        found["unknown"] = {
            scores.index(min(scores))
        }  # the unknown token's score follows from the lowest one
        if model["unk_id"] is not None:
            found["unknown"].add(model["unk_id"])
    elif unknown in vocabulary:
        found["unknown"] = {vocabulary[unknown]}
    if spec.get("padding"):
        found["padding"] = {spec["padding"]["pad_id"]} & everything
    found["processor"] = set(added_by(spec.get("post_processor"))) & everything
    letters = ByteLevel.alphabet() if "ByteLevel" in json.dumps(spec["pre_tokenizer"]) else []
    hexes = [f"<0x{b:02X}>" for b in range(256)] if model.get("byte_fallback") else []
    found["alphabet"] = {vocabulary[a] for a in [*letters, *hexes] if a in vocabulary}
    if model["type"] == "BPE":
        found["merges"] = _merged_from(model, vocabulary, keep.union(*found.values()))
    return found


def compact_tokenizer(tokenizer: Any, new_id: dict[int, int]) -> Tokenizer:
    """The backend of a tokenizer with the ids that `new_id` maps, under their new ids.

    Raises `InvalidArgumentError` for tokenizers that keep no `tokenizer.json`, and where the new ids
    cannot be had because added tokens lie between those of the vocabulary.
    """
    spec = _spec(tokenizer)
    model = spec["model"]
    old = _vocabulary(model)
    if model["type"] == "Unigram":
        model["vocab"] = [entry for i, entry in enumerate(model["vocab"]) if i in new_id]
        if model["unk_id"] is not None:
            model["unk_id"] = new_id[model["unk_id"]]
    else:
        model["vocab"] = {token: new_id[i] for token, i in old.items() if i in new_id}
    if model["type"] == "BPE":
        kept = model["vocab"].keys()
        model["merges"] = [[a, b] for a, b, made in merges_of(model) if {a, b, made} <= kept]
    spec["added_tokens"] = [{**t, "id": new_id[t["id"]]} for t in spec["added_tokens"] if t["id"] in new_id]
    if spec.get("padding"):
        spec["padding"]["pad_id"] = new_id.get(spec["padding"]["pad_id"], 0)
    _renumber_post_processor(spec.get("post_processor"), new_id)
    compacted = Tokenizer.from_str(json.dumps(spec))
    expected = {token: new_id[i] for token, i in tokenizer.get_vocab().items() if i in new_id}
    if compacted.get_vocab(with_added_tokens=True) != expected:
        raise InvalidArgumentError(
            f"the ids of this {type(tokenizer).__name__} cannot be made consecutive: added tokens lie "
            f"between those of its vocabulary"
        )
    return compacted


def _spec(tokenizer: Any) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise InvalidArgumentError(
            f"a {type(tokenizer).__name__} keeps its vocabulary in no tokenizer.json, so it cannot be pruned"
        )
    return json.loads(backend.to_str())


def _vocabulary(model: dict[str, Any]) -> dict[str, int]:
    if model["type"] == "Unigram":
        return {piece: i for i, (piece, _) in enumerate(model["vocab"])}
    return model["vocab"]


def merges_of(model: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The merges of BPE in their order: two parts and the token that they make. Other models have none."""
    prefix = model.get("continuing_subword_prefix") or ""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or ())
    return [(a, b, a + b.removeprefix(prefix)) for a, b in pairs]


def _merged_from(model: dict[str, Any], vocabulary: dict[str, int], keep: set[int]) -> set[int]:
    """The ids that merges build `keep` from, directly or not."""
    parts: dict[int, set[int]] = defaultdict(set)
    for a, b, made in merges_of(model):
        parts[vocabulary[made]] |= {vocabulary[a], vocabulary[b]}
    pieces: set[int] = set()
    todo = set(keep)
    while todo:
        new = parts[todo.pop()] - pieces
        pieces |= new
        todo |= new
    return pieces


def added_by(processor: dict[str, Any] | None) -> Iterator[int]:
    """The ids that a post-processor adds to each text."""
    if processor is None:
        return
    for inner in processor.get("processors", []):
        yield from added_by(inner)
    for special in (processor.get("special_tokens") or {}).values():
        yield from special["ids"]
    yield from (processor[role][1] for role in ("sep", "cls") if role in processor)


def _renumber_post_processor(processor: dict[str, Any] | None, new_id: dict[int, int]) -> None:
    if processor is None:
        return
    for inner in processor.get("processors", []):
        _renumber_post_processor(inner, new_id)
    for special in (processor.get("special_tokens") or {}).values():
        special["ids"] = [new_id[i] for i in special["ids"]]
    for role in ("sep", "cls"):
        if role in processor:
            token, i = processor[role]
            processor[role] = [token, new_id[i]]
