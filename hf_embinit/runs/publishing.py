"""`publish`: a run's checkpoints, record, figures and card as one repository of the Hub."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from ..errors import InvalidArgumentError, PublishError
from ..manifest import read_manifest
from .cards import init_page, run_pages
from .finish import CARD_SAMPLES, samples_name
from .hub_repository import INIT_BRANCH, Branch, HubRepository
from .public_files import model_folders, models_files, public_record, run_files, shorten
from .record import RESULTS_NAME, RunRecord, read_record

logger = logging.getLogger(__name__)

_IDENTITY = ("task", "dataset", "init", "tokenizer", "seed")


@dataclass(frozen=True)
class Publication:
    """Where a run is on the Hub."""

    repo_id: str
    url: str
    commit: str
    """Of `main`: the trained model."""
    init_commit: str | None
    """Of the branch `init`: the model before step 1; None when the run kept none."""

    def __str__(self) -> str:
        lines = [f"{'published:':<20}{self.url} ({self.commit[:8]})"]
        if self.init_commit:
            lines.append(f"{'initialised model:':<20}revision={INIT_BRANCH!r} ({self.init_commit[:8]})")
        return "\n".join(lines)


def publish(
    run_folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    license: str | None = None,
    overwrite: bool = False,
) -> Publication:
    """Publishes a finished run as the Hub repository `repo_id` (`owner/name`, or `name` of one's own).

    `main` gets the trained model, the tokenizer, `results.json`, figures, the card and evaluation results;
    the branch `init` gets the model before step 1. Both load with `from_pretrained`, a vanilla transformer
    with `trust_remote_code=True` where hf_embinit is not installed. One commit a branch; a failure leaves
    the repository as it was, and publishing again is safe: what has not changed is not sent. The run folder
    is only read. Folders of this machine are cut from what is published.

    `private` makes a new repository private; None takes the account's default. `token` defaults to the one
    that is logged in. `license` is a Hub identifier for the weights. `overwrite` permits a repository that
    holds something other than this run.

    Raises `RunFolderError` for a folder that holds no finished run with safetensors, and `PublishError` when
    the Hub does not take it: token, name, connection, another push at once.
    """
    folder = Path(run_folder)
    record = public_record(read_record(folder))
    models = model_folders(folder)
    models_files(folder, models)  # a folder that cannot be published ends here, before any request
    init_files = models_files(folder / "init", models) if (folder / "init").is_dir() else None
    repository = HubRepository(repo_id, private=private, token=token)
    main = repository.main()
    _check_free(repository, main, record.to_dict(), overwrite)
    manifest = shorten(read_manifest(folder / models[0]))
    main.replace(
        run_files(
            folder,
            record,
            run_pages(
                folder,
                record,
                manifest=manifest,
                samples=_samples(folder, record),
                repo_id=repository.repo_id,
                license=license,
                initialized_at=f'`revision="{INIT_BRANCH}"`' if init_files else None,
            ),
        )
    )
    init: Branch | None = None
    if init_files is not None:
        init = repository.branch(INIT_BRANCH)
        init = init or Branch(INIT_BRANCH, main.head, False, set(main.paths))
        config = read_config(folder / "init" / models[0])
        page = init_page(record, config, repository.repo_id, models[0], license)
        init.replace({**init_files, "README.md": page.encode()})
    title = f"{record.task} on {record.dataset}, init {record.init}, seed {record.seed}"
    commit, init_commit = repository.commit(main, init, title)
    url = f"{repository.api.endpoint}/{repository.repo_id}"
    return Publication(repository.repo_id, url, commit, init_commit)


@dataclass(frozen=True)
class PushTarget:
    """Where a recipe publishes its run when it is finished."""

    repo_id: str
    private: bool | None
    token: str | None

    def publish(self, run_folder: str | os.PathLike[str]) -> str:
        """Publishes a run folder; gives the lines to print. Raises `PublishError`, which says how to go
        on.
        """
        try:
            return str(publish(run_folder, self.repo_id, private=self.private, token=self.token))
        except PublishError as error:
            raise PublishError(
                f"{error} The run itself is finished: `python -m hf_embinit publish {run_folder} "
                f"{self.repo_id}` publishes it."
            ) from error


def take_push_to_hub(args: TrainingArguments, **identity: Any) -> PushTarget | None:
    """Takes `--push_to_hub` out of the Trainer's hands, which would push checkpoints on the way; None when it
    is not set.

    Called before any work: the main process checks the token, makes the repository `--hub_model_id` (private
    with `--hub_private_repo`) and sees that it holds no other run. `identity` is what tells runs apart:
    `task`, `dataset`, `init`, `tokenizer`, `seed`. Raises `PublishError` and `InvalidArgumentError`.
    """
    return take_pushes_to_hub(args, [identity.pop("init")], **identity)[0]


def take_pushes_to_hub(
    args: TrainingArguments, inits: Sequence[str], **identity: Any
) -> list[PushTarget | None]:
    """The same for a recipe that makes a run of each of `inits`: of several, each has a repository of its
    own, `<hub_model_id>-<init>`."""
    if not args.push_to_hub:
        return [None] * len(inits)
    if getattr(args, "hub_revision", None):
        raise InvalidArgumentError(
            f"--hub_revision {args.hub_revision}: a run is published on main and {INIT_BRANCH!r}, "
            "leave the flag out"
        )
    args.push_to_hub = False
    name = args.hub_model_id or Path(str(args.output_dir)).resolve().name
    names = [name] if len(inits) == 1 else [f"{name}-{init}" for init in inits]
    targets: list[PushTarget | None] = []
    for name, init in zip(names, inits, strict=True):
        if args.process_index == 0:
            repository = HubRepository(name, private=args.hub_private_repo, token=args.hub_token)
            _check_free(repository, repository.main(), {**identity, "init": init}, False)
            name = repository.repo_id
            logger.info("The finished run will be published as %s.", name)
        targets.append(PushTarget(name, args.hub_private_repo, args.hub_token))
    return targets


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a folder, empty without one."""
    file = folder / "config.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _check_free(
    repository: HubRepository, main: Branch, identity: Mapping[str, Any], overwrite: bool
) -> None:
    """Raises `PublishError` when the repository holds something other than this run."""
    held = main.paths - {".gitattributes", "README.md"}
    if overwrite or not held:
        return
    found: dict[str, Any] = {}
    if RESULTS_NAME in held:
        with suppress(ValueError):
            found = json.loads(repository.read(RESULTS_NAME, main.head))
    ours = {key: shorten(identity[key]) for key in _IDENTITY if key in identity}
    theirs = {key: found.get(key) for key in ours} if isinstance(found, dict) else {}
    if ours != theirs:
        what = ", ".join(f"{k} {v}" for k, v in theirs.items() if v is not None) or ", ".join(
            sorted(held)[:3]
        )
        raise PublishError(
            f"{repository.repo_id} is taken: it holds {what}. Choose another name, or replace it with "
            "overwrite=True (`python -m hf_embinit publish --overwrite`)."
        )


def _samples(folder: Path, record: RunRecord) -> list[dict[str, Any]]:
    """The first samples that the recipe kept."""
    file = folder / samples_name(record)
    if not file.is_file():
        return []
    with open(file, encoding="utf-8") as lines:
        return [json.loads(line) for _, line in zip(range(CARD_SAMPLES), lines, strict=False)]
