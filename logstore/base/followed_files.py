"""Files that are loaded again when they have changed: secrets, certificates, keys.

Invariants:
* A state counts as loaded as of before the files were read: files that change meanwhile are loaded again.
* Files that could not be used are loaded again at each look until they can be. That is worth a report once for each
  state of them, and again after they could be used.
"""

import os
from collections.abc import Iterable

FileStates = tuple[tuple[int, int, int], ...]
"""Of each file what changes when it is replaced or written."""


class FollowedFiles:
    """The state of files when they were loaded last, which is first when this is made. Reads no file, and may block."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._loaded = self.states()
        self._refused: FileStates | None = None

    def states(self) -> FileStates:
        """Of each file what changes when it is replaced or written; a file that is missing counts as one state."""
        states = []
        for name in self._names:
            try:
                found = os.stat(name)
                states.append((found.st_mtime_ns, found.st_size, found.st_ino))
            except OSError:
                states.append((0, 0, 0))
        return tuple(states)

    def is_loaded(self, states: FileStates) -> bool:
        """Whether the files were in this state when they were loaded last."""
        return states == self._loaded

    def load(self, states: FileStates) -> None:
        """The files were loaded, and were in this state before."""
        self._loaded, self._refused = states, None

    def refuse(self, states: FileStates) -> bool:
        """The files could not be used in this state; whether that is news."""
        is_news, self._refused = states != self._refused, states
        return is_news
