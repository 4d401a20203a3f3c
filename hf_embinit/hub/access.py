"""Access to the Hugging Face Hub, or one clear sentence within seconds when it cannot be reached.

Without a network the Hub's own client retries for many seconds before its first error, so a plain connection
is tried first. Everything honors `HF_ENDPOINT`, `HF_HUB_OFFLINE` and the proxy variables, and waits for an
answer as long as `HF_HUB_DOWNLOAD_TIMEOUT` says (10 seconds unless set).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import DataNotFoundError
from ..foreign import reading, reason

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
"""How long a connection may take, name look-up included."""
_REMEMBER_SECONDS = 60.0
_last: dict[str, tuple[float, str]] = {}
"""Endpoint -> when it was tried, and what is wrong with it (empty: nothing)."""
_patience: list[float] = []
"""The time limits, in seconds, of the `patience` blocks that are open."""


def hub_is_offline() -> bool:
    """Whether `HF_HUB_OFFLINE` (or `TRANSFORMERS_OFFLINE`) says that only the cache may be used."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def hub_is_reachable() -> bool:
    """Whether the Hub answers: remembered for a minute."""
    return not hub_problem()


def hub_problem() -> str:
    """Why the Hub cannot be used, `""` if it can; remembered for a minute.

    The reasons are offline mode, no connection within `CONNECT_SECONDS`, no
    answer within `patience_seconds()`.
    """
    from huggingface_hub import constants

    if hub_is_offline():
        return "the Hub may not be asked, HF_HUB_OFFLINE is set"
    endpoint = constants.ENDPOINT
    known = _last.get(endpoint)
    if known is None or time.monotonic() - known[0] >= _REMEMBER_SECONDS:
        problem = ""
        if not _connects(*_address(endpoint)):
            problem = f"the Hub cannot be reached at {endpoint}"
        elif not _answers(endpoint):
            problem = f"the Hub {no_answer(endpoint)}"
        known = _last[endpoint] = (time.monotonic(), problem)
    return known[1]


def patience_seconds() -> int:
    """How long a request to the Hub waits for its answer: `HF_HUB_DOWNLOAD_TIMEOUT`."""
    from huggingface_hub import constants

    return constants.HF_HUB_DOWNLOAD_TIMEOUT


def no_answer(endpoint: str) -> str:
    """The sentence for a Hub that accepts a connection and then sends nothing."""
    return (
        f"at {endpoint} takes connections but does not answer within {patience_seconds()} s "
        "(HF_HUB_DOWNLOAD_TIMEOUT sets how long to wait)"
    )


@contextlib.contextmanager
def patience(seconds: float | None = None) -> Iterator[None]:
    """Inside, no request of the Hub's client waits longer than `seconds`; by default many wait for ever."""
    from huggingface_hub import get_session

    session = get_session()
    hooks = session.event_hooks
    if _cap_waiting not in hooks.get("request", ()):
        session.event_hooks = {**hooks, "request": [*hooks.get("request", ()), _cap_waiting]}
    most = patience_seconds() if seconds is None else seconds
    _patience.append(most)
    try:
        yield
    finally:
        _patience.remove(most)


def _cap_waiting(request: Any) -> None:
    """Request hook of the HTTP client that all threads share: applies the time limit of `patience`."""
    if _patience:
        waits, most = request.extensions.get("timeout") or {}, max(_patience)
        kinds = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = {kind: min(most, waits.get(kind) or most) for kind in kinds}


@contextlib.contextmanager
def cache_only() -> Iterator[None]:
    """Inside, Hub libraries use their caches alone, as if HF_HUB_OFFLINE were set: no retries."""
    from huggingface_hub import constants

    copied = sys.modules.get("datasets.config")  # `datasets` has a copy of the setting
    holders: list[Any] = [constants] if copied is None else [constants, copied]
    before = [holder.HF_HUB_OFFLINE for holder in holders]
    for holder in holders:
        holder.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for holder, value in zip(holders, before, strict=True):
            holder.HF_HUB_OFFLINE = value


def require_hub(what: str, way_out: str) -> None:
    """Raises `DataNotFoundError` if the Hub cannot be used for `what`; `way_out` says what to do instead."""
    problem = hub_problem()
    if problem:
        more = "" if hub_is_offline() else "With HF_HUB_OFFLINE=1 only the local cache is used."
        raise DataNotFoundError(" ".join(filter(None, (f"{what}: {problem}.", way_out, more))))


