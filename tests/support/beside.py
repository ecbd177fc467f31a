"""Work in a thread beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.limits import PATIENCE_S


@contextmanager
def beside(work: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Do some work in a thread meanwhile. Behind the block it is told to `end` and waited for, and what it raised fails
    the test, unless the block has failed itself.
    """
    failures: list[Exception] = []

    def guarded() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  raised in the test's own thread
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield
    finally:
        end()
        thread.join(2 * PATIENCE_S)
    assert not failures, failures
    assert not thread.is_alive()
