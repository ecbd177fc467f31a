"""A secret that a client sends, a token or a password: as new as the file that it is in.

Invariants: who sends it has the text of the file as it is at that moment, by one call of `stat` and no read where the
file has not changed. A file that cannot be used, or is empty, changes nothing, is read again each time until it can be,
and is reported once for each state that it is in: a file that is being written is not taken half for whole where its
writer renames it into place, and an empty one never. The secret is in no report.
"""

from collections.abc import Callable
from threading import Lock

from logstore.base.certificate_events import SECRET_LOADED, SECRET_UNUSABLE
from logstore.base.errors import CairnError
from logstore.base.events import Report
from logstore.base.followed_files import FileStates, FollowedFiles


class SecretFile:
    """See the module. `read` gives the secret in the file `path`; `setting` names both in reports. For threads.

    Raises what `read` raises, a CairnError, while it is made. Reads files, so it blocks.
    """

    def __init__(self, read: Callable[[], str], path: str, report: Report, *, setting: str) -> None:
        self._read = read
        self._path = path
        self._report = report
        self._setting = setting
        self._lock = Lock()
        self._followed = FollowedFiles((path,))
        self._text = read()

    def __call__(self) -> str:
        """The secret now."""
        with self._lock:
            states = self._followed.states()
            if not self._followed.is_loaded(states):
                self._look(states)
            return self._text

    def _look(self, states: FileStates) -> None:
        try:
            text = self._read()
        except CairnError as error:
            self._unusable(states, str(error))
            return
        if not text:
            self._unusable(states, f"{self._path!r} is empty")
            return
        self._text = text
        self._followed.load(states)
        self._report(SECRET_LOADED, of=self._setting)

    def _unusable(self, states: FileStates, why: str) -> None:
        if self._followed.refuse(states):
            self._report(SECRET_UNUSABLE, of=self._setting, error=why, effect="the former one stays in use")


def fits_a_header(text: str) -> bool:
    """Whether a header of a request takes a text, such as a token; what HTTP libraries raise otherwise is their own."""
    return text.isascii() and text.isprintable()
