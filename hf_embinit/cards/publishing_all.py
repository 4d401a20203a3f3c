"""`publish_all`: every finished run below a folder, their scores as a data set, and a collection of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ..arguments import FilePath, Text, checked
from ..display import printable
from ..errors import DataNotFoundError, EmbinitError, InvalidArgumentError, PublishError, RunFolderError
from ..hub import LIST_NAME, Branch, HubRepository, RepoType, add_to_collection, check_repo_id
from ..manifest import read_manifest
from ..records import (
    ARGUMENTS_NAME,
    START_NAME,
    RunRecord,
    find_records,
    is_finished,
    model_folders,
    public_record,
    results_table,
)
from .cards import shown_scores
from .publishing import Publication, check_readme, planned_files, publish, published_license

RESULTS_REPOSITORY = "hf-embinit-results"
"""Name of the data set with the scores of all runs."""
_SCORES, _RUNS = "scores.jsonl", "runs.jsonl"
_OF_A_RUN = re.compile(r"init|checkpoint-\d+")
"""Folders in that of a run, also of one that is not finished."""
_LONGEST_NAME = 96  # characters of a repository's name, as the Hub has it
_CARD = """\
# Results of transformers by how their embeddings were initialized

{scores} scores of {runs} runs. `scores` has a row for each score of each run: `seed` tells repetitions of one
experiment apart, `model` is the repository of the checkpoint where that was published. `runs` has a row for
each run: its arguments and the digests of its texts and vectors as JSON, the commit of the code, the device.

```python
from datasets import load_dataset

scores = load_dataset("{repo_id}", "scores", split="train").to_pandas()
print(scores.groupby(["task", "dataset", "init", "score"])["value"].agg(["mean", "std", "count"]))
```

Runs that differ in nothing but the seed share a row: mean (sample standard deviation).

