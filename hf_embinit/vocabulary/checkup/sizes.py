"""Checks of sizes and ids: tables, configurations, tokenizer, and the programs that serve a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..id_fields import id_fields, unnamed_ids
from ..new_ids import NAME_THEM, rows_beyond
from .case import ROLES, Case
from .finding import Finding


def config_size(case: Case) -> Iterator[Finding]:
    """The configuration says another number of rows than the tables have."""
    said = vars(case.model.config.get_text_config()).get("vocab_size")
    if isinstance(said, int) and said != case.size and not case.two_vocabularies:
        yield Finding(
            "error",
            "config_size",
            f"config.vocab_size is {said}, but the tables have {case.size} rows",
            f"Set it to {case.size}: servers and a reload go by it",
        )


def nested_configs(case: Case) -> Iterator[Finding]:
    """A configuration and the one of the text model inside it say different things."""
    config = case.model.config
    inner = config.get_text_config()
    for key in ("vocab_size", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id"):
        here, there = vars(config).get(key), vars(inner).get(key)
        if inner is not config and here is not None and there is not None and here != there:
            yield Finding(
                "error" if key == "vocab_size" else "note",
                "nested_configs_disagree",
                f"config.{key} is {here}, but that of the {type(inner).__name__} inside it is {there}",
                "Set both to the same",
            )


def configured_ids(case: Case) -> Iterator[Finding]:
    """A configuration names an id that has no row."""
    rows = case.size + rows_beyond(case.tables)
    for field in id_fields(case.tables, case.size):
        beyond = sorted(i for i in field.ids if i >= rows)
        if beyond:
            yield Finding(
                "error",
                "configured_id_beyond_rows",
                f"{type(field.holder).__name__}.{field.name} is {beyond[0]}, but there are {case.size} rows",
                "Set it to the tokenizer's id, or to None",
            )


def named_ids(case: Case) -> Iterator[Finding]:
    """A tokenizer keeps ids in Python that none of its tokens has."""
    fields: dict[str, list[int]] = {}
    for field, i in (
        unnamed_ids(case.tokenizer) if isinstance(case.tokenizer, PreTrainedTokenizerBase) else ()
    ):
        fields.setdefault(field, []).append(i)
    for field, ids in fields.items():
        yield Finding(
            "warning",
            "id_without_token",
            f"{field} names {len(ids)} ids that the tokenizer has no token for, such as {ids[0]}: new tokens "
            f"would get their rows",
            NAME_THEM[0].upper() + NAME_THEM[1:],
        )


def generation_config(case: Case) -> Iterator[Finding]:
    """Generation stops, starts or pads by other ids than the model's configuration says."""
    generation = getattr(case.model, "generation_config", None)
    for role in ("pad", "bos", "eos"):
        here = _listed(getattr(case.model.config.get_text_config(), f"{role}_token_id", None))
        there = _listed(getattr(generation, f"{role}_token_id", None))
        if here and there and not here & there:
            yield Finding(
                "warning",
                "generation_config_disagrees",
                f"{role}_token_id is {_shown(there)} in generation_config and {_shown(here)} in config",
                "Set both to the id that the model was trained with; generate() goes by generation_config",
            )


def tokenizer_size(case: Case) -> Iterator[Finding]:
    """The tokenizer has more ids than there are rows, or fewer."""
    if case.names is None:
        return
    highest = max(case.names, default=-1)
    if case.size <= highest < case.size + rows_beyond(case.tables):
        return
    if highest >= case.size:
        yield Finding(
            "error",
            "ids_beyond_rows",
            f"the tokenizer has ids up to {highest}, but there are {case.size} rows: "
            f"{highest + 1 - case.size} too few",
            "Resize the model (hf_embinit.patch, expand_vocabulary), or take its own tokenizer",
        )
    elif case.size > highest + 1:
        yield Finding(
            "note",
            "rows_beyond_tokenizer",
            f"{case.size - highest - 1} rows lie beyond the tokenizer's {highest + 1} ids",
            "Padding is harmless; do not shrink to len(tokenizer) before merging an adapter",
        )


def special_ids(case: Case) -> Iterator[Finding]:
    """Tokenizer and configurations give a role to different tokens."""
    generation = getattr(case.model, "generation_config", None)
    for role in ROLES:
        own = getattr(case.tokenizer, f"{role}_token_id", None)
        told = getattr(case.model.config.get_text_config(), f"{role}_token_id", None)
        known = _listed(told) | _listed(getattr(generation, f"{role}_token_id", None))
        if own is not None and told is not None and own not in known:
            yield Finding(
                "warning",
                "special_id_differs",
                f"{role}_token_id is {own} in the tokenizer and {_shown(known)} in the config",
                "Set both to the id that the model was trained with",
            )


def server_sizes(case: Case) -> Iterator[Finding]:
    """vLLM and llama.cpp would refuse the checkpoint for its sizes."""
    said = vars(case.model.config.get_text_config()).get("vocab_size")
    if case.two_vocabularies or not isinstance(said, int) or not case.tables.output_tables:
        return
    sizes = [t.num_embeddings - max(t.extra_rows, 0) for t in case.tables.tables if t.role != "per_layer"]
    problems = server_problems(sizes, said, max(case.names or [-1]))
    if problems:
        yield Finding(
            "error",
            "server_refuses_size",
            f"this cannot be served: {'; '.join(problems)}",
            "Give every table and config.vocab_size one size, above the tokenizer's highest id",
        )


def server_problems(rows: Sequence[int], vocab_size: int, highest_id: int) -> list[str]:
    """What servers say to tables of so many `rows`, restated from their code.

    vLLM's `VocabParallelEmbedding` asserts that a table that it loads has `config.vocab_size` rows (it pads
    its own copy). llama.cpp's converter asserts that all ids of the tokenizer lie below `vocab_size`, writes
    one token for each of them, and the program then checks the shape of `token_embd` and `output` against it.
    """
    found = []
    if wrong := sorted({n for n in rows if n != vocab_size}):
        found.append(
            f"vLLM asserts rows == vocab_size and llama.cpp checks shapes by it, but {_shown(set(wrong))} "
            f"rows stand beside vocab_size={vocab_size}"
        )
    if highest_id >= vocab_size:
        found.append(f"llama.cpp's converter asserts {highest_id} < vocab_size={vocab_size}")
    return found


def _listed(ids: Any) -> set[int]:
    if ids is None:
        return set()
    return set(ids) if isinstance(ids, (list, tuple)) else {ids}


def _shown(ids: set[int]) -> str:
    return ", ".join(map(str, sorted(ids)))


CHECKS = [
    config_size,
    nested_configs,
    configured_ids,
    named_ids,
    generation_config,
    tokenizer_size,
    special_ids,
    server_sizes,
]
