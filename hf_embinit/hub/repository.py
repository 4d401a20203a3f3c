"""Commits to a repository of the Hub: access is checked first, a failure leaves the repository unchanged."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..errors import EmbinitError, InvalidArgumentError, PublishError
from .access import hub_problem, no_answer, patience, patience_seconds, request_errors

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, HfApi

logger = logging.getLogger(__name__)

_SLOW = 12
"""Factor on the time limit of a commit: the Hub looks through all of its files before it answers."""
RepoType: TypeAlias = Literal["model", "dataset"]
INIT_BRANCH = "init"
LIST_NAME = "files.json"
"""The file of a publication that lists the paths and digests of its other files."""
_TOKENS = "https://huggingface.co/settings/tokens"
_LOGIN = f"Run `hf auth login`, set HF_TOKEN, or give token= (a recipe: --hub_token). Tokens: {_TOKENS}."


@dataclass
class Branch:
    """A branch, its files, and the operations of the commit that is planned on it."""

    name: str
    head: str
    """Commit that the operations build on."""
    exists: bool
    paths: set[str]
    listed: dict[str, str]
    """The files of an earlier publication: path -> digest, from its `files.json`."""
    additions: list[Any] = field(default_factory=list)
    """The files to upload."""

    def add(self, files: Mapping[str, Path | bytes]) -> None:
        """Plans to commit `files`."""
        from huggingface_hub import CommitOperationAdd

        self.additions += [
            CommitOperationAdd(path_in_repo=path, path_or_fileobj=content)
            for path, content in sorted(files.items())
        ]

    def changed_weights(self) -> str | None:
        """A file of weights that an earlier publication has and that is another now."""
        for made in self.additions:
            before = self.listed.get(made.path_in_repo)
            if made.path_in_repo.endswith(".safetensors") and before is not None and before != _digest(made):
                return str(made.path_in_repo)
        return None

    def operations(self) -> list[Any]:
        """All operations of the commit: additions, the new `files.json`, and deletions.

        Deleted is what an earlier publication listed and this one does not have. Files that were
        never listed stay.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        made = {a.path_in_repo: _digest(a) for a in self.additions}
        listed = (json.dumps(made, indent=2, sort_keys=True) + "\n").encode()
        stale = sorted(self.paths & set(self.listed) - set(made))
        return [
            *self.additions,
            CommitOperationAdd(path_in_repo=LIST_NAME, path_or_fileobj=listed),
            *(CommitOperationDelete(path_in_repo=path) for path in stale),
        ]


def _digest(addition: Any) -> str:
    return f"sha256:{addition.upload_info.sha256.hex()}"


