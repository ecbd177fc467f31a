"""Cairn's sidecar as a peer: a real process, started by the command that users start."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness.process import ServerProcess
from logstore.testing.ports import free_port

AS_INSTALLED: Final = {"PYTHONDONTWRITEBYTECODE": ""}
"""pip compiles what it installs. An environment that forbids compiled modules would add 0.2 s to each start."""


class SidecarPeer:
    """One sidecar on 127.0.0.1; its data lives in `directory`/cairn and survives restarts."""

    def __init__(self, directory: Path, *, flags: Sequence[str] = (), name: str = "Cairn") -> None:
        """`flags` are further flags of `cairn serve`."""
        self.name = name
        self.port = free_port()
        self.data_path = directory / "cairn"
        self._process = ServerProcess(
            [
                *(sys.executable, "-m", "logstore.cli", "serve"),
                *("--data-dir", str(self.data_path), "--kafka", f"127.0.0.1:{self.port}", *flags),
            ],
            directory / "cairn.log",
            AS_INSTALLED,
        )

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def start(self) -> None:
        """Start it and return at once."""
        self._process.start()

    def wait_serving(self, timeout_seconds: float = 60.0) -> None:
        """Until it accepts connections; PeerFailed otherwise."""
        self._process.wait_listening(self.port, timeout_seconds)

    def stop(self) -> None:
        """A clean shutdown."""
        self._process.stop()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
