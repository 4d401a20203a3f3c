"""`Request`: how the rows of a patched model are made, and which rows a resize may cut off."""

from __future__ import annotations

import copy
import difflib
import logging
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import nn
from transformers import PreTrainedModel

from ..errors import InvalidArgumentError, UnsupportedModelError, VocabularyWarning
from ..resize import resize
from ..rows import RowRequest, make_rows
from ..tables import EmbeddingTables, ResizePlan, Side
from ..tokens import copy_tokenizer, vocabulary

logger = logging.getLogger(__name__)

_HERE = __name__.rpartition(".")[0]

_SHARED_OPTIONS = ("vectors", "overrides", "exclude_rows")
"""What every initialiser of new rows takes, see `RowRequest`; the other options are the initialiser's own."""


Shrink = Literal["refuse", "allow"]
"""What a resize to fewer rows does."""

_PADDED_TO = 64
"""A table with a multiple of this many rows counts as padded, as those of Qwen, OLMo and T5 are."""


class Request:
    """How rows are made, for one model or (`patched`) for each model of the block."""

    def __init__(self, init: str, tokenizer: Any, seed: int, shrink: Shrink, options: Mapping[str, Any]):
        if shrink not in ("refuse", "allow"):
            raise InvalidArgumentError(f"shrink={shrink!r}: expected 'refuse' or 'allow'")
        self.shrink = shrink
        shared = {name: options[name] for name in _SHARED_OPTIONS if name in options}
        own = {name: value for name, value in options.items() if name not in _SHARED_OPTIONS}
        self.rows = RowRequest(init, seed, own, tokenizer, copy_tokenizer(tokenizer), **shared)
        self.makes_tables = self.rows.record.purpose == "table"

        tokens = {token for token in self.rows.overrides or () if isinstance(token, str)}
        if tokens and tokenizer is None:
            raise InvalidArgumentError(f"overrides names {min(tokens)!r}: give tokenizer= to look it up")
        self.seen: dict[Side, dict[int, frozenset[bytes]]] = {}
        """Of each side rows that had no token when it was last looked at -> digests of what they were."""
        self.copies: dict[Side, Any] = {}
        """Of each side the tokenizer when rows were last filled; before that `rows.old_tokenizer`."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Request:
        return copy.copy(self)  # a copied model reads the same tokenizer, and remembers what it filled itself

    def look_at(self, tables: EmbeddingTables, *sides: Side) -> None:
        """Remembers the rows that no token has yet: those that change before a token has them are trained."""
        if self.rows.tokenizer is None or not all(map(tables.has_values, tables.tables)):
            return
        for side in sides or {t.side for t in tables.tables}:
            known = _tokens(self.rows.tokenizer, side)
            free = [i for i in range(tables.vocab_size(side)) if i not in known]
            self.seen = {**self.seen, side: tables.digests(side, free)}  # a copied request keeps its own

    def resize(self, owner: PreTrainedModel, tables: EmbeddingTables, plan: ResizePlan) -> None:
        """Carries out `plan`, asked of `owner`; fills what is new and records the event."""
        if reason := self._would_lose(plan):
            _warn(
                f"the tables keep their {plan.old_num} rows, though {plan.new_num} were asked for: {reason}; "
                f"patch(shrink='allow') cuts them off"
            )
            plan = replace(tables.plan(side=plan.side), asked=plan.asked)
        ids = self._ids(tables, plan)
        old = self._old_tokenizer(plan, ids)
        overrides = self._overrides(ids)
        used = [self.rows.record, *(self.rows.others[token][0] for token in overrides.values())]
        request = replace(
            self.rows,
            old_tokenizer=old,
            overrides={i: (self.rows.overrides or {})[token] for i, token in overrides.items()},
            vectors=self.rows.vectors if any("vectors" in record.needs for record in used) else None,
            split={},
        )
        sized = {} if plan.side == "target" else {"vocab_size": plan.new_num}  # as transformers leaves it

        def then() -> None:
            owner.__dict__.update(sized)

        report = resize(tables, plan, request, None if ids == list(plan.new_ids) else ids, then)
        if report is not None and self.rows.tokenizer is not None:
            self.copies = {**self.copies, plan.side: copy_tokenizer(self.rows.tokenizer)}
            self.look_at(tables, plan.side)

    def _would_lose(self, plan: ResizePlan) -> str:
        """Why a resize to fewer rows is not done; empty when it may be."""
        if self.shrink == "allow" or plan.new_num >= plan.old_num:
            return ""
        known = {} if self.rows.tokenizer is None else _tokens(self.rows.tokenizer, plan.side)
        if named := [i for i in known if plan.new_num <= i < plan.old_num]:
            return f"the tokenizer has {len(named)} tokens beyond"
        if plan.old_num % _PADDED_TO == 0:
            return "a multiple of 64 is a padded size, which adapters, merges and servers count on"
        return ""

    def _ids(self, tables: EmbeddingTables, plan: ResizePlan) -> list[int]:
        """Rows to fill: the new ones, and padding rows of tokens that were added since the patch.

        A row that `look_at` did not see, or that differs from what it saw, may be trained, and stays.
        """
        ids = set(plan.new_ids)
        if self.rows.tokenizer is not None:
            added = sorted(self.added(plan.side))
            reached = [i for i in added if i < min(plan.old_num, plan.new_num)]
            digests = tables.digests(plan.side, reached)
            seen = self.seen.get(plan.side, digests)
            changed = [i for i in reached if not seen.get(i, frozenset()) & digests[i]]
            if changed:
                names = self.rows.tokenizer.convert_ids_to_tokens(changed[:5])
                logger.warning(
                    "the rows of %d new tokens (%s) stay as they are: they have changed since patch, or came "
                    "after it, and may be trained; patch before adding tokens to have such rows initialised",
                    len(changed),
                    ", ".join(map(repr, names)),
                )
            ids.update(set(reached) - set(changed))
        return sorted(ids)

    def added(self, side: Side) -> set[int]:
        """Ids of tokens that came since rows of a side were last filled, or since the patch."""
        copied = self.copies.get(side, self.rows.old_tokenizer)
        return _tokens(self.rows.tokenizer, side).keys() - _tokens(copied, side).keys()

    def _old_tokenizer(self, plan: ResizePlan, ids: list[int]) -> Any:
        """The tokenizer without the tokens of the rows to fill: the copy, unless it has changed otherwise."""
        copied = self.copies.get(plan.side, self.rows.old_tokenizer)
        if copied is None or not ids:
            return copied
        tokens = _tokens(self.rows.tokenizer, plan.side)
        without = {*ids, *(i for i in tokens if i >= plan.old_num)}
        old = {i: token for i, token in tokens.items() if i not in without}
        if _tokens(copied, plan.side) == old:
            return copied
        anew = copy_tokenizer(self.rows.tokenizer, without)
        return anew if _tokens(anew, plan.side) == old else copied

    def _overrides(self, ids: list[int]) -> dict[int, str | int]:
        """For rows filled now what `overrides` calls them; warns of tokens that the tokenizer lacks."""
        chosen: dict[int, str | int] = {}
        filled = set(ids)
        known = self.rows.tokenizer.get_vocab() if self.rows.overrides and self.rows.tokenizer else {}
        for token in self.rows.overrides or {}:
            index = known.get(token) if isinstance(token, str) else int(token)
            if index is None:
                near = difflib.get_close_matches(str(token), self._new_names(), n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                _warn(f"overrides names {token!r}, which the tokenizer does not have{hint}")
            elif index in filled:
                chosen[index] = token
        return chosen

    def _new_names(self) -> list[str]:
        """Tokens added since the patch."""
        return sorted(set(vocabulary(self.rows.tokenizer)) - set(vocabulary(self.rows.old_tokenizer)))

    def make_tables(self, root: PreTrainedModel) -> None:
        """Fills all input tables and records it, if the initialiser makes whole tables."""
        from ..initialization import initialize

        if self.makes_tables:
            r = self.rows
            initialize(root, r.init, tokenizer=r.tokenizer, vectors=r.vectors, seed=r.seed, **r.options)

    def make_table(self, root: PreTrainedModel, module: nn.Module) -> None:
        """Fills the input table of one module, if the initialiser makes whole tables and `module` holds one.

        The draws are those of `initialize`: all tables are made, in their order, and one is written.
        """
        if not self.makes_tables:
            return
        tables = EmbeddingTables(root)
        own = [t for t in tables.input_tables if any(p.module is module for p in t.tied.locations)]
        if own:
            tables.change(None, [made for made in make_rows(tables, self.rows) if made.table in own])


def _warn(message: str) -> None:
    """Warns at the line that asked for the resize: there are more calls between with `patched`."""
    level = 1
    while sys._getframe(level - 1).f_globals.get("__name__", "").startswith(_HERE):
        level += 1
    warnings.warn(message, VocabularyWarning, stacklevel=level)


def _tokens(tokenizer: Any, side: Side) -> dict[int, str]:
    """The tokens of a tokenizer by id."""
    return {i: token for i, token in enumerate(vocabulary(tokenizer, side)) if token}


def only_side(tables: EmbeddingTables) -> Side:
    sides = {t.side for t in tables.tables}
    if len(sides) > 1:
        raise UnsupportedModelError(
            f"{type(tables.model).__name__} has two vocabularies: call resize_token_embeddings of the part "
            f"that is to grow, such as model.get_encoder() or model.decoder"
        )
    return next(iter(sides))


def side_of(owner: PreTrainedModel, tables: EmbeddingTables) -> Side | None:
    """The side whose input table is inside `owner`; None when it holds none of them, or both."""
    modules = set(owner.modules())
    sides = {t.side for t in tables.input_tables if any(p.module in modules for p in t.tied.locations)}
    if len(sides) == 2 and hasattr(type(owner), "resize_decoder_token_embeddings"):
        return "source"
    return next(iter(sides)) if len(sides) == 1 else None
