"""Checks submissions and makes jobs of them. Errors name the field to change.

Invariants:
* Every field of a new job is valid; `PathCheck` says whether it has a path in the idle network with all its hosts.
* No function here takes capacity from the scheduler.
"""

from random import Random

from scheduler.errors import PlacementError, RequestError
from scheduler.peace.online.jobs import TransferJob
from scheduler.peace.online.records import RequestRecord, Settings, Submission
from scheduler.peace.online.states import RequestState
from scheduler.peace.online.unreachable import TRIES, find
from scheduler.peace.placement import (
    MAX_REPLICAS,
    Placement,
    check_placement,
    default_placement,
    parse_placement,
    placement_texts,
)
from scheduler.peace.plan import Planner, Residual, TransferKind
from scheduler.topology import Topology

MAX_NAME_CHARACTERS = 256
MAX_PATHS_REMEMBERED = 10_000
"""The pairs of writer and placement, or reader and source, for which no path is searched again."""
MAX_SOURCE_SETS = 4096
"""The different sets of sources in one request: each is planned by itself, and one event plans the whole request."""
NO_WRITER = -1
"""The writer of a COPY to any host; one to a given host has that host."""


def new_job(topology: Topology, settings: Settings, submission: Submission, target: str | None = None) -> TransferJob:
    """The job of a submission, without its place in the queue. `target`: of a COPY to a given host.

    Raises RequestError.
    """
    if not submission.name or len(submission.name) > MAX_NAME_CHARACTERS:
        raise RequestError("name", f"{submission.name!r} must have 1 to {MAX_NAME_CHARACTERS} characters")
    try:
        kind = TransferKind(submission.kind)
    except ValueError:
        raise RequestError("kind", f"{submission.kind!r} must be one of {', '.join(TransferKind)}") from None
    chunks = check_chunks(settings, submission.chunks)
    if not _whole(submission.priority) or not 0 <= submission.priority <= settings.max_priority:
        raise RequestError(
            "priority", f"{submission.priority!r} must be a whole number from 0 to {settings.max_priority}"
        )
    if kind is TransferKind.COPY:
        if submission.writer is not None:
            raise RequestError("writer", f"{submission.writer!r}: a copy has none; leave it out")
        writer = NO_WRITER if target is None else host_number(topology, "target", target)
    else:
        writer = host_number(topology, "writer", submission.writer)
    job = TransferJob(submission.name, kind, writer, _placement(topology, submission, kind), chunks)
    job.sources = _sources(topology, submission, kind)
    job.writer_name, job.source_names = target or submission.writer, submission.sources
    job.others = _others(topology, job)
    if target is not None and any(writer in sources for sources in job.sources):
        raise RequestError("target", f"{target!r} has the chunk already")
    job.priority = submission.priority
    return job


def check_chunks(settings: Settings, chunks: object) -> int:
    """The number of chunks, checked. Raises RequestError."""
    if not isinstance(chunks, int) or isinstance(chunks, bool) or not 1 <= chunks <= settings.max_chunks:
        raise RequestError("chunks", f"{chunks!r} must be a whole number from 1 to {settings.max_chunks}")
    return chunks


def host_number(topology: Topology, field: str, host: object) -> int:
    """The number of a host. Raises RequestError, which names `field`."""
    number = topology.index.get(host) if isinstance(host, str) else None
    if number is None:
        raise RequestError(field, f"{host!r} is not a host of this network; register it in the topology first")
    return number


