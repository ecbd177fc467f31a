"""The port of a runner to a sidecar: one connection per source, and one for commits and scans.

Invariants:
* One thread uses the port. Requests are in progress while the runner computes; the runner waits for the first answer.
* A commit is sent as a whole (segments, then the commit) and repeated as a whole after a lost connection: staging the
  same segment again and committing the same epoch again change nothing.
* One commit is on the wire at a time, so that commits arrive in the order of epochs.
"""

import select
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from logstore.client.blocking import Client, Pending, TopicPartition
from logstore.client.errors import SidecarRefused
from logstore.client.wire import EARLIEST, LATEST, Fetched
from logstore.format.epoch_api import EpochCommitReply
from spe_adapter.continuous.errors import CommitLost
from spe_adapter.continuous.fragment import Fragment
from spe_adapter.continuous.port import FENCE_EPOCH, EpochOutput, Fetch, ScannedBatches
from spe_adapter.epochs.client import TaskAttempt, commit, start_commit
from spe_adapter.epochs.scan import ControlScan
from spe_adapter.host import Host

CLIENT_ID: Final = "cairn-continuous"


class ClientPort:
    """See `port.Port`. Raises logstore.errors and logstore.client.errors; FencedIncarnation once a newer
    incarnation is known.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        fragment: Fragment,
        partition: int,
        incarnation: str,
        host: Host,
        *,
        fetch_bytes: int,
    ) -> None:
        """`connect` makes a client of the sidecar; this object closes it."""
        self._query = fragment.name_in(partition)
        self._incarnation = incarnation
        self._target = TopicPartition(fragment.topic, partition)
        self._sources = [TopicPartition(source.topic, partition) for source in fragment.sources]
        self._host = host
        self._fetch_bytes = fetch_bytes
        self._open = ExitStack()

        def client() -> Client:
            return self._open.enter_context(connect())

        self._clients = [client() for _ in self._sources]
        self._main = client()
        self._fetches: list[Pending[Fetched] | None] = [None for _ in self._sources]
        self._waiting: deque[EpochOutput] = deque()
        self._commit: tuple[int, Pending[EpochCommitReply]] | None = None
        self._scan: ControlScan | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def incarnation(self) -> str:
        """The incarnation as which epochs are committed."""
        return self._incarnation

    def close(self) -> None:
        """Close all connections."""
        self._open.close()

    def wall_ms(self) -> int:
        """See Port."""
        return self._host.wall_ms()

    def monotonic_ms(self) -> float:
        """See Port."""
        return self._host.network.monotonic_s() * 1000

    # ---- state

    def fence(self) -> int:
        """See Port."""
        return commit(self._main, self._query, self._incarnation, FENCE_EPOCH, (), "{}", rewind="skip").last_epoch

    def scan(self, before_offset: int) -> ScannedBatches:
        """See Port. The next batches are requested before these are returned."""
        if self._scan is None or self._scan.next_before != before_offset:
            self._end_scan()
            self._scan = ControlScan(self._main, self._target, before_offset=before_offset)
        batches = next(self._scan, b"")
        return ScannedBatches(batches, self._scan.next_before, self._scan.log_start_offset)

    def _end_scan(self) -> None:
        """Free the connection of a scan that was not read to its end."""
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def offset(self, source: int, moment: str) -> int:
        """See Port. Raises SidecarRefused, for a missing topic among others."""
        self._end_scan()
        stream = self._sources[source]
        found = self._main.offsets({stream: EARLIEST if moment == "earliest" else LATEST})[stream]
        if found.error:
            raise SidecarRefused(f"offsets of {stream} at {self._main.where}", code=found.error)
        return found.offset

    # ---- input

    def fetch(self, source: int, offset: int) -> None:
        """See Port."""
        self._fetches[source] = self._clients[source].start_fetch(self._sources[source], offset, self._fetch_bytes)

    def fetched(self, wait_ms: float) -> Fetch | None:
        """See Port. Returns early when a commit is answered, so that the next commit can be sent."""
        under_way = [source for source, pending in enumerate(self._fetches) if pending is not None]
        ready = self._ready([self._clients[source] for source in under_way], wait_ms)
        for source in under_way:
            if self._clients[source] in ready:
                return self._receive(source)
        return None

    def _receive(self, source: int) -> Fetch | None:
        pending, self._fetches[source] = self._fetches[source], None
        if pending is None:
            return None
        fetched = pending.receive()
        return Fetch(source, fetched.error, fetched.high_watermark, fetched.log_start_offset, fetched.records)

    def _ready(self, clients: Sequence[Client], wait_ms: float) -> list[Client]:
        """The clients whose answer has begun to arrive, and those without a connection."""
        lost = [client for client in clients if client.fileno() < 0]
        watched: list[Client] = [client for client in clients if client.fileno() >= 0]
        if self._commit is not None and self._main.fileno() >= 0:
            watched.append(self._main)
        if not watched:
            if not lost:
                self._host.network.sleep(wait_ms / 1000)
            return lost
        found, _, _ = select.select(watched, [], [], 0 if lost else max(wait_ms, 0) / 1000)
        return [*lost, *found]

    # ---- output

    def commit(self, output: EpochOutput) -> None:
        """See Port."""
        self._waiting.append(output)
        self._send_next()

    def _send_next(self) -> None:
        if self._commit is not None or not self._waiting:
            return
        self._end_scan()
        output = self._waiting.popleft()
        attempt = TaskAttempt(self._query, self._incarnation, output.epoch, 0, str(output.epoch))
        self._commit = (output.epoch, start_commit(self._main, attempt, output.segments, output.positions))

    def committed(self, *, wait: bool) -> int | None:
        """See Port. Raises CommitLost if the log has another epoch in place of the one that was sent."""
        if self._commit is None:
            return None
        if not wait and not self._has_answer():
            return None
        (epoch, pending), self._commit = self._commit, None
        reply = pending.receive()
        if reply.last_epoch != epoch or reply.outcome == "skipped":
            raise CommitLost(
                f"query {self._query!r}: epoch {epoch} was answered with {reply.outcome!r} and epoch "
                f"{reply.last_epoch}; another incarnation commits under this name. Stop one of them"
            )
        self._send_next()
        return epoch

    def _has_answer(self) -> bool:
        if self._main.fileno() < 0:
            return True
        found, _, _ = select.select([self._main], [], [], 0)
        return bool(found)
