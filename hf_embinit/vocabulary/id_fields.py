"""Every place beside the tables where a model and its tokenizer keep token ids."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel

from ..errors import UnsupportedModelError
from ..tables import EmbeddingTables
from ..tokens import tokenizer_of

_ID_NAME = re.compile(
    r"(_token_ids?|_token_index|(^|_)(bos|eos|pad|unk|mask|sep|cls)_index"
    r"|^(query|document)_prefix_id"
    r"|^(im|image|slice|newline)_?(start|end|newline|patch)?_id"
    r"|_?lang(_to)?_code(_to)?_id|^(lang|task)_to_id|^vocabulary_map"
    r"|^(begin_)?suppress_tokens|^(bad|force)_words_ids|^forced_decoder_ids|^sequence_bias)$"
)
_OTHER_VOCABULARY = re.compile(r"^(codec|tts_codec|codebook|audio_stream|t2u|vocoder|tag|subs)_")
"""Ids of audio codes, speech units and markup tags, which are no text tokens."""

_OF_TOKENIZERS = (
    *("cur_lang_code", "cur_lang_code_id", "cur_lang_id", "prefix_tokens", "suffix_tokens"),
    *("lang_code_to_id", "id_to_lang_code", "lang_token_to_id"),
    *("fairseq_tokens_to_ids", "fairseq_ids_to_tokens"),
)
"""What tokenizers of many languages keep in Python, beside their `tokenizer.json`."""
_TALKER = re.compile(r"_talker(_text)?$")
_OF_PROCESSORS = re.compile(r"_ids?$")
"""What processors keep of tokens that stand for images and sounds: `image_token_id`, `image_ids`."""

_TEXT_OF_TALKERS = re.compile(
    r"^((tts_text_(start|end|pad)|(audio|image|video|vision)(_start|_end)?)_token_(id|index)"
    r"|text_(bos|eos|pad)_token)$"
)
"""Ids of text tokens that Qwen's talkers, whose own vocabulary is of audio codes, keep all the same."""

_ENDS_AT_HIGHEST = ("owlvit_text_model", "owlv2_text_model", "sam3_lite_text_text_model")
"""Their code takes the highest id of a text for its end, whatever a configuration says."""
_HIGHEST_IS_EOS = ("clip_text_model", "clipseg_text_model", "groupvit_text_model", "xclip_text_model")
"""Their code takes the highest id of a text for its end when `eos_token_id` is 2, as old checkpoints say."""


def is_id_field(name: str) -> bool:
    """Whether a field of a configuration with this name holds ids of text tokens."""
    return bool(_ID_NAME.search(name)) and not _OTHER_VOCABULARY.search(name)


@dataclass
class IdField:
    """One attribute that holds token ids: a number, or numbers in lists and dictionaries."""

    holder: Any
    name: str

    @property
    def value(self) -> Any:
        """What it holds now."""
        return vars(self.holder)[self.name]

    @property
    def ids(self) -> set[int]:
        """The ids that it names."""
        seen: set[int] = set()

        def see(i: int) -> int:
            seen.add(i)
            return i

        _mapped(self.name, self.value, see)
        return seen

    def renumber(self, new_id: Mapping[int, int]) -> None:
        """Puts new ids in the place of old ones; numbers that are no id of the vocabulary stay."""
        setattr(self.holder, self.name, _mapped(self.name, self.value, lambda i: new_id.get(i, i)))


def id_fields(tables: EmbeddingTables, rows: int) -> list[IdField]:
    """Fields with ids of the vocabulary of `rows`: of all configurations, nested ones too, of modules, and of
    the modules around a model (a CrossEncoder's `LogitScore` scores by the ids of "yes" and "no").

    A part with a `vocab_size` of its own that is another has another vocabulary: its fields are left out.
    """
    model = tables.model
    inside = set(map(id, model.modules()))
    holders: dict[int, Any] = {id(one): one for one in tables.outer.modules() if id(one) not in inside}
    talkers: list[Any] = []
    skipped: list[str] = []
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        config = config if isinstance(config, PretrainedConfig) else None
        if path.startswith(tuple(skipped)):
            continue
        if path and config is not None and _is_of_another(config, rows):
            skipped.append(f"{path}.")
            if _TALKER.search(config.model_type):
                talkers += [module, config]
            continue
        holders[id(module)] = module
        for one in _configs(config, rows) if config is not None else ():
            holders[id(one)] = one
        generation = vars(module).get("generation_config")
        if isinstance(generation, GenerationConfig):
            holders[id(generation)] = generation
    found = [
        IdField(holder, name)
        for holder in holders.values()
        for name, value in vars(holder).items()
        if value is not None and is_id_field(name) and not isinstance(value, bool)
    ]
    return found + [
        IdField(holder, name)
        for holder in talkers
        for name, value in vars(holder).items()
        if _TEXT_OF_TALKERS.search(name) and _are_ids(value)
    ]


