"""Ends a benchmark that has built something in order."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end this program as Ctrl-C does: everything it built is removed."""

    def interrupt(_: int, __: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
