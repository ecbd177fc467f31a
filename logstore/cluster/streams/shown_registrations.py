"""The replicas of a host are shown the registrations of their streams, again and again until they are as these say.

Invariants:
* A registration is shown as it comes, whoever asked for it, and again every SHOW_AGAIN_S while a replica of its stream
  has something left to do: a copy that is to be removed, say, whose disk has failed.
* What replicas need not know at once (`look_later`) is read after SHOW_AGAIN_S, or twice that, once for all changes of
  a stream meanwhile: a copy makes two, and every host that has the stream would read both. A host with a replica that
  has failed is to know at once that it was dropped: the copy that takes its place is ordered in the next moment.
* Replicas of a stream without a registration go only if its topic is gone too: a registration is there before any.
"""

from collections.abc import Callable, Iterable
from typing import Final

import trio

from logstore.base.events import Report
from logstore.events import REPLICAS_REMOVED
from logstore.replica.effects import Effect
from logstore.replica.register import RegistrationRead, SwapAnswer
from logstore.replica.replica import Replica

SHOW_AGAIN_S: Final = 2.0
"""Between two tries to seal or remove a replica that could not be."""


class ShownRegistrations:
    """See the module. `known` gives the registration of a stream that was read last, `ask` has it read, of a revision
    at least; `topic_of` knows the topic of a stream, or None; `carry_out` takes what replicas ask for. `run` must run.
    """

    def __init__(
        self,
        replica: Replica,
        known: Callable[[str], RegistrationRead | None],
        ask: Callable[[str, int], None],
        topic_of: Callable[[str], object | None],
        carry_out: Callable[[Iterable[Effect]], None],
        report: Report,
    ) -> None:
        self._replica = replica
        self._known = known
        self._ask = ask
        self._topic_of = topic_of
        self._carry_out = carry_out
        self._report = report
        self._revisions: dict[str, int] = {}
        self._unfinished: dict[str, None] = {}
        """Streams with replicas that are not as the registration says yet."""
        self._due: dict[str, int] = {}
        self._later: dict[str, int] = {}
        """Revisions of registrations that are to be read with the next look, and with the one behind it."""

    def revision(self, stream: str) -> int:
        """Of the newest registration of a stream that was shown; 0: none was."""
        return self._revisions.get(stream, 0)

    def show(self, answer: RegistrationRead | SwapAnswer) -> None:
        """Show the replicas a registration, which may be known for long: the owner learns nothing from it."""
        stream, registration = answer.stream, answer.registration
        if registration is None:
            self._deleted(stream)
            return
        self._revisions[stream] = max(answer.revision, self.revision(stream))
        self._carry_out(self._replica.registration_seen(stream, answer.revision, registration))
        if not self._replica.is_in_line(stream, registration):
            self._unfinished[stream] = None

    def look_later(self, stream: str, revision: int) -> None:
        """Sealed chunks of a stream have other members, say, and nothing else has changed: read that soon."""
        (self._due if stream in self._due else self._later)[stream] = revision

    def forget(self, stream: str) -> None:
        """The stream's topic was deleted."""
        self._revisions.pop(stream, None)
        self._due.pop(stream, None)
        self._later.pop(stream, None)

    def _read_due(self) -> None:
        """Read what was put off, but for what has been shown meanwhile."""
        due, self._due, self._later = self._due, self._later, {}
        for stream, revision in due.items():
            if self.revision(stream) < revision and self._replica.has_chunks_of(stream):
                self._ask(stream, revision)

    async def run(self) -> None:
        """Show replicas their registrations again, until nothing is left to do about them; new ones, too, which may be
        those of an owner that was replaced.
        """
        while True:
            await trio.sleep(SHOW_AGAIN_S)
            self._read_due()
            unfinished, self._unfinished = self._unfinished | self._replica.begun(), {}
            for stream in unfinished:
                known = self._known(stream)
                if known is not None and known.registration is not None:
                    self.show(known)
                elif self._replica.has_anything_of(stream):
                    self._unfinished[stream] = None
                    self._ask(stream, 0)

    def _deleted(self, stream: str) -> None:
        if self._topic_of(stream) is None and self._replica.has_anything_of(stream):
            if stream not in self._unfinished and self._replica.has_chunks_of(stream):
                self._report(REPLICAS_REMOVED, stream=stream)
            self._unfinished[stream] = None
            self._carry_out(self._replica.stream_deleted(stream))