def tokenizer_id_fields(tokenizer: Any) -> list[IdField]:
    """Fields with ids that a tokenizer keeps in Python, or a processor and the tokenizer in it."""
    inner = tokenizer_of(tokenizer)
    found = [IdField(inner, name) for name in _OF_TOKENIZERS if vars(inner).get(name) is not None]
    if inner is not tokenizer:
        found += [
            IdField(tokenizer, name)
            for name, value in vars(tokenizer).items()
            if _OF_PROCESSORS.search(name) and not _OTHER_VOCABULARY.search(name) and _are_ids(value)
        ]
    return found


def unnamed_ids(tokenizer: Any) -> Iterator[tuple[str, int]]:
    """Fields of a tokenizer and ids in them that are of no token: M2M100's languages, unless its files list
    them as tokens."""
    fields = tokenizer_id_fields(tokenizer)
    named = {*tokenizer_of(tokenizer).get_vocab().values()} if fields else set()
    for field in fields:
        for i in sorted(field.ids - named):
            yield f"{type(field.holder).__name__}.{field.name}", i


def _are_ids(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_are_ids, value))
    return isinstance(value, int) and not isinstance(value, bool)


def skipped_words(tables: EmbeddingTables) -> set[str]:
    """Tokens that a module around a model tells by name: those that a ColBERT does not score."""
    lists = (getattr(module, "skiplist_words", None) for module in tables.outer.modules())
    return {word for words in lists for word in words or ()}


def find_skipped_words(tables: EmbeddingTables, tokenizer: Any) -> None:
    """Has modules around a model look the tokens of `skipped_words` up in a tokenizer that changed."""
    for module in tables.outer.modules():
        words: Any = getattr(module, "skiplist_words", None)
        if hasattr(module, "resolve_with_tokenizer"):
            module.resolve_with_tokenizer(tokenizer)  # type: ignore[operator]
        elif words is not None and hasattr(module, "skiplist"):  # PyLate's ColBERT
            module.skiplist = tokenizer.convert_tokens_to_ids(list(words))


def ends_at_highest_id(model: PreTrainedModel) -> Iterator[tuple[str, bool]]:
    """Names of the modules that take the highest id of a text for its end, and whether another
    `eos_token_id` would change that, as in CLIP's older checkpoints."""
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        kind = getattr(config, "model_type", None)
        if kind in _HIGHEST_IS_EOS and getattr(module, "eos_token_id", None) == 2:
            yield name, True
        elif kind in _ENDS_AT_HIGHEST and hasattr(module, "final_layer_norm"):
            yield name, False


def _in_code(model: PreTrainedModel) -> tuple[int, ...]:
    """Ids of single tokens that are numbers in a model's code."""
    kinds = {config.model_type for config in _configs(model.config, None)}
    return (101, 102, 1012, 1029) if kinds & {"grounding-dino", "mm-grounding-dino"} else ()


def chat_templates(holder: Any) -> list[str]:
    """The texts of the chat templates of a tokenizer, or of a processor and its tokenizer."""
    found: list[str] = []
    for one in {id(one): one for one in (holder, tokenizer_of(holder))}.values():
        template = getattr(one, "chat_template", None)
        found += template.values() if isinstance(template, dict) else [template] if template else []
    return found


