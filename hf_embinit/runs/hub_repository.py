"""Commits to a repository of the Hub: access checked first, large files before any commit, all or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EmbinitError, InvalidArgumentError, PublishError
from ..hub_access import hub_is_offline, hub_is_reachable, request_errors
from .public_files import is_published

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, HfApi

logger = logging.getLogger(__name__)

INIT_BRANCH = "init"
_TOKENS = "https://huggingface.co/settings/tokens"
_LOGIN = f"Run `hf auth login`, set HF_TOKEN, or give token= (--hub_token); tokens are made at {_TOKENS}."


@dataclass
class Branch:
    """A branch, what it holds, and the operations that make it hold something else."""

    name: str
    head: str
    """Commit that the operations build on."""
    exists: bool
    paths: set[str]
    operations: list[Any] = field(default_factory=list)

    def replace(self, files: Mapping[str, Path | bytes]) -> None:
        """Plans the commit after which the branch holds `files`; of what was there, the README of the Hub's
        own page and files of other kinds stay."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        self.operations = [
            CommitOperationAdd(path_in_repo=path, path_or_fileobj=content)
            for path, content in sorted(files.items())
        ]
        stale = sorted(path for path in self.paths - set(files) if is_published(path))
        self.operations += [CommitOperationDelete(path_in_repo=path) for path in stale]

    @property
    def additions(self) -> list[Any]:
        """The files to upload."""
        return [operation for operation in self.operations if hasattr(operation, "path_or_fileobj")]


