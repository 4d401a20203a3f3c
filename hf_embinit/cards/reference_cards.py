"""Cards of runs whose weights were not kept, from `results.json` alone, with an index."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..arguments import put_option
from ..display import markdown_table
from ..errors import RunFolderError
from ..initializers import list_initializers
from ..records import RESULTS_NAME, RunRecord, none_found, read_record, write_text
from ..tasks import task_of
from . import text as words
from .cards import render_card, shown_scores

INDEX = "README.md"
_TITLE = "# Model cards of the reference runs"
_CARD = re.compile(r"---\n(?:(?!---\n).*\n)*- hf_embinit\n")
"""The start of a card: its header has this tag."""
_NOT_SHOWN = ("max_train_samples", "max_eval_samples", "max_predict_samples", "twin_seeds")


def reference_cards(results: str | os.PathLike[str], folder: str | os.PathLike[str]) -> dict[str, str]:
    """The cards of the run records below `results`, and their index, as files of `folder`: name -> text.

    Records of other things (reports, comparisons) are left out, and so are runs on a part of their data and
    pairs of models, which only tables show. A card links its record relative to `folder`. The same records
    give the same text. Raises `DataNotFoundError` when there is none.
    """
    return _cards(Path(results), Path(folder))[0]


def _cards(results: Path, folder: Path) -> tuple[dict[str, str], dict[str, RunFolderError]]:
    """`reference_cards`, and what is wrong with the file that a card of some name would be of."""
    cards: dict[str, str] = {}
    left_out: dict[str, RunFolderError] = {}
    rows, records = [], 0
    for path in sorted(results.rglob(RESULTS_NAME)):
        place = path.parent.relative_to(results)
        name = f"{'-'.join(place.parts) or results.resolve().name}.md"
        try:
            record = read_record(path)
        except RunFolderError as error:
            left_out[name] = error
            continue
        records += 1
        if any(record.arguments.get(name) for name in _NOT_SHOWN):
            continue
        if name in cards or name == INDEX:
            raise RunFolderError(
                f"the card of {path.parent} would be {name}, as another one is: rename that folder"
            )
        cards[name] = _card(record, path.parent, folder)
        score = next((f"{metric} {value}" for metric, value, _ in shown_scores(record)), "")
        cells = [f"[{place}]({name})", record.task.replace("_", " "), words.base_name(record.dataset)]
        rows.append([*cells, words.named_init(*init_of_record(record)), str(record.seed), score])
    if not records:
        raise none_found(results, list(left_out.values()))
    header = ["run", "task", "data", "initializer", "seed", "first score"]
    cards[INDEX] = "\n".join(
        [
            _TITLE,
            "",
            "One card a run, rendered from its record under "
            f"[`{_link(results, folder)}`]({_link(results, folder)}). The checkpoints themselves are not "
            "kept here: the recipe named in a card makes them again, and `hf-embinit publish` puts a run "
            "folder on the Hub with such a card. Runs on a part of their data, and pairs of models, have "
            "none: their scores are in the tables.",
            "",
            markdown_table(header, rows),
        ]
    )
    return cards, left_out


def write_reference_cards(results: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[str]:
    """Writes `reference_cards` into `folder` and returns the names of the files.

    Cards that an earlier index lists and whose records are gone are removed. Raises `RunFolderError`, before
    anything is written, when a file of such a name is no index and no card, and when the record of a card is
    there and is none any more.
    """
    folder = Path(folder)
    cards, left_out = _cards(Path(results), folder)
    for name in cards:
        if (folder / name).exists() and not _is_ours(folder / name):
            raise RunFolderError(
                f"{folder / name} is none of the pages that this command writes: give another folder, "
                "or move the file away"
            )
    index = folder / INDEX
    listed = index.read_text(encoding="utf-8", errors="replace") if index.is_file() else ""
    before = re.findall(r"\]\(([\w.-]+\.md)\)", listed)
    gone = [name for name in sorted(set(before) - set(cards)) if _is_ours(folder / name)]
    for name in gone:
        if name in left_out:
            raise RunFolderError(
                f"{name} is of a record that is damaged, mend or delete it: {left_out[name]}"
            )
    for name in gone:
        (folder / name).unlink()
    for name, text in cards.items():
        write_text(folder / name, text)
    return sorted(cards)


def _is_ours(path: Path) -> bool:
    """Whether a file is an index or a card."""
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    return text.startswith(f"{_TITLE}\n") if path.name == INDEX else _CARD.match(text) is not None


def init_of_record(record: RunRecord) -> tuple[str, dict[str, Any]]:
    """Name and options of a run's initialiser."""
    name, _, rest = record.init.partition(":")
    options: dict[str, Any] = {}
    for text in (*filter(None, rest.split(",")), *(record.arguments.get("init_options") or ())):
        option, _, value = text.partition("=")
        put_option(options, option, value, f"the initializer {record.init!r} of a record", RunFolderError)
    return name, options


def manifest_of_record(record: RunRecord) -> list[dict[str, Any]]:
    """What the manifest of the run's checkpoint says of its start, as far as the record has it."""
    init, options = init_of_record(record)
    event: dict[str, Any] = {"event": "initialize", "init": init, "options": options, "seed": record.seed}
    if surgery := record.arguments.get("surgery"):
        return [_step(name.strip(), record) for name in surgery.split("+")]
    if record.metrics.get("new_tokens"):
        added = {"tokens added": int(record.metrics["new_tokens"]), "to": words.base_name(record.tokenizer)}
        return [{**event, "event": "expand", **added}]
    if record.init in ("none", "kept"):
        return []
    two = len(record.embedding_statistics) > 1
    tables = []
    for name in record.embedding_statistics:
        target = two and "decoder" in name.split(".")
        vectors = record.arguments.get("target_vectors" if target else "vectors")
        vectors = vectors or record.arguments.get("vectors")
        tables.append(
            {
                "name": name,
                "side": ("target" if target else "source") if two else None,
                "source": {"name": vectors} if vectors else None,
                "coverage": record.coverage.get(name),
            }
        )
    return [{**event, "tables": tables}]


def _step(name: str, record: RunRecord) -> dict[str, Any]:
    """The event of one step of a surgery, which an initialiser can be, too."""
    if any(name in (known.name, *known.aliases) for known in list_initializers(purpose="table")):
        return {"event": "initialize", "init": name, "seed": record.seed}
    donor = record.arguments.get("donor") if name == "donor_embeddings" else None
    told = {"donor": words.base_name(donor)} if donor else {}
    return {"event": "surgery", "surgery": name, "seed": record.seed, **told}


def _card(record: RunRecord, run: Path, folder: Path) -> str:
    figures = {
        words.caption(figure): _link(figure, folder) for figure in sorted((run / "figures").glob("*.png"))
    }
    card = render_card(
        record,
        manifest=manifest_of_record(record),
        config=_config(record),
        figures=figures,
        repo_id=None,
        folder=f"runs/{Path(record.arguments.get('output_dir') or run).name}",
        record_at=_link(run / RESULTS_NAME, folder),
    )
    return str(card).rstrip() + "\n"


def _config(record: RunRecord) -> dict[str, Any]:
    """As much of the model's config as follows from the record."""
    task = task_of(record.task, record.metrics)
    model = record.arguments.get("model") or (task.models[0] if task else None)
    return {"model_type": "vanilla_transformer"} if model == "vanilla" else {}


def _link(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()
