"""How far a long command is: a bar where rich is installed and a terminal is there, otherwise a line now and then.

Invariants: progress goes to standard error; telling it is cheap, however often; without a terminal, and with
`--quiet`, nothing is shown.
"""

import sys
import time
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any, Final, Self

from logstore.commands.output import show_bytes

LINE_INTERVAL_S: Final = 2.0
BAR_INTERVAL_S: Final = 0.1
_MEGA: Final = 1e6


class Progress:
    """Counts bytes of a total."""

    def __init__(self, title: str, total_bytes: int, *, is_shown: bool) -> None:
        self._title = title
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._began_s = self._shown_s = time.monotonic()
        self._is_shown = is_shown and sys.stderr.isatty()
        self._bar = _rich_bar(title, total_bytes) if self._is_shown else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began_s

    def advance(self, count_bytes: int) -> None:
        """So many bytes more are done."""
        self._done_bytes += count_bytes
        if not self._is_shown:
            return
        now_s = time.monotonic()
        if now_s - self._shown_s < (LINE_INTERVAL_S if self._bar is None else BAR_INTERVAL_S):
            return
        self._shown_s = now_s
        with suppress(OSError):  # a terminal that is gone is no fault of what is being done
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=self._done_bytes)
            else:
                print(self._line(), file=sys.stderr)

    def _line(self) -> str:
        percent = 100 * self._done_bytes // max(1, self._total_bytes)
        speed = self._done_bytes / _MEGA / max(1e-9, self.seconds)
        done, total = show_bytes(self._done_bytes), show_bytes(self._total_bytes)
        return f"{self._title}: {min(percent, 100)} %, {done} of {total}, {speed:.0f} MB/s"


def _rich_bar(title: str, total_bytes: int) -> Any | None:
    """A bar of rich on standard error; None where rich is not installed."""
    try:
        progress, console = import_module("rich.progress"), import_module("rich.console")
    except ModuleNotFoundError:
        return None
    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=console.Console(stderr=True),
        transient=True,
    )
    bar.add_task(title, total=total_bytes)
    return bar
