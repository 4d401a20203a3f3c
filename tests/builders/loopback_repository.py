"""What the Hub on this machine keeps: repositories of commits, in memory."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field

LFS_ENDINGS = (".safetensors", ".bin", ".png", ".pt", ".parquet")
NO_COMMIT = "0" * 40


@dataclass
class Blob:
    """The content of a file, and whether LFS keeps it."""

    data: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        if self.lfs:
            return hashlib.sha256(self.data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()


@dataclass
class Commit:
    """A tree, and how it came about."""

    oid: str
    files: dict[str, Blob]
    parent: str | None
    title: str
    author: str


@dataclass
class Repository:
    """Branches and tags over commits."""

    private: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, revision: str) -> Commit | None:
        """The commit of a branch, a tag or an oid."""
        return self.commits.get(self.branches.get(revision) or self.tags.get(revision) or revision)

    def add(self, branch: str, files: dict[str, Blob], title: str, author: str) -> Commit:
        """A commit on top of a branch."""
        parent = self.branches.get(branch)
        told = json.dumps([parent, title, len(self.commits), {k: v.oid for k, v in sorted(files.items())}])
        commit = Commit(hashlib.sha1(told.encode()).hexdigest(), files, parent, title, author)
        self.commits[commit.oid] = commit
        self.branches[branch] = commit.oid
        return commit

    def titles(self, revision: str = "main") -> list[str]:
        """Titles of the commits of a revision, newest first."""
        found = []
        commit = self.find(revision)
        while commit is not None:
            found.append(commit.title)
            commit = self.commits.get(commit.parent or "")
        return found

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Path -> content at a revision."""
        commit = self.find(revision)
        assert commit is not None, revision
        return {path: blob.data for path, blob in sorted(commit.files.items())}
