"""Those who wait for a stream to change.

Invariant: a callback that is added or removed while others are called takes effect with the next change.
"""

from collections.abc import Callable


class Waitable:
    """A stream whose changes wake its waiters: the high watermark or the log start moves, whoever serves it changes,
    or it is deleted.
    """

    def __init__(self) -> None:
        self._waiters: dict[Callable[[], None], None] = {}

    def add_waiter(self, callback: Callable[[], None]) -> None:
        """Call `callback` with every change."""
        self._waiters[callback] = None

    def remove_waiter(self, callback: Callable[[], None]) -> None:
        """Undo `add_waiter`."""
        self._waiters.pop(callback, None)

    def wake_waiters(self) -> None:
        """Call them though nothing has changed: what they were told is on its way may have come."""
        self._wake()

    def _wake(self) -> None:
        for callback in list(self._waiters):
            callback()
