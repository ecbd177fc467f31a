"""Questions of a command are under way together, a bounded number of them; a silent host holds up no other."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from logstore.commands.together import AT_ONCE, ask_together
from logstore.errors import CairnError
from tests.support.limits import PATIENCE_S


def test_as_many_as_may_are_asked_at_once() -> None:
    """None of them is answered before the bound of them is under way, and no more than these ever are; the answers have
    the order of the questions.
    """
    lock, now, most = threading.Lock(), 0, 0
    under_way = threading.Barrier(AT_ONCE)

    def ask(number: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        under_way.wait(PATIENCE_S)
        with lock:
            now -= 1
        return number

    assert ask_together([partial(ask, number) for number in range(3 * AT_ONCE)]) == list(range(3 * AT_ONCE))
    assert most == AT_ONCE
    assert ask_together([]) == []


def test_the_first_error_is_raised_when_all_are_answered() -> None:
    """Of several errors that of the earlier question, whichever came first; the other questions were asked all the
    same.
    """
    later = threading.Event()
    asked: list[int] = []

    def first() -> None:
        later.wait(PATIENCE_S)
        raise CairnError("first")

    def second() -> None:
        later.set()
        raise CairnError("second")

    def third() -> None:
        asked.append(3)

    with pytest.raises(CairnError, match="first"):
        ask_together([first, second, third])
    assert asked == [3]
