"""The secret that a program's clients must know: as new as its file, with a time in which the former is taken too.

Invariants: the secret of the file is accepted from the look on that finds it, CHECK_S after it was written or at once
where `look_again` is called; the one before it for OVERLAP_S more, so that clients may get the new one meanwhile, and
then no longer, also while the file cannot be looked at. A file that cannot be used changes nothing, is read again at
each look until it can be, and is reported once for each state that it is in. The secret is in no report.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from logstore.base.certificate_events import SECRET_LOADED, SECRET_UNUSABLE
from logstore.base.errors import CairnError
from logstore.base.events import Report
from logstore.base.followed_files import FollowedFiles

CHECK_S: Final = 10.0
"""How often the file is looked at."""
OVERLAP_S: Final = 600.0
"""How long a former secret is accepted; a client looks at its file before each request."""
MAX_FORMER: Final = 4
"""Of a file that changes again within that time: the oldest give way."""


class AcceptedSecrets:
    """See the module. `read` gives the secret in the file, or raises a CairnError, also while this is made; `setting`
    names both in reports. Reads the file, so it blocks.
    """

    def __init__(self, path: Path, read: Callable[[Path], bytes], *, setting: str) -> None:
        self._path = path
        self._read = read
        self._setting = setting
        self._followed = FollowedFiles((str(path),))
        self._secret = read(path)
        self._former: dict[bytes, float] = {}
        """When each of them ends, in the event loop's seconds."""
        self._wanted = trio.Event()

    def __call__(self) -> tuple[bytes, ...]:
        """The secrets that are accepted now, that of the file first. Within an event loop."""
        if not self._former:
            return (self._secret,)
        now_s = trio.current_time()
        return (self._secret, *(secret for secret, until_s in self._former.items() if until_s > now_s))

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
        self._former = {secret: until_s for secret, until_s in self._former.items() if until_s > now_s}
        states = await trio.to_thread.run_sync(self._followed.states, abandon_on_cancel=True)
        if self._followed.is_loaded(states):
            return
        try:
            secret = await trio.to_thread.run_sync(self._read, self._path, abandon_on_cancel=True)
        except CairnError as error:
            if self._followed.refuse(states):
                report(SECRET_UNUSABLE, of=self._setting, error=str(error), effect="the former one stays in use")
            return
        self._followed.load(states)
        if secret != self._secret:
            self._former.pop(secret, None)
            self._former[self._secret] = trio.current_time() + OVERLAP_S
            self._former = dict(list(self._former.items())[-MAX_FORMER:])
            self._secret = secret
        report(SECRET_LOADED, of=self._setting, former_accepted_s=int(OVERLAP_S))
