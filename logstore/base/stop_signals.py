"""The signals of a process that is stopped in order: once it stops, more of them change nothing.

Invariants:
* A signal that comes within `receive_signals` is given to who iterates. One that nobody has taken by the end is
  dropped: Trio's receiver would deliver it again, and so end the process in the middle of its last steps.
* Behind it the signals are ignored until the process has ended, also while the interpreter takes itself apart. Who does
  not want to wait for an end uses SIGKILL.
* An error that leaves it puts back what signals did before: nothing was stopped in order, and processes that the caller
  starts later would inherit signals that are ignored.
"""

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import FrameType

import trio


@contextmanager
def receive_signals(*numbers: signal.Signals) -> Iterator[AsyncIterator[int]]:
    """Signals as they come; see the module. In the main thread, once in a process."""
    early: set[int] = set()

    def hold(number: int, _frame: FrameType | None) -> None:
        early.add(number)

    # Trio's receiver sets its own handler, and at its end gives `hold` what nobody has taken.
    before = {number: signal.signal(number, hold) for number in numbers}
    behind = before
    try:
        with trio.open_signal_receiver(*numbers) as signals:
            for came in early:
                signal.raise_signal(came)
            yield signals
        behind = dict.fromkeys(numbers, signal.SIG_IGN)
    finally:
        for number in numbers:
            signal.signal(number, behind[number])
