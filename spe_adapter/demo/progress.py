"""How far the demonstration is: a bar in a terminal, plain lines where there is none, as in the log of a CI.

Invariants: a plain line has the seconds since the start, the share that is done, and what is done now. What has
happened is a line at once; how many purchases are done is a line each EVERY_S at most; and if nothing happens for
EVERY_S, a line says what is still done.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

EVERY_S: Final = 5.0
TICK_S: Final = 1.0
DONE: Final = "purchases done"
"""What an event ends in that only counts."""
Tell = Callable[[str, float], None]
"""Takes what happens, and the share that is done, from 0 to 1."""


@contextmanager
def shown_progress(console: Console, first: str, now_s: Callable[[], float]) -> Iterator[Tell]:
    """What is told is shown. `first`: what is done now; `now_s`: seconds on a clock that never goes back."""
    if console.is_interactive:
        with _bar(console, first) as tell:
            yield tell
        return
    lines, is_over = (
        PlainLines(lambda line: console.print(line, soft_wrap=True, markup=False), now_s),
        threading.Event(),
    )

    def tick() -> None:
        while not is_over.wait(TICK_S):
            lines.tick()

    lines.tell(first, 0.0)
    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield lines.tell
    finally:
        is_over.set()
        ticking.join()


@contextmanager
def _bar(console: Console, first: str) -> Iterator[Tell]:
    columns = (TextColumn("[bold]{task.description:<40}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(first, total=1.0)

        def tell(event: str, share: float) -> None:
            progress.update(task, description=event, completed=share)
            if event.startswith("kill"):
                progress.console.print(event)

        yield tell


class PlainLines:
    """See the module. `write` takes a line. Thread-safe; `tick` is called again and again."""

    def __init__(self, write: Callable[[str], None], now_s: Callable[[], float]) -> None:
        self._write = write
        self._now_s = now_s
        self._began_s = now_s()
        self._written_s = float("-inf")
        self._current = ("", 0.0)
        self._lock = threading.Lock()

    def tell(self, event: str, share: float) -> None:
        """See Tell."""
        with self._lock:
            is_news = not event.endswith(DONE) and event != self._current[0]
            self._current = (event, share)
            if is_news or self._now_s() - self._written_s >= EVERY_S:
                self._say()

    def tick(self) -> None:
        """Say what is still done, if nothing was said for EVERY_S."""
        with self._lock:
            if self._now_s() - self._written_s >= EVERY_S:
                self._say()

    def _say(self) -> None:
        self._written_s = self._now_s()
        event, share = self._current
        self._write(f"{self._written_s - self._began_s:4.0f} s  {share:4.0%}  {event}")
