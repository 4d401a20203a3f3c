"""A headless Chromium to look at pages with: its DevTools protocol over pipes, standard library only."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
_READY = "document.readyState === 'complete' && [...document.images].every(i => i.complete)"


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not 3 and 4, where the browser will have its own."""
    low = os.pipe()
    ends = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return ends[0], ends[1]


class Browser:
    """One page of a headless browser without a network; `events` is all it reported."""

    def __init__(self, profile: Path):
        assert CHROMIUM is not None
        self.number = 0
        self.events: list[dict[str, Any]] = []
        self.buffer = b""
        reads, self.to_browser = _pipe()
        self.from_browser, writes = _pipe()
        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe", f"--user-data-dir={profile}",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash", CHROMIUM, *flags, "about:blank"],
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self.session: str | None = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.to_browser)  # the browser ends with its pipe
        os.close(self.from_browser)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        limit = time.monotonic() + 120
        while True:
            answer = self._read(limit)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _read(self, limit: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            assert select.select([self.from_browser], [], [], max(0.0, limit - time.monotonic()))[0], (
                "no answer"
            )
            data = os.read(self.from_browser, 1 << 16)
            assert data, "the browser ended"
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        limit = time.monotonic() + 60
        while not self.evaluate(f"location.href === {json.dumps(url)} && {_READY}"):
            assert time.monotonic() < limit, f"{url} did not load"
            time.sleep(0.05)

    def evaluate(self, code: str) -> Any:
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page, not only what is on the screen."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def requests(self) -> list[str]:
        """What was asked for, of any kind but data in the page itself."""
        sent = [
            e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in sent if not url.startswith("data:")]

    def complaints(self) -> list[Any]:
        """Errors and warnings of the console, exceptions and failed requests."""
        kinds = (
            "Runtime.exceptionThrown",
            "Network.loadingFailed",
            "Log.entryAdded",
            "Runtime.consoleAPICalled",
        )
        return [e["params"] for e in self.events if e["method"] in kinds]
