"""The token that a coordinator's clients must know: as new as its file, with a time in which both are taken.

Invariants: the token of the file is accepted from the look on that finds it, CHECK_S after it was written or at once on
SIGHUP; the one before it for OVERLAP_S more, so that clients may get the new one meanwhile, and then no longer. A file
that cannot be used changes nothing, and is reported once for each state that it is in. The token is in no report.
"""

from pathlib import Path
from typing import Final

import trio

from logstore.base.errors import CairnError
from logstore.base.events import Report
from logstore.base.tls import file_states
from scheduler.coordinator.errors import StartError
from scheduler.coordinator.log_events import SECRET_LOADED, SECRET_UNUSABLE

CHECK_S: Final = 10.0
"""How often the file is looked at."""
OVERLAP_S: Final = 600.0
"""How long a former token is accepted; a client looks at its file before each request."""
MAX_FORMER: Final = 4
"""Of a file that changes again within that time: the oldest give way."""
MIN_TOKEN_CHARACTERS: Final = 16
SETTING: Final = "token-file"
"""Both `coordinator-token-file` of a sidecar and `--token-file` of `cairn coordinate`."""


class AcceptedTokens:
    """See the module. Raises StartError if the file cannot be used now. Reads the file, so it blocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loaded = self._states()
        """The state of the file that the token is of."""
        self._refused: object = None
        """The state in which the file could not be used the last time, if that was the last time."""
        self._token = read_token(path).encode()
        self._former: dict[bytes, float] = {}
        """When each of them ends, in the event loop's seconds."""
        self._wanted = trio.Event()

    def __call__(self) -> tuple[bytes, ...]:
        """The tokens that are accepted now, also where the file cannot be looked at. Within an event loop."""
        if not self._former:
            return (self._token,)
        now_s = trio.current_time()
        return (self._token, *(token for token, until_s in self._former.items() if until_s > now_s))

    def look_again(self) -> None:
        """Look at the file soon."""
        self._wanted.set()

    async def follow(self, report: Report) -> None:
        """Look at the file every CHECK_S; never returns. A cancellation does not wait for the file: the file system
        that it is on may hang.
        """
        while True:
            with trio.move_on_after(CHECK_S):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await self._look(report)

    async def _look(self, report: Report) -> None:
        now_s = trio.current_time()
        self._former = {token: until_s for token, until_s in self._former.items() if until_s > now_s}
        states = await trio.to_thread.run_sync(self._states, abandon_on_cancel=True)
        if states == self._loaded:  # as of before reading: a file that changes meanwhile is read again
            return
        try:
            token = (await trio.to_thread.run_sync(read_token, self._path, abandon_on_cancel=True)).encode()
        except CairnError as error:
            if states != self._refused:
                self._refused = states
                report(SECRET_UNUSABLE, of=SETTING, error=str(error), effect="the former one stays in use")
            return
        self._loaded, self._refused = states, None
        if token != self._token:
            self._former.pop(token, None)
            self._former[self._token] = trio.current_time() + OVERLAP_S
            self._former = dict(list(self._former.items())[-MAX_FORMER:])
            self._token = token
        report(SECRET_LOADED, of=SETTING, former_accepted_s=int(OVERLAP_S))

    def _states(self) -> object:
        return file_states((str(self._path),))


def read_token(path: Path) -> str:
    """A token from its file. Raises StartError."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"token file {path}: {getattr(error, 'strerror', None) or 'must be ASCII'}") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise StartError(f"token file {path}: a token has at least {MIN_TOKEN_CHARACTERS} characters and no blanks")
    return token