{table}"""


@dataclass(frozen=True)
class PublishedRuns:
    """What became of the runs below a folder."""

    published: dict[str, Publication]
    """Run folder -> its repository."""
    without_weights: list[str]
    """Run folders that hold a record alone: their scores are in the data set."""
    failed: dict[str, str]
    """Run folder -> why it was not published."""
    results: str | None
    """Address of the data set; None when there are no scores."""
    collection: str | None
    """Address of the collection."""

    def __str__(self) -> str:
        lines = [f"{'published:':<20}{found.url}" for found in self.published.values()]
        lines += [f"{'not published:':<20}{run}: {reason}" for run, reason in self.failed.items()]
        if self.without_weights:
            kept = f"{len(self.without_weights)} runs have no weights here, their scores are in the data set"
            lines.append(f"{'record alone:':<20}{kept}")
        if self.results:
            lines.append(f"{'scores:':<20}{self.results}")
        if self.collection:
            lines.append(f"{'collection:':<20}{self.collection}")
        return "\n".join(lines)


@checked
def publish_all(
    folder: FilePath,
    owner: Text | None = None,
    *,
    collection: Text | None = None,
    private: bool | None = None,
    token: str | None = None,
    license: str | None = None,
    overwrite: bool = False,
) -> PublishedRuns:
    """Publishes every finished run below `folder`, each as `publish` does it, in the namespace of `owner`.

    So it does with checkpoints outside of runs whose rows hf_embinit made.

    A repository has the name of the run's folder, `translate/a-seed1` that of `translate-a-seed1`. The scores
    of all runs, also of those whose weights are not there, become the data set `hf-embinit-results`, unless
    there is no run; with `collection` all of it is put into the collection of that title. `owner` is by
    default the one of the token. Doing it again is safe: what has not changed is not sent, and a run that
    was not published does not stop the others. The other arguments are those of `publish`.

    Raises `DataNotFoundError` when nothing of that is there, and `PublishError` when the Hub takes nothing:
    token, owner, connection, or a data set of that name that holds something else.
    """
    records, names, failed = _runs(Path(folder))
    namespace = f"{owner}/" if owner else ""
    results: HubRepository | None = None
    if records:
        name = f"{namespace}{RESULTS_REPOSITORY}"
        results = HubRepository(name, private=private, token=token, repo_type="dataset")
        main = results.main()  # a token or an owner that cannot do it ends before
        if not overwrite:
            _check_data_set(results, main)
        of_scores = license or (None if overwrite else published_license(results, main))
        namespace = f"{results.repo_id.partition('/')[0]}/"
    published: dict[str, Publication] = {}
    for run, name in tqdm(names.items(), desc="publishing", unit="run", disable=None):
        try:
            published[run] = publish(
                run,
                f"{namespace}{name}",
                private=private,
                token=token,
                license=license,
                overwrite=overwrite,
            )
        except (PublishError, RunFolderError) as error:
            failed[run] = str(error)
    models = {run: found.repo_id for run, found in published.items()}
    items: dict[str, tuple[RepoType, str]] = {
        found.repo_id: ("model", _note(records.get(run))) for run, found in published.items()
    }
    if results is not None:
        main.add(_results_files(records, models, results.repo_id, of_scores))
        results.commit(main, None, f"Scores of {len(records)} runs")
        items[results.repo_id] = ("dataset", "The scores of all runs.")
    address = None
    if collection is not None and items:
        one = results or HubRepository(next(iter(items)), token=token)
        address = add_to_collection(collection, items, one, private=bool(private))
    alone = sorted(set(records) - set(names) - set(failed))
    return PublishedRuns(published, alone, failed, results.url if results else None, address)


def _check_data_set(results: HubRepository, main: Branch) -> None:
    """Raises `PublishError` when the data set holds what no earlier publication put there."""
    check_readme(results, main)
    foreign = main.paths - {".gitattributes", "README.md", LIST_NAME} - set(main.listed)
    if foreign:
        raise PublishError(
            f"The data set {results.repo_id} is taken: it holds {printable(sorted(foreign)[0])}. "
            "Rename it, or replace it with overwrite=True (`hf-embinit publish --all --overwrite`)."
        )


@checked
def planned_runs(folder: FilePath, owner: Text | None = None, license: str | None = None) -> dict[str, Any]:
    """What `publish_all` would send, without asking the Hub.

    `models` is repository -> bytes, `failed` run folder -> why it cannot be published, `results` the data
    set, the runs and the bytes of it (None without runs), and `without_weights` the folders that hold a
    record alone.
    """
    records, names, failed = _runs(Path(folder))
    models: dict[str, int] = {}
    for run, name in names.items():
        repo_id = f"{owner or 'you'}/{name}"
        try:
            plan = planned_files(run, repo_id, license)
        except EmbinitError as error:
            failed[run] = str(error)
        else:
            models[repo_id] = sum(size for files in plan.values() for size in files.values())
    results: dict[str, Any] | None = None
    if records:
        repo_id = f"{owner or 'you'}/{RESULTS_REPOSITORY}"
        files = _results_files(records, {}, repo_id, license)
        results = {"repository": repo_id, "runs": len(records), "bytes": sum(map(len, files.values()))}
    return {
        "models": models,
        "results": results,
        "failed": failed,
        "without_weights": sorted(set(records) - set(names) - set(failed)),
    }


def _runs(folder: Path) -> tuple[dict[str, RunRecord], dict[str, str], dict[str, str]]:
    """The records below `folder` by run folder, the names of the repositories of what has weights, and why
    others are left out.

    What has weights are runs, and checkpoints outside of runs whose rows hf_embinit made. Left out are runs
    that are not finished, and folders whose names no repository can have.
    """
    found, nothing = dict[str, RunRecord](), None
    try:
        found, _ = find_records(folder)
    except DataNotFoundError as error:
        nothing = error
    records = {str((folder / path).parent): public_record(record) for path, record in found.items()}
    names = {
        run: _name(Path(run), folder)
        for run in records
        if (Path(run) / model_folders(Path(run))[0] / "config.json").is_file()
    }
    begun = {path.parent for path in folder.rglob(ARGUMENTS_NAME)}
    unfinished = {str(run) for run in begun if (run / START_NAME).is_dir() and not is_finished(run)}
    for path in sorted(folder.rglob("config.json")):
        if any(str(place) in unfinished for place in path.parents):
            continue
        if any(str(place) in records for place in path.parents):
            continue
        if any(_OF_A_RUN.fullmatch(part) for part in path.relative_to(folder).parts[:-1]):
            continue
        with suppress(EmbinitError):  # somebody else's file
            if read_manifest(path):
                names[str(path.parent)] = _name(path.parent, folder)
    if nothing and not names:
        raise nothing
    why = "the run is not finished: go on with it by --resume_from_checkpoint last"
    failed = dict.fromkeys(sorted(unfinished), why)
    problems = {place: _name_problem(name, list(names.values())) for place, name in names.items()}
    failed |= {place: problem for place, problem in problems.items() if problem}
    return records, {place: name for place, name in names.items() if place not in failed}, failed


def _name(run: Path, folder: Path) -> str:
    """The repository of a run: its place below `folder`."""
    parts = run.relative_to(folder).parts or (run.resolve().name,)
    return re.sub(r"(?:[^\w.]|\.{2,})+", "-", "-".join(parts), flags=re.ASCII).strip("-.")


def _name_problem(name: str, names: Sequence[str]) -> str | None:
    """Why a folder cannot be the repository `name`, of the `names` of all; None when it can."""
    if len(name) > _LONGEST_NAME:
        size = f"of {len(name)} characters where the Hub takes {_LONGEST_NAME}"
        return f"it would be the repository {name!r}, {size}: rename the folder"
    try:
        check_repo_id(f"owner/{name}")
    except InvalidArgumentError:
        return f"it would be the repository {name!r}, which the Hub does not take: rename the folder"
    if names.count(name) > 1:
        return f"another folder would be the repository {name!r}, too: rename one of them"
    return None


def _results_files(
    records: dict[str, RunRecord], models: dict[str, str], repo_id: str, license: str | None
) -> dict[str, bytes]:
    """The two tables and the card of the data set."""
    from huggingface_hub import DatasetCardData

    tables: dict[str, list[dict[str, Any]]] = {_SCORES: [], _RUNS: []}
    for number, (run, record) in enumerate(records.items()):
        told = record.to_dict()
        same = {key: told[key] for key in ("task", "dataset", "init", "tokenizer", "seed")}
        same = {"run": number, **same, "model": models.get(run)}
        tables[_SCORES] += [{**same, "score": k, "value": v} for k, v in told["metrics"].items()]
        also = {key: told[key] for key in ("best_epoch", "diverged", "parameters")}
        also |= {key: json.dumps(told[key], ensure_ascii=False) for key in ("arguments", "data", "versions")}
        tables[_RUNS].append({**same, **also, "device": record.runtime.get("device")})
    data = DatasetCardData(
        license=license,
        pretty_name="Results by initialization of the embeddings",
        tags=["hf_embinit"],
        configs=[
            {"config_name": "scores", "data_files": _SCORES, "default": True},
            {"config_name": "runs", "data_files": _RUNS},
        ],
    )
    card = _CARD.format(
        scores=len(tables[_SCORES]),
        runs=len(records),
        repo_id=repo_id,
        table=results_table(records.values()),
    )
    made = {
        name: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        for name, rows in tables.items()
    }
    return {**made, "README.md": f"---\n{data.to_yaml()}\n---\n\n{card}".encode()}


def _note(record: RunRecord | None) -> str:
    """The run and its first score, for the collection."""
    if record is None:
        return "A checkpoint whose embeddings were changed."
    scores: Sequence[tuple[str, str, str]] = shown_scores(record)
    return record.title + "".join(f"; {name} {value}" for name, value, _ in scores[:1])
