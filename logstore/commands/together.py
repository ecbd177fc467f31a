"""Several questions of a command at the same moment, each to be answered by another host or by another request.

Invariants: AT_ONCE at most are under way, whatever their number. Who is silent holds up only what would be asked in the
same place behind it. Ctrl-C ends the command at once: the threads end with the process, and wait for nobody.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
AT_ONCE: Final = 16
"""Most hosts that a command asks at a time; each costs a connection, with a login where there are any."""


def ask_together(questions: Sequence[Callable[[], T]]) -> list[T]:
    """The answers, in the order of the questions. Raises the error of the first question that raised one, when all have
    been answered.
    """
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[int] = queue.SimpleQueue()
    answers: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    for number in range(len(questions)):
        left.put(number)

    def work() -> None:
        while True:
            try:
                number = left.get_nowait()
            except queue.Empty:
                return
            try:
                answers[number] = questions[number]()
            except BaseException as error:  # noqa: BLE001  raised where the answers are awaited
                errors[number] = error
            done.put(number)

    for _ in range(min(AT_ONCE, len(questions))):
        threading.Thread(target=work, name="cairn question", daemon=True).start()
    for _ in questions:
        done.get()
    if errors:
        raise errors[min(errors)]
    return [answers[number] for number in range(len(questions))]