class HubRepository:
    """A repository of a model, or of the `repo_type` given, that the token may write to; created if needed.

    Raises `PublishError` without a token, for a wrong or a read-only one, for the namespace of somebody else,
    without a connection, and for a repository that is public when a private one is wanted (or the other way
    round). Raises `InvalidArgumentError` for a name that no repository can have.
    """

    def __init__(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        repo_type: RepoType = "model",
    ):
        from huggingface_hub import HfApi
        from huggingface_hub.errors import RepositoryNotFoundError

        self.token = token
        self.repo_type = repo_type
        self.api: HfApi = HfApi(token=token)
        self.repo_id = check_repo_id(repo_id)
        problem = hub_problem()
        if problem:
            raise PublishError(
                f"Nothing can be published to {repo_id!r}: {problem}. Publish again when the Hub answers."
            )
        with self.told():
            user = self._user()
            if "/" not in self.repo_id:
                self.repo_id = f"{user}/{self.repo_id}"
            try:
                found = self._info()
            except RepositoryNotFoundError:
                self.api.create_repo(self.repo_id, private=private, repo_type=repo_type, exist_ok=True)
                found = self._info()
        if private is not None and bool(found.private) != private:
            kind = "private" if found.private else "public"
            raise PublishError(
                f"{self.repo_id} is there and is {kind}, but private={private} was asked for. Change it in "
                "the repository's settings, or leave private= (--hub_private_repo, of hf-embinit publish "
                "--private or --no-private) out."
            )

    @property
    def url(self) -> str:
        """Its page."""
        return f"{self.api.endpoint}/{'datasets/' if self.repo_type == 'dataset' else ''}{self.repo_id}"

    def _info(self, revision: str | None = None) -> Any:
        return self.api.repo_info(self.repo_id, repo_type=self.repo_type, revision=revision)

    def _user(self) -> str:
        """The owner of the token. Raises `PublishError` when it cannot write to the namespace."""
        who = self.api.whoami()
        name = str(who.get("name"))
        role = ((who.get("auth") or {}).get("accessToken") or {}).get("role")
        if role == "read":
            raise PublishError(
                f"The token of {name!r} may only read: {self.repo_id!r} needs one with the write role. "
                f"Make one at {_TOKENS}."
            )
        owner = self.repo_id.partition("/")[0] if "/" in self.repo_id else name
        organizations = [str(o.get("name")) for o in who.get("orgs") or ()]
        if owner not in (name, *organizations):
            raise PublishError(
                f"{self.repo_id!r} is in the namespace of {owner!r}; the token belongs to {name!r}"
                + (f" (organizations: {', '.join(organizations)})" if organizations else "")
                + f". Choose a name such as '{name}/{self.repo_id.partition('/')[2]}'."
            )
        return name

    def branch(self, name: str) -> Branch | None:
        """A branch with the paths of its files; None when there is none of that name."""
        from huggingface_hub.errors import RevisionNotFoundError

        with self.told():
            try:
                info = self._info(name)
            except RevisionNotFoundError:
                return None
        paths = {s.rfilename for s in info.siblings or ()}
        listed: Any = None
        if LIST_NAME in paths:
            with suppress(ValueError, RecursionError):  # somebody else's file of that name
                listed = json.loads(self.read(LIST_NAME, str(info.sha)))
        return Branch(name, str(info.sha), True, paths, listed if isinstance(listed, dict) else {})

    def main(self) -> Branch:
        """The branch `main`."""
        found = self.branch("main")
        if found is None:
            raise PublishError(f"{self.repo_id} has no branch main, and only that can be published to.")
        return found

    def read(self, path: str, commit: str) -> bytes:
        """The content of one file."""
        with self.told():
            found = self.api.hf_hub_download(self.repo_id, path, repo_type=self.repo_type, revision=commit)
        return Path(found).read_bytes()

    def commit(
        self,
        main: Branch,
        init: Branch | None,
        message: str,
        pages: Callable[[str | None], Mapping[str, bytes]] = lambda init_commit: {},
    ) -> tuple[str, str | None]:
        """Commits the operations of both branches, one commit each, and returns the two commits.

        Most bytes are uploaded first, which changes nothing. Then `init` is committed, then `main`, with
        `pages` of the commit of `init`, which may name it. When the commit of `main` fails, `init` is put
        back. The Hub refuses a commit when someone else has committed in between, so two publications at once
        do not mix.
        """
        branches = [branch for branch in (init, main) if branch is not None]
        with self.told(f"{self.repo_id} is as it was.", slow=True):
            for branch in branches:
                self.api.preupload_lfs_files(
                    self.repo_id,
                    branch.additions,
                    repo_type=self.repo_type,
                    revision=branch.head,
                    free_memory=False,
                )
        made: CommitInfo | None = None
        if init is not None:
            with self.told(f"The branch main of {self.repo_id} is as it was.", slow=True):
                if not init.exists:
                    self.api.create_branch(
                        self.repo_id, repo_type=self.repo_type, branch=init.name, revision=init.head
                    )
                try:
                    made = self._send(init, f"{message}: as initialised")
                except BaseException:  # an interrupt, too
                    self._put_back(init, init.head)
                    raise
        main.add(pages(made.oid if made is not None else None))
        with self.told(lambda: self._after_failure(main, init, made), slow=True):
            done = self._send(main, message)
        return done.oid, made.oid if made is not None else None

    def _send(self, branch: Branch, message: str) -> CommitInfo:
        return self.api.create_commit(
            self.repo_id,
            branch.operations(),
            commit_message=message,
            repo_type=self.repo_type,
            revision=branch.name,
            parent_commit=branch.head,
        )

    def _after_failure(self, main: Branch, init: Branch | None, made: CommitInfo | None) -> str:
        """Puts `init` back unless `main` has our commit, and returns the state of the repository in words."""
        again = "Publish again to bring both up to date."
        there = f", its branch {init.name} at {made.oid[:8]}" if init is not None and made is not None else ""
        try:
            now = str(self._info(main.name).sha)
        except request_errors():
            return f"Whether the branch main of {self.repo_id} took the commit is not known{there}. {again}"
        if now != main.head:
            return f"The branch main of {self.repo_id} is at commit {now[:8]} now{there}. {again}"
        if init is not None and made is not None and not self._put_back(init, made.oid):
            return f"The branch main of {self.repo_id} is as it was (commit {now[:8]}){there}. {again}"
        return f"{self.repo_id} is as it was."

    def _put_back(self, branch: Branch, ours: str) -> bool:
        """Undoes our commit `ours` on a branch unless it is followed by another; whether that was done."""
        from huggingface_hub import CommitOperationCopy, CommitOperationDelete

        try:
            info = self._info(branch.name)
            if info.sha != ours:
                return False
            if not branch.exists:
                self.api.delete_branch(self.repo_id, repo_type=self.repo_type, branch=branch.name)
            elif ours != branch.head:
                held = {s.rfilename for s in info.siblings or ()}
                operations: list[Any] = [
                    CommitOperationCopy(path, path, src_revision=branch.head) for path in sorted(branch.paths)
                ]
                operations += [CommitOperationDelete(path) for path in sorted(held - branch.paths)]
                self.api.create_commit(
                    self.repo_id,
                    operations,
                    commit_message="As before",
                    repo_type=self.repo_type,
                    revision=branch.name,
                    parent_commit=ours,
                )
        except _failures() as error:
            logger.warning("The branch %s of %s was not put back: %s", branch.name, self.repo_id, error)
            return False
        return True

    @contextmanager
    def told(self, state: str | Callable[[], str] = "", *, slow: bool = False) -> Iterator[None]:
        """Turns any failure of a request into one `PublishError`, whose message ends with `state`.

        Requests that are `slow` may take longer.
        """
        try:
            with patience(patience_seconds() * (_SLOW if slow else 1)):
                yield
        except EmbinitError:
            raise
        except _failures() as error:
            reason = explain(error, self.repo_id, self.api.endpoint)
            with patience():
                after = state if isinstance(state, str) else state()
            raise PublishError(f"{reason} {after}".rstrip()) from error
        except KeyboardInterrupt:
            if not isinstance(state, str):
                with patience():
                    logger.warning("%s The Hub may still take what was sent: if so, publish again.", state())
            raise


