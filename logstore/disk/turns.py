"""Counts the turns of the event loop: what happens in one turn happens together.

Invariant: a turn ends when all tasks that were to run have run, in front of the wait for more.
"""

import trio


class Turns(trio.abc.Instrument):
    """See the module; an instrument of trio's, which has to be added."""

    def __init__(self) -> None:
        self.number = 0

    def before_io_wait(self, timeout: float) -> None:
        """A turn has ended."""
        self.number += 1