def refuse_shifted_ids(model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` for Bark's text, which is looked up at its id and an offset."""
    if model.config.model_type in ("bark", "semantic"):
        raise UnsupportedModelError(
            f"{type(model).__name__} looks text up at its id plus text_encoding_offset, beside the codes of "
            f"audio in the same table: its vocabulary cannot be changed"
        )


def id_before_times(model: PreTrainedModel) -> int | None:
    """The id behind which Whisper reads each one as a time; None for other models."""
    found = getattr(getattr(model, "generation_config", None), "no_timestamps_token_id", None)
    return found if isinstance(found, int) else None


def named_by_number(model: PreTrainedModel, tokenizer: Any) -> set[int]:
    """Ids that a model's code finds by their place among all ids, so that they must stay.

    Whisper reads every id behind `no_timestamps_token_id` as a time. CLIP's older checkpoints and OWL-ViT end
    a text at its highest id. Grounding DINO divides a text at four. Raises `UnsupportedModelError` for Gemma
    3n, whose code divides ids at fixed numbers, and for Bark.
    """
    refuse_shifted_ids(model)
    found = set(_in_code(model))
    ids = set(tokenizer.get_vocab().values())
    last = id_before_times(model)
    if last is not None:
        found |= {i for i in ids if i >= last}
    if ids and any(True for _ in ends_at_highest_id(model)):
        found.add(max(ids))
    for config in _configs(model.config, None):
        if isinstance(vars(config).get("vocab_offset"), int):
            raise UnsupportedModelError(
                f"{type(model).__name__} tells text, image and audio apart at id {config.vocab_offset}, a "
                f"number in its code: its vocabulary cannot be pruned"
            )
    return found


def remake(model: PreTrainedModel, tokens: Mapping[int, str]) -> None:
    """Makes anew, after ids have moved, what modules and configurations have made of them. `tokens` are the
    texts of the new ids."""
    for module in model.modules():
        mapping: Any = vars(module).get("vocabulary_mapping")  # Chameleon's and Emu3's
        if mapping is not None and hasattr(mapping, "vocab_map"):
            config: Any = module.config
            vars(module)["vocabulary_mapping"] = type(mapping)(config.vocabulary_map)
    generation: Any = getattr(model, "generation_config", None)
    if isinstance(getattr(generation, "id_to_text", None), Mapping):  # SeamlessM4T's subwords
        generation.id_to_text = {str(i): text for i, text in sorted(tokens.items())}


def renumber(model: PreTrainedModel, fields: Iterable[IdField], new_id: Mapping[int, int]) -> None:
    """Renumbers the fields of a model and its tokenizer; what means something else by its number stays."""
    for field in fields:
        if not (_reads_highest_id(model, field) and field.value == 2):
            field.renumber(new_id)
    told = getattr(getattr(model, "generation_config", None), "id_to_text", None)
    texts = told if isinstance(told, Mapping) else {}
    remake(model, {new_id[int(i)]: text for i, text in texts.items() if int(i) in new_id})
    for config in _configs(model.config, None):
        if isinstance(
            vars(config).get("vocab_list"), (list, tuple)
        ):  # ESM: the tokens, in order of their ids
            old = config.vocab_list
            config.vocab_list = [old[i] for i in sorted(new_id, key=lambda i: new_id[i]) if i < len(old)]


def refuse_moved_meanings(
    tables: EmbeddingTables, rows: int, new_id: Mapping[int, int], way_out: str = "keep all tokens before it"
) -> None:
    """Raises `UnsupportedModelError` where a new number would mean something else to the model's code."""
    model = tables.model
    for i in _in_code(model):
        if new_id.get(i, i) != i:
            raise UnsupportedModelError(
                f"{type(model).__name__} finds where a text is divided by ids that are numbers in its code, "
                f"such as {i}, which would become {new_id[i]}: {way_out}"
            )
    for field in id_fields(tables, rows):
        value = field.value
        if not isinstance(value, int):
            continue
        if _reads_highest_id(model, field) and value != 2 and new_id.get(value) == 2:
            raise UnsupportedModelError(
                f"the end of a text would get id 2, by which {type(model).__name__} goes another way: keep "
                f"one token more"
            )
    for module in model.modules():
        pad = vars(module).get("padding_idx")
        if isinstance(pad, int) and new_id.get(pad, pad) != pad and _positions_from_padding(module):
            becomes = new_id[pad] if new_id[pad] >= 0 else "no token's"
            raise UnsupportedModelError(
                f"{type(model).__name__} makes positions from its padding id {pad}, which would become "
                f"{becomes}: {way_out}"
            )


def _reads_highest_id(model: PreTrainedModel, field: IdField) -> bool:
    if field.name != "eos_token_id" or isinstance(field.holder, GenerationConfig):
        return False
    holder = field.holder
    config = holder if isinstance(holder, PretrainedConfig) else getattr(holder, "config", model.config)
    return config.get_text_config().model_type in _HIGHEST_IS_EOS


def _positions_from_padding(module: nn.Module) -> bool:
    names = ("create_position_ids_from_input_ids", "make_positions")
    where = vars(sys.modules[type(module).__module__])
    if type(module).__module__.startswith("torch."):
        return False
    if "Position" in type(module).__name__:  # ProphetNet counts from it, XGLM has no position in its row
        return True
    return any(hasattr(module, name) or name in where for name in names)


def _configs(config: PretrainedConfig, rows: int | None) -> Iterator[PretrainedConfig]:
    """A configuration and those inside it, without those of another vocabulary than that of `rows`."""
    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig) and not (rows is not None and _is_of_another(value, rows)):
            yield from _configs(value, rows)


def _is_of_another(config: PretrainedConfig, rows: int) -> bool:
    size = vars(config.get_text_config()).get("vocab_size", vars(config).get("vocab_size"))
    return isinstance(size, int) and size != rows


def _mapped(name: str, value: Any, of: Callable[[int], int]) -> Any:
    """`value` with each id in it replaced; `name` tells lists of (position, id) and (ids, bias)."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return of(value) if value >= 0 else value
    if isinstance(value, Mapping):
        return {
            _mapped("", k, of) if isinstance(k, (int, tuple)) else k: v
            if isinstance(k, (int, tuple))
            else _mapped("", v, of)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        if name == "forced_decoder_ids":
            return [[position, _mapped("", one, of)] for position, one in value]
        if name == "sequence_bias":
            return [[_mapped("", ids, of), bias] for ids, bias in value]
        made = [_mapped("", one, of) for one in value]
        return tuple(made) if isinstance(value, tuple) else made
    return value