def request_errors() -> tuple[type[Exception], ...]:
    """The exceptions of a request to the Hub, answered or not.

    `HfHubHTTPError` derives from `OSError` and from its HTTP client's own error class, which
    differs between versions.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return tuple(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))


def hub_snapshot(
    repo_id: str,
    patterns: Sequence[str],
    *,
    revision: str | None = None,
    way_out: str = "",
) -> Path:
    """The folder, named by its commit, with the files of a Hub repository that match `patterns`.

    It is that of the cache when the Hub is out of reach. Raises `DataNotFoundError`, whose message
    ends with `way_out`.
    """
    from huggingface_hub import snapshot_download

    folder = _ask_hub(
        snapshot_download,
        f"model {repo_id!r}",
        way_out,
        repo_id=repo_id,
        revision=revision,
        allow_patterns=list(patterns),
    )
    return Path(folder)


def hub_file(
    repo_id: str,
    filename: str,
    *,
    revision: str | None = None,
    way_out: str = "",
) -> Path | None:
    """The path of one file of a Hub repository, or None when the repository has no such file.

    It is read from the cache when the Hub is out of reach. Raises `DataNotFoundError`, whose message
    ends with `way_out`.
    """
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RemoteEntryNotFoundError

    if not hub_is_reachable():
        with contextlib.suppress(HFValidationError):  # told below
            if try_to_load_from_cache(repo_id, filename, revision=revision) is _CACHED_NO_EXIST:
                return None  # as the Hub has answered before
    try:
        file = _ask_hub(
            hf_hub_download,
            f"{filename} of model {repo_id!r}",
            way_out,
            repo_id=repo_id,
            filename=filename,
            revision=revision,
        )
    except RemoteEntryNotFoundError:
        return None
    return Path(file)


def checkpoint_file(
    source: str | PathLike[str], filename: str, revision: str | None = None, subfolder: str | None = None
) -> Path | None:
    """The path of one file of a folder here or of a Hub repository; None where there is none.

    Raises `DataNotFoundError`.
    """
    filename = f"{subfolder}/{filename}" if subfolder else filename
    if not Path(source).is_dir():
        return hub_file(str(source), filename, revision=revision)
    return path if (path := Path(source, filename)).is_file() else None


def _ask_hub(download: Any, what: str, way_out: str, **arguments: Any) -> str:
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if Path(arguments["repo_id"]).is_file():
        raise DataNotFoundError(f"{arguments['repo_id']} is a file: give the folder that it is in")
    local_only, more = not hub_is_reachable(), f" {way_out}".rstrip()
    try:
        with patience():
            return download(**arguments, local_files_only=local_only)
    except RemoteEntryNotFoundError:
        raise
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        require_hub(f"{what} is not in the local cache", way_out)
        raise DataNotFoundError(f"{what} could not be downloaded: {error}.{more}") from error
    except GatedRepoError as error:
        raise DataNotFoundError(
            f"{what} is gated: ask for access on its page, then run `hf auth login`.{more}"
        ) from error
    except RevisionNotFoundError as error:
        raise DataNotFoundError(
            f"{what} has no revision {arguments.get('revision')!r} on the Hub.{more}"
        ) from error
    except RepositoryNotFoundError as error:
        raise DataNotFoundError(
            f"{what} is not on the Hub, or is private (`hf auth login`).{more}"
        ) from error
    except HFValidationError as error:
        raise DataNotFoundError(
            f"{what}: there is no such folder here, and a Hub repository has a name like owner/name.{more}"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise DataNotFoundError(f"{what} could not be downloaded: {error}.{more}") from error


def _address(endpoint: str) -> tuple[str, int]:
    """Host and port to connect to: the endpoint's, or its proxy's."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(host):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _connects(host: str, port: int) -> bool:
    """Whether a connection can be made in time. A name look-up has no timeout, so a thread does both."""
    done = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            done.set()
        except OSError as error:
            logger.debug("no connection to %s:%d: %s", host, port, error)
            failed.set()

    failed = threading.Event()
    threading.Thread(target=connect, name="hf_embinit-hub", daemon=True).start()
    limit = time.monotonic() + CONNECT_SECONDS
    while time.monotonic() < limit and not failed.is_set():
        if done.wait(0.02):
            return True
    return done.is_set()


def _answers(endpoint: str) -> bool:
    """Whether anything at all is answered at an endpoint."""
    from huggingface_hub import get_session

    try:
        with patience():
            get_session().head(endpoint, follow_redirects=False)
    except request_errors() as error:
        logger.debug("no answer from %s: %s", endpoint, error)
        return False
    return True


def load_pretrained(auto: Any, name: str, flag: str, **options: Any) -> Any:
    """`auto.from_pretrained(name)`; from the cache when the Hub is out of reach.

    Raises `DataNotFoundError`, whose message begins with `flag`, when there is nothing of that name, and
    `VectorFileError` when its files are damaged.
    """
    from huggingface_hub.errors import HFValidationError

    local = bool(name) and Path(name).is_dir()
    offline = not local and not hub_is_reachable()
    with reading(flag):
        try:
            with cache_only() if offline else contextlib.nullcontext() if local else patience():
                return auto.from_pretrained(name, local_files_only=local or offline, **options)
        except (OSError, ValueError, RuntimeError, HFValidationError) as error:
            if isinstance(error, RuntimeError):
                if "ignore_mismatched_sizes" not in str(error):
                    raise
                why = "cannot be loaded: tensors in its files have other shapes than its config.json says"
            elif local:
                why = f"cannot be loaded from this folder: {reason(error)}"
            elif Path(name).is_file():
                why = "is a file: give the folder that it is in"
            elif offline:
                why = (
                    "is no folder here, the Hub is out of reach and it is not in the local cache, where "
                    f"`hf download {name}` puts it"
                )
            else:
                why = f"is no folder here and could not be loaded from the Hub: {reason(error)}"
            if options.get("use_safetensors"):
                why += " (only safetensors are read; a pickle with --allow_pickle)"
            raise DataNotFoundError(f"{flag} {why}") from error


def load_pretrained_tokenizer(name: str, flag: str, **options: Any) -> Any:
    """The tokenizer of a folder or Hub id.

    Raises `DataNotFoundError`, whose message begins with `flag`, when there is none.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    tokenizer = load_pretrained(AutoTokenizer, name, flag, **options)
    with reading(flag):
        size = len(tokenizer)
    if size < 2:  # what transformers makes of a folder without files of a tokenizer
        raise DataNotFoundError(f"{flag} has no tokenizer")
    backend, unknown = getattr(tokenizer, "_tokenizer", None), tokenizer.unk_token
    if isinstance(backend, Tokenizer) and unknown is not None and backend.token_to_id(str(unknown)) is None:
        raise DataNotFoundError(
            f"{flag} is damaged: its unknown token {str(unknown)!r} is none of its tokens"
        )
    return tokenizer
