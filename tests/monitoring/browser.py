"""A headless Chromium for tests, driven over WebDriver without a library.

Invariant: browser and driver have ended, and their profile is gone, when the context ends.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from logstore.testing.ports import free_port
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "chromium and chromium-driver are not installed (Debian: apt-get install chromium chromium-driver)"
IS_THERE = DRIVER is not None and BROWSER is not None


class Browser:
    """One window."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _call(self, method: str, path: str, **values: Any) -> Any:
        data = json.dumps(values).encode() if method == "POST" else None
        request = urllib.request.Request(
            self._url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)["value"]

    def open(self, url: str) -> None:
        """Load a page."""
        self._call("POST", "/url", url=url)

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns in the page."""
        return self._call("POST", "/execute/sync", script=script, args=list(arguments))

    def wait(self, script: str, accept: Callable[[Any], bool] = bool) -> Any:
        """The first value of a script that is accepted."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            value = self._call("POST", "/execute/async", script=_SOON % script, args=[])
            if accept(value):
                return value
            assert time.monotonic() < end_s, f"{script}: still {value!r}"

    def console(self) -> list[str]:
        """What the console said since the last call: errors and warnings."""
        found = self._call("POST", "/se/log", type="browser")
        return [str(line["message"]) for line in found if line["level"] in ("SEVERE", "WARNING")]

    def screenshot(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._call("GET", "/screenshot"))

    def end(self) -> None:
        """Close the window."""
        self._call("DELETE", "")


_SOON = "const done = arguments[0]; setTimeout(() => done((() => { %s })()), 100);"


@contextmanager
def chromium(width: int = 1240, height: int = 900) -> Iterator[Browser]:
    """A browser with a window of this size, in pixels."""
    assert DRIVER is not None
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        port = free_port()  # asked for any port, newer drivers say that they listen on port 0
        command = [DRIVER, f"--port={port}"]
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(lambda: _is_ready(driver, port), "chromedriver is ready")
            base = f"http://127.0.0.1:{port}/session"
            options = {
                "binary": BROWSER,
                "args": [
                    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                    "--disable-background-networking", f"--user-data-dir={profile}",
                    f"--window-size={width},{height}",
                ],
            }  # fmt: skip
            wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
            session = Browser(base)._call("POST", "", capabilities=wanted)["sessionId"]
            browser = Browser(f"{base}/{session}")
            try:
                yield browser
            finally:
                browser.end()
        finally:
            driver.terminate()
            driver.wait(PATIENCE_S)


def _is_ready(driver: subprocess.Popen[bytes], port: int) -> bool:
    """Whether the driver answers that it takes sessions."""
    assert driver.poll() is None, f"chromedriver ended with {driver.returncode}"
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=PATIENCE_S) as answer:
        return bool(json.load(answer)["value"]["ready"])
    return False
