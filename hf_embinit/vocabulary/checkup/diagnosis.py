"""`doctor` and `repair`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...arguments import FilePath, RowId, Seed, Tokenizer, checked
from ...errors import EmbinitError, InvalidArgumentError
from ...foreign import reason
from ...hub import hub_snapshot, load_pretrained_tokenizer, model_class
from ...resize import fill_report
from ...rows import RowRequest, make_rows
from ...tables import (
    INDEX,
    SMALL_FILES,
    WEIGHTS,
    EmbeddingTables,
    ResizePlan,
    RowsOf,
    Table,
    quiet_loading,
    unwrap,
)
from ...tokens import tokenizer_of
from ...vectors import has_tokenizer, is_static_embedding, read_weight_map
from ..carried_rows import bare_tables
from . import adapter, loading, rows, sizes, tokens
from .case import Case, case_of_files, files_of_tables
from .finding import SEVERITIES, Finding

CHECKS: list[Callable[[Case], Iterator[Finding]]] = [
    *sizes.CHECKS,
    *loading.CHECKS,
    *rows.CHECKS,
    *tokens.CHECKS,
]
_SMALL_FILES = (*SMALL_FILES, adapter.WEIGHTS, adapter.ROWS)
"""What a checkpoint or an adapter on the Hub is read from, beside weights."""


@checked
def doctor(
    model: nn.Module | FilePath,
    tokenizer: Tokenizer | None = None,
    *,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> list[Finding]:
    """What is wrong with a model and its tokenizer, worst first; empty when nothing was found.

    `model` is a model, an adapter's PEFT model, or the folder or Hub id of a checkpoint or an adapter, whose
    tokenizer is its own unless given. Of a folder the files are read, each table by itself, and of a Hub id
    only the files that hold tables; the model is built only where they do not tell enough. Files that cannot
    be loaded are a finding, too, and so is a pickle without `allow_pickle`. Changes nothing. Raises
    `DataNotFoundError` for a Hub id that is not to be had, `InvalidArgumentError` for anything else.
    """
    found: list[Finding] = []
    tokenizer = None if tokenizer is None else tokenizer_of(tokenizer)
    if isinstance(model, nn.Module):
        try:
            inner = unwrap(model)
            case: Any = Case(type(inner).__name__, inner, bare_tables(inner), tokenizer)
        except EmbinitError as error:
            found.append(_unsupported(error))
            case = None
    else:
        hub_id = None if Path(model).is_dir() else str(model)
        folder = Path(model) if hub_id is None else hub_snapshot(hub_id, _SMALL_FILES)
        tokenizer = _own_tokenizer(folder, found, trust_remote_code) if tokenizer is None else tokenizer
        case = _case_of_folder(folder, hub_id, tokenizer, found, trust_remote_code, allow_pickle)
    if case is not None:
        checks: Sequence[Any] = CHECKS if isinstance(case, Case) else adapter.CHECKS
        for check in checks:
            found += _findings(check, case)
    found = list(dict.fromkeys(found))  # what several checks cannot read is told once
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


@checked
def repair(
    model: Any,
    tokenizer: Tokenizer | None = None,
    rows: Sequence[RowId] | None = None,
    init: str = "mean",
    *,
    findings: Sequence[Finding] | None = None,
    seed: Seed = 0,
    vectors: Any = None,
    **options: Any,
) -> list[int]:
    """Refills rows by an initialiser for new rows, in place, and records it; gives their ids.

    `rows` are refilled in every table, those of `findings` in the table that each is about. By default these
    are the findings of `doctor` whose rows hold nothing: zero, NaN or infinite ones (`finding.refill`). Rows
    that are equal, far from all others or as near to the mean unused row as unused ones may be meant so, and
    trained ones may be among them: give their findings, and an `init` that tells rows apart (`mean_cov`). A
    table that was never loaded has nothing to be refilled by. `vectors` are for an `init` that reads
    pre-trained ones, as `load_vectors` takes them (`pretrained_map`). Other rows stay bit for bit. Raises
    `InvalidArgumentError` for rows that the model lacks, and for `rows` beside `findings`.
    """
    tables, tokenizer = EmbeddingTables(model), tokenizer_of(tokenizer)
    wanted = _wanted(tables, model, tokenizer, rows, findings)
    request = RowRequest(init, seed, options, tokenizer, tokenizer, vectors=vectors)
    changes: list[tuple[ResizePlan, list[RowsOf], dict[str, Any]]] = []
    for side in dict.fromkeys(table.side for table in tables.own_tables):
        plan = tables.plan(side=side)
        of_table = {id(t.tied): wanted.get(t.name, ()) for t in tables.own_tables if t.side == side}
        made: list[RowsOf] = []
        for ids in dict.fromkeys(ids for ids in of_table.values() if ids):
            together = make_rows(tables, request, plan, list(ids))
            made += [one for one in together if of_table.get(id(one.table.tied)) == ids]
        made += [_mended_bias(tables, t, wanted) for t in tables.of_side(side) if _biases_of(t, wanted)]
        if made:
            written = [
                {"name": t["name"], "side": side, "rows": t["rows"], "source": t["source"]}
                for t in fill_report(request, made)["tables"]
            ]
            refilled = sorted({row for one in made for row in (*one.ids, *one.bias_ids)})
            event = {"event": "repair", "init": init, "seed": seed, "options": options, "rows": refilled}
            told = {} if side == "shared" else {"side": side}  # of a bias alone no table says it
            changes.append((plan, made, {**event, **told, "tables": written}))
    for plan, made, event in changes:
        tables.change(plan, made, event=event)
    return sorted({row for _, _, event in changes for row in event["rows"]})


def _biases_of(table: Table, wanted: Mapping[str, Any]) -> list[str]:
    """The output biases of a table that are to be mended."""
    return [tied.name for tied in table.bias if tied.name in wanted]


def _mended_bias(tables: EmbeddingTables, table: Table, wanted: Mapping[str, tuple[int, ...]]) -> RowsOf:
    """The mean of the finite entries for each that is to be mended; the others as they are."""
    ids = sorted({row for name in _biases_of(table, wanted) for row in wanted[name]})
    values: list[Tensor | float] = []
    for tied, bias in zip(table.bias, tables.biases(table), strict=True):
        own = [row in wanted.get(tied.name, ()) for row in ids]
        mean = bias[bias.isfinite()].float().mean().nan_to_num()
        values.append(torch.where(torch.tensor(own, device=bias.device), mean.to(bias.dtype), bias[ids]))
    return RowsOf(table, (), biases=values, bias_ids=ids)


def _wanted(
    tables: EmbeddingTables,
    model: Any,
    tokenizer: Any,
    rows: Sequence[int] | None,
    findings: Sequence[Finding] | None,
) -> dict[str, tuple[int, ...]]:
    """The rows to refill of each table."""
    if rows is not None and findings is not None:
        raise InvalidArgumentError("rows= and findings= were both given: give one of them")
    size_of = {table.name: tables.vocab_size(table.side) for table in tables.own_tables}
    if rows is not None and len({table.side for table in tables.own_tables}) > 1:
        raise InvalidArgumentError(
            f"rows= does not say which of the two vocabularies of {type(tables.model).__name__} it is about: "
            f"give findings=, each of which names its table"
        )
    if findings is None and rows is None:
        findings = [finding for finding in doctor(model, tokenizer) if finding.refill]
    found: dict[str, set[int]] = {name: set(rows or ()) for name in size_of}
    for table in tables.output_tables:
        for tied in table.bias:
            size_of[tied.name] = tables.vocab_size(table.side)
            found[tied.name] = set()
    for finding in findings or ():
        if finding.rows and finding.table not in found:
            raise InvalidArgumentError(
                f"findings has one about {finding.table!r}, but this model's tables are {', '.join(found)}"
            )
        if finding.rows:
            found[finding.table].update(finding.rows)
    for name, ids in found.items():
        if ids and max(ids) >= size_of[name]:
            raise InvalidArgumentError(f"rows has {max(ids)}: expected ids from 0 to {size_of[name] - 1}")
    return {name: tuple(sorted(ids)) for name, ids in found.items() if ids}


def _findings(check: Callable[[Any], Iterator[Finding]], case: Any) -> list[Finding]:
    """What one check says; one that fails on what it reads says so."""
    try:
        return list(check(case))
    except EmbinitError as error:
        return [_unsupported(error)]
    except Exception as error:  # a strange tokenizer or configuration must not hide what the others find
        message = f"{check.__name__} could not be looked at: {reason(error)}"
        return [Finding("warning", "could_not_check", message, "The other lines hold")]


def _unsupported(error: EmbinitError) -> Finding:
    return Finding("error", "unsupported", str(error), "The tables cannot be looked at")


def _own_tokenizer(folder: Path, found: list[Finding], trust_remote_code: bool) -> Any:
    if not has_tokenizer(folder):
        if (folder / "config.json").is_file():
            message = f"{folder} has no tokenizer: its tokens and their rows were not looked at"
            found.append(Finding("note", "no_tokenizer", message, "Save the tokenizer there, too"))
        return None
    what = f"the tokenizer of {folder}"
    try:
        tokenizer = load_pretrained_tokenizer(str(folder), what, trust_remote_code=trust_remote_code)
    except EmbinitError as error:
        asks = not trust_remote_code and _asks_for_trust(error.__cause__)
        message, advice = _own_code(what) if asks else (str(error), "Save it again")
        found.append(Finding("error", "tokenizer_cannot_be_loaded", message, advice))
        return None
    found += _findings(tokens.loaded_otherwise, (folder, tokenizer))
    return tokenizer


def _case_of_folder(
    folder: Path,
    hub_id: str | None,
    tokenizer: Any,
    found: list[Finding],
    trust_remote_code: bool,
    allow_pickle: bool,
) -> Any:
    """The case of a checkpoint or an adapter; None, and a finding, for one that cannot be read."""
    import transformers

    try:
        if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
            if hub_id is not None and not (folder / adapter.WEIGHTS).is_file():
                hub_snapshot(hub_id, [*_SMALL_FILES, adapter.PICKLE], revision=folder.name)
            return adapter.adapter_case(folder, tokenizer, allow_pickle)
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        files = None if hub_id is None else _fetch(hub_id, folder, config, tables_alone=True)
        case = case_of_files(folder, config, tokenizer, files)
        if case is None and hub_id is not None:
            _fetch(hub_id, folder, config, tables_alone=False, allow_pickle=allow_pickle)
        if case is None:
            code = {"trust_remote_code": trust_remote_code, "use_safetensors": None if allow_pickle else True}
            case = _loaded(folder, config, tokenizer, found, **code)
        return case
    except Exception as error:  # whatever is wrong with the files
        line = reason(error)
        message, advice = f"{folder} cannot be loaded: {line}", "Save the model again"
        if not trust_remote_code and _asks_for_trust(error):
            message, advice = _own_code(str(folder))
        elif is_static_embedding(folder):
            message = f"{folder} holds static embeddings, a table without a model: nothing else was looked at"
            advice = "Give it as vectors=, or to hf-embinit analyze"
        elif (
            not allow_pickle
            and "no file named model.safetensors" in line
            and (hub_id is not None or next(folder.glob("pytorch_model*.bin"), None))
        ):
            message = f"{folder} lacks {WEIGHTS} and {INDEX}, and pickles, which can run code, stay unread"
            advice = "If you trust its author, give allow_pickle=True (hf-embinit doctor --allow_pickle)"
        found.append(Finding("error", "cannot_be_loaded", message, advice))
    return None


def _asks_for_trust(error: BaseException | None) -> bool:
    """Whether transformers refused to run code that came with the files."""
    return "trust_remote_code=True" in str(error)


def _own_code(what: str) -> tuple[str, str]:
    """Message and way out for files that bring code of their own."""
    return (
        f"{what} cannot be loaded: it needs code of its own (auto_map), which was not run",
        "If you trust that code, give trust_remote_code=True (hf-embinit doctor --trust_remote_code)",
    )


def _fetch(
    hub_id: str, folder: Path, config: Any, *, tables_alone: bool, allow_pickle: bool = False
) -> list[str] | None:
    """Puts weights into a snapshot of the Hub; gives the files of a sharded one that hold its tables."""
    index = folder / INDEX
    files = files_of_tables(index, config) if tables_alone and index.is_file() else None
    every = sorted(set(read_weight_map(index).values())) if index.is_file() else [WEIGHTS]
    pickles = ["pytorch_model*.bin"] if allow_pickle else []
    hub_snapshot(hub_id, [*_SMALL_FILES, *(files or every), *pickles], revision=folder.name)
    return files


def _loaded(folder: Path, config: Any, tokenizer: Any, found: list[Finding], **options: Any) -> Case:
    """The case of a folder whose model must be built; tables that loading had to draw become findings."""
    found_class = _class_of(config)
    with quiet_loading():  # what its report would say becomes findings
        model, told = found_class.from_pretrained(folder, output_loading_info=True, **options)
    tables = EmbeddingTables(model)
    missing = set(told["missing_keys"])
    for table in tables.own_tables:
        if table.name in missing:
            message = f"{table.name} is not in the files of {folder}, so that loading draws it at random"
            way_out = "Save the model with this table, or tie it"
            found.append(Finding("error", "never_loaded", message, way_out))
    return Case(str(folder), model, tables, tokenizer)


def _class_of(config: Any) -> Any:
    """The class that a config names, or where it is not to be had the one of its kind without a head."""
    from transformers import AutoModel

    try:
        return model_class(config)
    except InvalidArgumentError:
        of_its_own = getattr(config, "auto_map", None) or {}
        if type(config) in AutoModel._model_mapping or "AutoModel" in of_its_own:
            return AutoModel
        raise