class PathCheck:
    """Checks that a job has a path when no host is lost and nothing is in flight."""

    def __init__(self, topology: Topology, planner: Planner, random: Random) -> None:
        self._planner = planner
        self._random = random
        self._whole = Residual.full(topology)
        self._with_path: dict[tuple[int, Placement | int], None] = {}

    def check(self, job: TransferJob) -> None:
        """Check each chunk of a job. Raises RequestError for a chunk without a path."""
        known = (job.writer, job.placement)
        if job.kind is TransferKind.WRITE and known in self._with_path:
            return
        for unit in job.units:
            # A read has a path if one of its sources has one; there are far fewer sources than sets of sources.
            if job.kind is TransferKind.READ and any(
                (job.writer, source) in self._with_path for source in unit.sources
            ):
                continue
            chain = find(self._planner, unit, self._whole, self._random, TRIES)
            if chain is None:
                field = "sources" if job.kind is TransferKind.READ else "placement"
                texts = " | ".join(placement_texts(job.placement)) or "its sources"
                raise RequestError(field, f"no path for chunk {unit.first} in the whole network: {texts}; ask for less")
            self._whole.give(chain)
            if job.kind is TransferKind.READ:
                self._remember_path(job.writer, chain.hosts[0])
        if job.kind is TransferKind.WRITE:
            self._remember_path(*known)

    def _remember_path(self, writer: int, what: Placement | int) -> None:
        self._with_path[writer, what] = None
        if len(self._with_path) > MAX_PATHS_REMEMBERED:
            del self._with_path[next(iter(self._with_path))]


def job_of(topology: Topology, settings: Settings, record: RequestRecord) -> TransferJob:
    """The job of a stored request. A writer or source that is no longer in the topology counts as lost."""
    job = TransferJob(
        record.name,
        TransferKind(record.kind),
        NO_WRITER if record.writer is None else topology.index.get(record.writer, NO_WRITER),
        parse_placement(record.placement) if record.placement else (),
        record.chunks,
    )
    known = topology.index
    job.writer_name, job.source_names = record.writer, record.sources
    job.sources = tuple(tuple(known[name] for name in names if name in known) for names in record.sources)
    job.others = _others(topology, job)
    job.priority = record.priority
    job.sequence = record.sequence
    job.submitted_ms = record.submitted_ms
    job.state = RequestState(record.state)
    job.reason = record.reason
    job.avoid = {known[name] for name in record.avoid if name in known}
    job.rank = (job.submitted_ms - job.priority * settings.priority_ms, job.sequence)
    return job


def _others(topology: Topology, job: TransferJob) -> frozenset[int]:
    """Of a copy to a given host: all hosts but that one and the sources."""
    if job.kind is not TransferKind.COPY or job.writer == NO_WRITER:
        return frozenset()
    return frozenset(range(len(topology.servers))).difference((job.writer,), *job.sources)


def _placement(topology: Topology, submission: Submission, kind: TransferKind) -> Placement:
    texts = submission.placement
    try:
        if texts is not None:
            placement = parse_placement(texts) if texts else ()
        elif kind is TransferKind.WRITE:
            return default_placement(_replicas(submission.replicas), len(topology.racks))
        else:
            placement = ((),) if kind is TransferKind.COPY else ()
        if kind is TransferKind.READ:
            if placement:
                raise RequestError("placement", f"{texts!r}: a read places nothing; leave it out")
            return ()
        if kind is TransferKind.COPY and len(placement) != 1:
            raise RequestError("placement", f"{texts!r}: a copy makes one replica; give one text")
        return check_placement(placement)
    except PlacementError as error:
        raise RequestError("placement", str(error)) from error


def _replicas(replicas: object) -> int:
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 1 <= replicas <= MAX_REPLICAS:
        raise RequestError("replicas", f"{replicas!r} must be a whole number from 1 to {MAX_REPLICAS}")
    return replicas


def _sources(topology: Topology, submission: Submission, kind: TransferKind) -> tuple[tuple[int, ...], ...]:
    if kind is TransferKind.WRITE:
        if submission.sources:
            raise RequestError("sources", "a write has none; leave them out")
        return ()
    if len(submission.sources) != submission.chunks:
        raise RequestError(
            "sources", f"given for {len(submission.sources)} chunks of {submission.chunks}: name the hosts of each"
        )
    for chunk, names in enumerate(submission.sources):
        if not names or len(set(names)) != len(names) or len(names) > MAX_REPLICAS:
            raise RequestError("sources", f"chunk {chunk}: {names!r} must be 1 to {MAX_REPLICAS} different hosts")
    different = len(set(submission.sources))
    if different > MAX_SOURCE_SETS:
        raise RequestError(
            "sources",
            f"{different} different sets of hosts; at most {MAX_SOURCE_SETS} are taken: submit several requests",
        )
    return tuple(tuple(host_number(topology, "sources", name) for name in names) for names in submission.sources)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
