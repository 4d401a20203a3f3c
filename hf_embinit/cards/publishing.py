"""`publish`: a run's checkpoints, record, figures and card as one repository of the Hub."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import FilePath, Text, checked
from ..display import printable
from ..errors import InvalidArgumentError, PublishError, RunFolderError
from ..foreign import read_json
from ..hub import INIT_BRANCH, LIST_NAME, Branch, HubRepository, check_repo_id
from ..manifest import read_manifest
from ..records import (
    ARGUMENTS_NAME,
    NO_EFFECT,
    RESULTS_NAME,
    RETOKENIZATION,
    RunFiles,
    RunRecord,
    public_record,
    read_record,
    read_result,
    run_files,
    samples_name,
    shorten,
    to_plain,
)
from .cards import CARD_SAMPLES, checkpoint_page, init_page, run_pages

if TYPE_CHECKING:
    from transformers import TrainingArguments

logger = logging.getLogger(__name__)

_FRONT_MATTER = re.compile(rb"\s*---\r?\n.*?\n---\s*?(\n|$)", re.DOTALL)
"""The YAML header of a README, all that a repository made on the Hub's own page has in it."""
_WAY_OUT = (
    "Choose another name, or replace it with overwrite=True (`python -m hf_embinit publish --overwrite`)."
)
_CONFIG = "config.json"
_IDENTITY = ("task", "dataset", "init", "tokenizer", "seed")


@dataclass(frozen=True)
class Publication:
    """The repository and the commits of a published run."""

    repo_id: str
    url: str
    commit: str
    """Commit of `main`: the trained model."""
    init_commit: str | None
    """Commit of the branch `init`, the model before step 1; None when the run kept none."""

    def __str__(self) -> str:
        lines = [f"{'published:':<20}{self.url} ({self.commit[:8]})"]
        if self.init_commit:
            lines.append(f"{'initialised model:':<20}revision={INIT_BRANCH!r} ({self.init_commit[:8]})")
        return "\n".join(lines)


@checked
def publish(
    run_folder: FilePath,
    repo_id: Text,
    *,
    private: bool | None = None,
    token: str | None = None,
    license: str | None = None,
    overwrite: bool = False,
) -> Publication:
    """Publishes a finished run as the Hub repository `repo_id` (`owner/name`, or `name` of one's own).

    Or a checkpoint whose rows hf_embinit made (`hf-embinit retokenize`, `expand`, ...) and that is no run:
    model, tokenizer, and a card that says how its embeddings came about.

    `main` gets the trained model, the tokenizer, `results.json`, figures, the card and evaluation results;
    the branch `init` gets the model before step 1. Both load with `from_pretrained`, a vanilla transformer
    with `trust_remote_code=True` where hf_embinit is not installed. One commit a branch; a failure leaves
    the repository as it was, and publishing again is safe: what has not changed is not sent. The run folder
    is only read. Folders of this machine are cut from what is published.

    `private` makes a new repository private; None takes the account's default. `token` defaults to the one
    that is logged in. `license` is a Hub identifier for the weights; None leaves what the card there says,
    without `overwrite`, which permits a repository that holds something other than this run.

    Raises `RunFolderError` for a folder that holds neither, has no safetensors, or files that differ from
    what the run wrote, and `PublishError` when the Hub does not take it: token, name, connection,
    another push at once.
    """
    run = _read(Path(run_folder), license)  # a folder that cannot be published ends here
    repository = HubRepository(repo_id, private=private, token=token)
    main = repository.main()
    if not overwrite:
        run.check_free(repository, main)
        run = replace(run, license=license or published_license(repository, main))
    main.add(run.files.trained)
    if not overwrite and (changed := main.changed_weights()):
        raise PublishError(f"{repository.repo_id} is taken: its {changed} is another model's. {_WAY_OUT}")
    init: Branch | None = None
    if run.files.initialised:
        init = repository.branch(INIT_BRANCH)
        init = init or Branch(INIT_BRANCH, main.head, False, set(main.paths), main.listed)
        init.add({**run.files.initialised, **run.init_pages(repository.repo_id)})
    commit, init_commit = repository.commit(
        main, init, run.title, lambda made: run.pages(repository.repo_id, made)
    )
    return Publication(repository.repo_id, repository.url, commit, init_commit)


@checked
def planned_files(
    run_folder: FilePath, repo_id: Text, license: str | None = None
) -> dict[str, dict[str, int]]:
    """What `publish` would send, without asking the Hub: branch -> path -> bytes."""
    run = _read(Path(run_folder), license)
    check_repo_id(repo_id)
    init = {**run.files.initialised, **run.init_pages(repo_id)} if run.files.initialised else {}
    main = {**run.files.trained, **run.pages(repo_id, "0" * 40 if init else None)}
    return {
        branch: {path: _size(content) for path, content in sorted(files.items())}
        for branch, files in (("main", main), (INIT_BRANCH, init))
        if files
    }