class HubRepository:
    """A model repository that the token may write to; made if it is not there.

    Raises `PublishError`: no token, a wrong or a read-only one, a namespace of somebody else, no connection,
    or a repository that is public when a private one is wanted (and the other way round).
    `InvalidArgumentError` for a name that no repository can have.
    """

    def __init__(self, repo_id: str, *, private: bool | None = None, token: str | None = None):
        from huggingface_hub import HfApi
        from huggingface_hub.errors import RepositoryNotFoundError

        self.token = token
        self.api: HfApi = HfApi(token=token)
        self.repo_id = _check_name(repo_id)
        if hub_is_offline():
            raise PublishError(f"Nothing can be published to {repo_id!r}: HF_HUB_OFFLINE is set. Unset it.")
        if not hub_is_reachable():
            raise PublishError(
                f"Nothing can be published to {repo_id!r}: the Hub cannot be reached at {self.api.endpoint}. "
                "Publish again when there is a connection."
            )
        with self.told():
            user = self._user()
            if "/" not in self.repo_id:
                self.repo_id = f"{user}/{self.repo_id}"
            try:
                found = self.api.model_info(self.repo_id)
            except RepositoryNotFoundError:
                self.api.create_repo(self.repo_id, private=private, exist_ok=True)
                found = self.api.model_info(self.repo_id)
        if private is not None and bool(found.private) != private:
            kind = "private" if found.private else "public"
            raise PublishError(
                f"{self.repo_id} is there and is {kind}, but private={private} was asked for. Change it in "
                "the repository's settings, or leave private= (--hub_private_repo) out."
            )

    def _user(self) -> str:
        """Who the token belongs to. Raises `PublishError` when it cannot write to the namespace."""
        who = self.api.whoami()
        name = str(who.get("name"))
        role = ((who.get("auth") or {}).get("accessToken") or {}).get("role")
        if role == "read":
            raise PublishError(
                f"The token of {name!r} may only read: {self.repo_id!r} needs one with the write role, made "
                f"at {_TOKENS}."
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
                info = self.api.model_info(self.repo_id, revision=name)
            except RevisionNotFoundError:
                return None
        return Branch(name, str(info.sha), True, {s.rfilename for s in info.siblings or ()})

    def main(self) -> Branch:
        """The branch `main`."""
        found = self.branch("main")
        if found is None:
            raise PublishError(f"{self.repo_id} has no branch main, and only that can be published to.")
        return found

    def read(self, path: str, commit: str) -> bytes:
        """The content of one file."""
        with self.told():
            found = self.api.hf_hub_download(self.repo_id, path, revision=commit)
        return Path(found).read_bytes()

    def commit(self, main: Branch, init: Branch | None, message: str) -> tuple[str, str | None]:
        """Carries out the operations of both branches, one commit each; gives the commits.

        The bulk of the bytes goes first and changes nothing; then `init`, then `main`. When the commit of
        `main` fails, `init` is put back. Someone else's commit in between, and the other of two that publish
        at once, is refused by the Hub: no mixture comes about.
        """
        branches = [branch for branch in (init, main) if branch is not None]
        with self.told(f"{self.repo_id} is as it was."):
            for branch in branches:
                self.api.preupload_lfs_files(
                    self.repo_id, branch.additions, revision=branch.head, free_memory=False
                )
        made: CommitInfo | None = None
        if init is not None:
            with self.told(f"The branch main of {self.repo_id} is as it was."):
                if not init.exists:
                    self.api.create_branch(self.repo_id, branch=init.name, revision=init.head)
                try:
                    made = self._send(init, f"{message}: as initialised")
                except Exception:
                    self._put_back(init, init.head)
                    raise
        with self.told(lambda: self._after_failure(main, init, made)):
            done = self._send(main, message)
        return done.oid, made.oid if made is not None else None

    def _send(self, branch: Branch, message: str) -> CommitInfo:
        return self.api.create_commit(
            self.repo_id,
            branch.operations,
            commit_message=message,
            revision=branch.name,
            parent_commit=branch.head,
        )

    def _after_failure(self, main: Branch, init: Branch | None, made: CommitInfo | None) -> str:
        """Puts `init` back if `main` was not changed by us; says what the repository is like."""
        again = "Publish again to bring both up to date."
        try:
            now = str(self.api.model_info(self.repo_id, revision=main.name).sha)
        except request_errors():
            return f"Whether {self.repo_id} took the commit is not known. {again}"
        if now != main.head:
            return f"The branch {main.name} of {self.repo_id} is at commit {now[:8]} now. {again}"
        if init is not None and made is not None and not self._put_back(init, made.oid):
            return f"The branch main of {self.repo_id} is as it was, but not {init.name}. {again}"
        return f"{self.repo_id} is as it was."

    def _put_back(self, branch: Branch, ours: str) -> bool:
        """Undoes our commit `ours` on a branch, unless someone committed after us; whether that was done."""
        from huggingface_hub import CommitOperationCopy, CommitOperationDelete

        try:
            info = self.api.model_info(self.repo_id, revision=branch.name)
            if info.sha != ours:
                return False
            if not branch.exists:
                self.api.delete_branch(self.repo_id, branch=branch.name)
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
                    revision=branch.name,
                    parent_commit=ours,
                )
        except _failures() as error:
            logger.warning("The branch %s of %s was not put back: %s", branch.name, self.repo_id, error)
            return False
        return True

    @contextmanager
    def told(self, state: str | Callable[[], str] = "") -> Iterator[None]:
        """Any failure of a request as one `PublishError`, which ends in `state`."""
        try:
            yield
        except EmbinitError:
            raise
        except _failures() as error:
            reason = explain(error, self.repo_id, self.api.endpoint)
            after = state if isinstance(state, str) else state()
            raise PublishError(f"{reason} {after}".rstrip()) from error


def explain(error: BaseException, repo_id: str, endpoint: str) -> str:
    """What went wrong with a request, in one sentence."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        return explain(error.__cause__, repo_id, endpoint)  # the upload threads wrap theirs
    if isinstance(error, LocalTokenNotFoundError):
        return f"Publishing to {repo_id!r} needs a token with the write role, and there is none. {_LOGIN}"
    if not isinstance(error, HfHubHTTPError):
        if isinstance(error, (ValueError, RuntimeError)):
            return f"{repo_id} was not published: {_line(error)}"
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
    """What uploading and committing may raise: the client turns refusals of files into `ValueError`, errors
    of its threads into `RuntimeError`."""
    return (ValueError, RuntimeError, *request_errors())


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _check_name(repo_id: str) -> str:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InvalidArgumentError(
            f"repo_id={repo_id!r} is no name of a Hub repository: {_line(error)}."
        ) from error
    return repo_id
