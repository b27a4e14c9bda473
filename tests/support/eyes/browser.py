"""A headless Chromium for the tests, driven by the DevTools protocol."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import websocket

from tests.support.harness import eventually

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_browser = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")

_OPTIONS = [
    "--headless=new", "--remote-debugging-port=0", "--remote-allow-origins=*", "--disable-gpu",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
    "--disable-extensions", "--disable-sync", "--hide-scrollbars", "--no-first-run", "--no-default-browser-check",
    "--no-proxy-server", "--lang=en",
]  # fmt: skip


class Browser:
    """One browser with an own profile while the `with` block lasts."""

    def __enter__(self) -> "Browser":
        assert PROGRAM is not None
        self._profile = tempfile.TemporaryDirectory(prefix="sweeperd-browser-", ignore_cleanup_errors=True)
        # Its sandbox cannot be had as root, and it opens nothing but our own page here.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [PROGRAM, *_OPTIONS, *sandbox, f"--user-data-dir={self._profile.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        told = Path(self._profile.name) / "DevToolsActivePort"
        self._port = eventually(lambda: told.exists() and told.read_text().partition("\n")[0], limit=60)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def open(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> "Page":
        """Open a page and wait until it is loaded."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/json/new?about:blank", method="PUT")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as response:
            page = Page(json.load(response)["webSocketDebuggerUrl"])
        page.look(width, height, dark=dark)
        page.go(url)
        return page


class Page:
    """One tab. What goes wrong in it is collected in `problems`."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=20)
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._hear(message)

    def look(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Give the window this size, and the person this taste."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def go(self, url: str) -> None:
        """Load this, and wait until it is there."""
        self.call("Page.navigate", url=url)
        eventually(lambda: self.run("location.href !== 'about:blank' && document.readyState") == "complete")

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    @property
    def text(self) -> str:
        """All that can be read on it."""
        return str(self.run("document.body.innerText")).replace("\u00a0", " ")

    def shows(self, text: str, limit: float = 20.0) -> None:
        """Wait until it can be read."""

        def shown() -> bool:
            self.refresh()
            return text in self.text

        eventually(shown, limit)

    def refresh(self) -> None:
        """Have it ask at once, as if somebody had come back to it."""
        self.run("document.dispatchEvent(new Event('visibilitychange')), 0")

    def picture(self) -> bytes:
        """All of it, as a PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        """Close the tab's connection."""
        self._socket.close()

    def _hear(self, message: dict[str, Any]) -> None:
        method, what = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(what["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(what["args"]))
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.problems.append(json.dumps(what["entry"]))