def explain(error: BaseException, repo_id: str, endpoint: str) -> str:
    """The cause of a failed request, in one sentence."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        return explain(error.__cause__, repo_id, endpoint)  # the upload threads wrap theirs
    if isinstance(error, LocalTokenNotFoundError):
        return f"Publishing to {repo_id!r} needs a token with the write role, and there is none. {_LOGIN}"
    if not isinstance(error, HfHubHTTPError):
        if isinstance(error, (ValueError, RuntimeError)):
            return f"{repo_id} was not published: {_line(error)}"
        if "Timeout" in type(error).__name__:
            return f"The Hub {no_answer(endpoint)}."
        return f"The connection to {endpoint} was lost ({_line(error)})."
    status = error.response.status_code if error.response is not None else 0
    if status == 401:
        return f"The Hub does not know the token. {_LOGIN}"
    if status == 403:
        return (
            f"The token may not write to {repo_id!r} ({error.server_message or 'forbidden'}): it needs the "
            f"write role there, see {_TOKENS}."
        )
    if status in (409, 412):
        return f"Someone else published to {repo_id} at the same time."
    return f"The Hub refused with status {status}: {error.server_message or _line(error)}."


def _failures() -> tuple[type[Exception], ...]:
    """The exceptions of uploading and committing.

    The client turns refusals of files into `ValueError`, errors of its threads into `RuntimeError`.
    """
    return (ValueError, RuntimeError, *request_errors())


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def check_repo_id(repo_id: str) -> str:
    """`repo_id` as it is. Raises `InvalidArgumentError` for a name that no repository can have."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InvalidArgumentError(
            f"repo_id={repo_id!r} is no name of a Hub repository: {_line(error)}."
        ) from error
    return repo_id
