"""Waiting in real time for what must come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from tests.support.limits import PATIENCE_S

T = TypeVar("T")
PAUSE_S: Final = 0.02


def until(is_so: Callable[[], object], what: str | Callable[[], str]) -> None:
    """Look again and again until something is so. `what` it is, for who reads of a failure; as a function it is asked
    then, and may say how far things are.
    """
    end_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not is_so():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {PATIENCE_S} s: {what if isinstance(what, str) else what()}")
        pause.wait(PAUSE_S)


def until_holds(check: Callable[[], T]) -> T:
    """Make a check that asserts, again and again, until no assertion of it fails; gives what it returns. When patience
    ends, its last failure is raised.
    """
    end_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > end_s:
                raise
            pause.wait(PAUSE_S)