def _size(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


@dataclass(frozen=True)
class _Run:
    """A finished run, reduced to what may be published."""

    folder: Path
    record: RunRecord
    files: RunFiles
    license: str | None

    @property
    def title(self) -> str:
        """The message of the commit."""
        return self.record.title

    def check_free(self, repository: HubRepository, main: Branch) -> None:
        """Raises `PublishError` when the repository holds anything but this run."""
        _check_free(repository, main, self.record.to_dict())

    def pages(self, repo_id: str, init_commit: str | None) -> dict[str, bytes]:
        """Record, card and evaluation results; the card names the commit of `init` that belongs to them."""
        at = f'`revision="{INIT_BRANCH}"` (for this run, `revision="{init_commit}"`)' if init_commit else None
        pages = run_pages(
            self.folder,
            self.record,
            manifest=read_manifest(self.folder / self.files.models[0]),
            samples=_samples(self.folder, self.record),
            figures=self.files.figures,
            repo_id=repo_id,
            license=self.license,
            initialized_at=at,
        )
        told = json.dumps(self.record.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        return {RESULTS_NAME: told.encode(), **{path: text.encode() for path, text in pages.items()}}

    def init_pages(self, repo_id: str) -> dict[str, bytes]:
        """The card of the branch `init`: the model before step 1."""
        model = self.files.models[0]
        config = read_json(self.folder / "init" / model / "config.json", error=RunFolderError)
        return {"README.md": init_page(self.record, config, repo_id, model, self.license).encode()}


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint whose rows hf_embinit made, and that is no run."""

    files: RunFiles
    config: dict[str, Any]
    manifest: list[dict[str, Any]]
    license: str | None
    record: RunRecord | None
    """That of the run that it got another tokenizer in."""

    @property
    def title(self) -> str:
        """The message of the commit."""
        event = self.manifest[-1]
        return f"{event.get('event')} {event.get('init', '')}".rstrip()

    def check_free(self, repository: HubRepository, main: Branch) -> None:
        """Raises `PublishError` when the repository holds anything but a checkpoint of this manifest."""
        check_readme(repository, main)
        held = main.paths - {".gitattributes", "README.md"}
        theirs = [] if RESULTS_NAME in held else published_events(repository, main)
        if held and theirs != self.config["embinit"]:
            raise PublishError(
                f"{repository.repo_id} is taken: it holds something other than this checkpoint. {_WAY_OUT}"
            )

    def pages(self, repo_id: str, init_commit: str | None) -> dict[str, bytes]:
        """The card."""
        record = None if self.record is None else public_record(self.record)
        card = checkpoint_page(repo_id, shorten(self.manifest), self.config, self.license, record)
        return {"README.md": card.encode()}

    def init_pages(self, repo_id: str) -> dict[str, bytes]:
        """None: it has no state before training."""
        return {}


def _read(folder: Path, license: str | None) -> _Run | _Checkpoint:
    """A run, or a checkpoint that has no record, or one of having got another tokenizer alone."""
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is no folder: give that of a run, or of a checkpoint")
    record = read_result(folder) if (folder / RESULTS_NAME).exists() else None
    if (record is None or record.task == RETOKENIZATION) and (folder / _CONFIG).is_file():
        manifest = read_manifest(folder)
        if manifest:
            files = run_files(folder)
            told = files.trained[_CONFIG]
            text = told if isinstance(told, bytes) else told.read_bytes()
            return _Checkpoint(files, json.loads(text), manifest, license, record)
        if record is None and not (folder / ARGUMENTS_NAME).exists():
            raise RunFolderError(
                f"{folder} is no run, and a checkpoint whose rows hf_embinit did not make: its config.json "
                f"has no embinit"
            )
    return _Run(folder, public_record(read_record(folder)), run_files(folder), license)


@dataclass(frozen=True)
class PushTarget:
    """The repository that a recipe publishes its run in when it is finished."""

    repo_id: str
    private: bool | None
    token: str | None

    def publish(self, run_folder: str | os.PathLike[str]) -> str:
        """Publishes a run folder and returns the lines to print.

        Raises `PublishError` with the command that publishes the run later.
        """
        try:
            return str(publish(run_folder, self.repo_id, private=self.private, token=self.token))
        except PublishError as error:
            raise PublishError(
                f"{error} The run itself is finished: `python -m hf_embinit publish {run_folder} "
                f"{self.repo_id}` publishes it."
            ) from error


def prepare_push(
    args: TrainingArguments, inits: Sequence[str], **identity: Any
) -> list[PushTarget] | list[None]:
    """For each of `inits` the repository that its finished run is published in; None without `--push_to_hub`.

    Called before any work: the main process checks the token, makes the repository `--hub_model_id` (of
    several runs `<hub_model_id>-<init>`; private with `--hub_private_repo`) and checks that it holds no other
    run. Resets `args.push_to_hub`, so that the Trainer itself pushes no checkpoints. `identity` is what tells
    runs apart: `task`, `dataset`, `tokenizer`, `seed`, and `arguments`, as the record has them.

    Raises `PublishError`, and `InvalidArgumentError` with `--hub_revision`.
    """
    if not args.push_to_hub:
        return [None] * len(inits)
    if getattr(args, "hub_revision", None):
        raise InvalidArgumentError(
            f"--hub_revision {args.hub_revision}: a run is published on main and {INIT_BRANCH!r}, "
            "leave the flag out"
        )
    args.push_to_hub = False
    name = args.hub_model_id or Path(str(args.output_dir)).resolve().name
    names = [name] if len(inits) == 1 else [f"{name}-{re.sub('[:=,]', '-', init)}" for init in inits]
    targets = []
    for name, init in zip(names, inits, strict=True):
        if args.process_index == 0:
            repository = HubRepository(name, private=args.hub_private_repo, token=args.hub_token)
            try:
                _check_free(repository, repository.main(), {**identity, "init": init})
            except PublishError as error:
                raise PublishError(
                    f"{error} A recipe replaces nothing: run it without --push_to_hub."
                ) from error
            name = repository.repo_id
            logger.info("The finished run will be published as %s.", name)
        targets.append(PushTarget(name, args.hub_private_repo, args.hub_token))
    return targets


def check_readme(repository: HubRepository, main: Branch) -> None:
    """Raises `PublishError` when the README to be replaced is not one that an earlier publication wrote."""
    if "README.md" not in main.paths:
        return
    readme = repository.read("README.md", main.head)
    ours = main.listed.get("README.md") == f"sha256:{hashlib.sha256(readme).hexdigest()}"
    if not ours and _FRONT_MATTER.sub(b"", readme, count=1).strip():
        raise PublishError(
            f"{repository.repo_id} has a README.md that somebody wrote or changed by hand. {_WAY_OUT}"
        )


def published_license(repository: HubRepository, main: Branch) -> str | None:
    """The license that the card in a repository says, so that publishing again keeps it; None for none."""
    import yaml
    from huggingface_hub import ModelCard

    said = None
    if "README.md" in main.paths:
        with suppress(ValueError, TypeError, yaml.YAMLError):  # no card
            said = ModelCard(repository.read("README.md", main.head).decode()).data.to_dict().get("license")
    return said if isinstance(said, str) else None


def published_events(repository: HubRepository, main: Branch) -> list[Any]:
    """The manifest of the checkpoint or table that a repository of ours holds; empty for anything else."""
    found: Any = None
    if {_CONFIG, LIST_NAME} <= main.paths:
        with suppress(ValueError, RecursionError):
            found = json.loads(repository.read(_CONFIG, main.head))
    events = found.get("embinit") if isinstance(found, dict) else None
    return events if isinstance(events, list) else []


def _check_free(repository: HubRepository, main: Branch, ours: Mapping[str, Any]) -> None:
    """Raises `PublishError` when the repository holds anything but this run.

    That is another run, this run with other settings, or a README that someone wrote by hand. `ours` is the
    identity of the run (see `prepare_push`), with its `data` where that is known.
    """
    check_readme(repository, main)
    held = main.paths - {".gitattributes", "README.md"}
    if not held:
        return
    published: Any = {}
    if RESULTS_NAME in held:
        with suppress(ValueError, RecursionError):
            published = json.loads(repository.read(RESULTS_NAME, main.head))
    published = published if isinstance(published, dict) else {}
    mine = {key: shorten(ours[key]) for key in _IDENTITY if key in ours}
    theirs = {key: published.get(key) for key in mine}
    if mine != theirs:
        named = [f"{k} {v}" for k, v in theirs.items() if v is not None] or sorted(held - {LIST_NAME})[:3]
        raise PublishError(
            f"{repository.repo_id} is taken: it holds {printable(', '.join(named))[:300]}. {_WAY_OUT}"
        )
    changed = _other_settings(ours.get("arguments") or {}, published.get("arguments"))
    changed += _other_settings(_digests(ours.get("data")), _digests(published.get("data")))
    if changed:
        raise PublishError(
            f"{repository.repo_id} is taken: it holds this run with other settings, "
            f"{printable(', '.join(changed[:3]))[:300]}. {_WAY_OUT}"
        )


def _digests(data: Any) -> dict[str, Any]:
    """The data and vectors of a run: split -> digest."""
    parts = data.items() if isinstance(data, dict) else ()
    return {f"{split} of digest": used.get("sha256") for split, used in parts if isinstance(used, dict)}


def _other_settings(ours: Mapping[str, Any], theirs: Any) -> list[str]:
    """Arguments in which two runs differ, in words, without those that affect no result."""
    theirs = theirs if isinstance(theirs, dict) else {}
    ours = shorten(to_plain(ours))
    return [
        f"{key} {theirs[key]}"
        for key in sorted(set(ours) & set(theirs))
        if ours[key] != theirs[key] and key not in NO_EFFECT
    ]


def _samples(folder: Path, record: RunRecord) -> list[dict[str, Any]]:
    """The first samples that the recipe kept."""
    file = folder / samples_name(record)
    if not file.is_file():
        return []
    with open(file, encoding="utf-8") as lines:
        return [json.loads(line) for _, line in zip(range(CARD_SAMPLES), lines, strict=False)]
