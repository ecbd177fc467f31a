"""The online scheduler: takes events and times, returns the chunks to start and to stop and the records to store.

Invariants:
* Every event returns records of all changed objects in their new state. A repeated or late event changes nothing.
* A chunk has at most one attempt in flight; attempts count up and are never used twice.
* The scheduler's time never goes back, even if the caller's clock does.
* With `gather_ms` an event starts no chunk: its changes are recorded, and `plan_at_ms` is the time at which the caller
  must call `plan`. Records do not contain gathered events: `restore` plans all waiting chunks at once.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random

from scheduler.errors import RequestError
from scheduler.peace.online import intake
from scheduler.peace.online.continuous import Continuous
from scheduler.peace.online.conversion import chain_of, chunk_record, go_of, request_record
from scheduler.peace.online.jobs import ChunkAttempt, ChunkUnit, TransferJob
from scheduler.peace.online.ranked_queue import RankedQueue
from scheduler.peace.online.records import (
    ChunkRecord,
    ChunkStart,
    EventOutcome,
    Mode,
    QueuePosition,
    RequestRecord,
    Settings,
    Status,
    Submission,
)
from scheduler.peace.online.states import ChunkEvent, ChunkState, RequestEvent, RequestState, allows
from scheduler.peace.online.timesteps import Timesteps
from scheduler.peace.online.views import SchedulerView, place_of, status_of
from scheduler.peace.plan import HostChain, Planner, TransferKind
from scheduler.topology import Topology

_GATHER_SHARE = 200
"""Events are gathered for at most this part of a chunk's time, so that the delay costs less than the plan gains."""


class _EventEffects:
    """The effects of one event so far."""

    def __init__(self) -> None:
        self.go: dict[ChunkAttempt, None] = {}
        self.revoked: list[ChunkStart] = []
        self.finished: list[str] = []
        self.given_up: list[str] = []
        self.jobs: dict[TransferJob, None] = {}
        self.chunks: dict[tuple[TransferJob, int], ChunkRecord] = {}


class OnlineScheduler:
    """The queue, the chunks in flight and the hosts of one network. Promises: see `scheduler.peace.online`."""

    def __init__(self, topology: Topology, planner: Planner, settings: Settings, random: Random) -> None:
        self._topology = topology
        self._settings = settings
        self._queue = RankedQueue()
        policy = Continuous if settings.mode is Mode.CONTINUOUS else Timesteps
        self._policy: Continuous | Timesteps = policy(topology, planner, settings, random, self._queue)
        self._paths = intake.PathCheck(topology, planner, random)
        self._jobs: dict[str, TransferJob] = {}
        self._active = 0
        self._ended: dict[str, None] = {}
        self._lost: set[int] = set()
        self._at_host: dict[int, set[ChunkAttempt]] = {}
        self._of_host: dict[int, set[TransferJob]] = {}
        self._sequence = 0
        self._now_ms = 0
        self._event = _EventEffects()
        self._gathered = 0
        """The number of events since the last plan."""
        self._chunk_ms: int | None = None
        """The time that the last done chunk took."""
        self.plan_at_ms: int | None = None
        """The time at which gathered events are to be planned; None: no event was gathered."""
        self.restored = EventOutcome()
        """The outcome of `restore`: chunks that start or stop now, to be stored and sent as after any event."""

    # ---- events

    def submit(self, submission: Submission, now_ms: int, target: str | None = None) -> EventOutcome:
        """Add a request; a COPY may be to a given host, `target`, which its record has as its writer.

        Raises RequestError, and changes nothing, if it is invalid or the queue is full.
        """
        job = intake.new_job(self._topology, self._settings, submission, target)
        if job.name in self._jobs:
            raise RequestError("name", f"{job.name!r} is known already; choose another")
        if job.writer in self._lost:
            raise RequestError("writer", f"{job.writer_name!r} is lost; it must come back first")
        if self._active >= self._settings.max_waiting:
            raise RequestError("requests", f"queue full: {self._active} requests are waiting or running; retry later")
        gone = job.sort(self._lost)
        if gone is not None:
            raise RequestError("sources", f"chunk {gone}: all of {submission.sources[gone]!r} are lost")
        self._paths.check(job)
        self._begin(now_ms)
        self._place_last(job)
        self._adopt(job)
        self._event.jobs[job] = None
        return self._finish()

    def done(self, request: str, chunk: int, attempt: int, now_ms: int) -> EventOutcome:
        """Note that a chunk is on all its replicas. A repeated report, or one of a revoked attempt, is ignored."""
        job = self._job(request)
        flight = self._flight(job, chunk, attempt)
        if flight is None:
            return EventOutcome(ignored=self._ignored_reason(job, chunk, attempt))
        self._begin(now_ms)
        self._chunk_ms = self._now_ms - flight.since_ms
        self._end_attempt(flight, ChunkEvent.DONE)
        job.done.add(chunk)
        self._note_chunk(flight)
        if len(job.done) == job.chunks:
            self._end(job, RequestEvent.FINISH, "")
        return self._finish()

    def failed(self, request: str, chunk: int, attempt: int, suspects: Sequence[str], now_ms: int) -> EventOutcome:
        """Note that an attempt failed: the chunk is planned again, without the suspects if there is such a path."""
        job = self._job(request)
        hosts = {intake.host_number(self._topology, "suspects", name) for name in suspects}
        flight = self._flight(job, chunk, attempt)
        if flight is None:
            return EventOutcome(ignored=self._ignored_reason(job, chunk, attempt))
        self._begin(now_ms)
        self._end_attempt(flight, ChunkEvent.FAIL)
        why = f"attempt {attempt} of chunk {chunk} failed, at {', '.join(suspects) or 'no known host'}"
        self._retry_around(flight, hosts, why)
        return self._finish()

    def overdue(self, request: str, chunk: int, attempt: int, now_ms: int) -> EventOutcome:
        """Revoke an attempt that takes too long: the chunk is planned again without the hosts of its chain."""
        job = self._job(request)
        flight = self._flight(job, chunk, attempt)
        if flight is None:
            return EventOutcome(ignored=self._ignored_reason(job, chunk, attempt))
        self._begin(now_ms)
        self._revoke(flight)
        self._retry_around(flight, set(flight.chain.hosts), f"attempt {attempt} of chunk {chunk} took too long")
        return self._finish()

    def _retry_around(self, flight: ChunkAttempt, hosts: set[int], why: str) -> None:
        """Let the chunk of a failed attempt wait again, and note these hosts as suspects."""
        job = flight.job
        suspected = hosts - job.avoid - {job.writer}
        if suspected:
            job.avoid |= suspected
            self._event.jobs[job] = None
        self._retry(flight, why)
        if suspected and not job.state.ended:
            self._sort(job)

    def cancel(self, request: str, now_ms: int) -> EventOutcome:
        """Cancel a request; its chunks in flight are revoked. A request that has ended is not changed."""
        job = self._job(request)
        if not allows(job.state, RequestEvent.CANCEL):
            return EventOutcome(ignored=f"request {request!r} is {job.state}")
        self._begin(now_ms)
        self._end(job, RequestEvent.CANCEL, "cancelled on request")
        return self._finish()

    def resubmit(self, request: str, chunks: int, now_ms: int) -> EventOutcome:
        """Change the number of chunks of a waiting request. With no more chunks than before, it keeps its place."""
        job = self._job(request)
        if not allows(job.state, RequestEvent.RESUBMIT):
            raise RequestError(
                "request", f"{request!r} is {job.state}: only one that nothing was started of can change"
            )
        intake.check_chunks(self._settings, chunks)
        if job.kind is not TransferKind.WRITE and chunks > job.chunks:
            raise RequestError("chunks", f"{chunks}: sources are known for {job.chunks}; submit another request")
        self._begin(now_ms)
        job.move(RequestEvent.RESUBMIT)
        if chunks != job.chunks:
            self._leave(job)
            if chunks > job.chunks:
                self._place_last(job)
            hosts = self._hosts_of(job)
            job.chunks = chunks
            job.sources, job.source_names = job.sources[:chunks], job.source_names[:chunks]
            for host in hosts - self._hosts_of(job):
                self._of_host[host].discard(job)
            job.sort(self._lost)
            self._enter(job)
            self._event.jobs[job] = None
        return self._finish()

    def host_lost(self, host: str, now_ms: int) -> EventOutcome:
        """Note that a host is lost: its requests end, chains through it are revoked and planned again without it."""
        number = intake.host_number(self._topology, "host", host)
        if number in self._lost:
            return EventOutcome(ignored=f"host {host!r} is lost already")
        self._begin(now_ms)
        self._lose(number)
        return self._finish()

    def host_back(self, host: str, now_ms: int) -> EventOutcome:
        """Note that a lost host is back; it is no longer a suspect."""
        number = intake.host_number(self._topology, "host", host)
        if number not in self._lost:
            return EventOutcome(ignored=f"host {host!r} is not lost")
        self._begin(now_ms)
        self._lost.discard(number)
        self._policy.regain(number)
        suspected = [job for job in self._jobs.values() if number in job.avoid and not job.state.ended]
        for job in suspected:
            job.avoid.discard(number)
            self._event.jobs[job] = None
        for job in self._in_order({*suspected, *self._of_host.get(number, ())}):
            self._sort(job)
        return self._finish()

    def plan(self, now_ms: int) -> EventOutcome:
        """Plan the gathered events together; due at `plan_at_ms`, and harmless at any other time."""
        if self.plan_at_ms is None:
            return EventOutcome(ignored="nothing was gathered")
        self._begin(now_ms)
        return self._planned()

    # ---- questions

    def place(self, request: str) -> QueuePosition:
        """The place of a request in the queue. Raises RequestError if it is not known."""
        return place_of(self._view(), self._job(request))

    def status(self) -> Status:
        """The state of the queue, the hosts and all capacities."""
        return status_of(self._view())

    def unreachable(self) -> frozenset[str]:
        """The requests whose waiting chunks have no path while some hosts are lost."""
        return frozenset(job.name for job in self._policy.unreachable_jobs() if job.unreachable)

    def state(self, request: str) -> RequestState:
        """The state of a request. Raises RequestError if it is not known (any more)."""
        return self._job(request).state

    @classmethod
    def restore(
        cls,
        topology: Topology,
        planner: Planner,
        settings: Settings,
        random: Random,
        records: Iterable[RequestRecord | ChunkRecord],
        lost_hosts: Collection[str],
        now_ms: int,
    ) -> "OnlineScheduler":
        """The scheduler in the state of `records`, the newest stored record of each request and chunk.

        Chunks in flight stay in flight, except those through hosts that are lost or unknown; `restored` is the outcome.
        Records of ended requests are needed while late reports may come; in timesteps, at least those of the newest
        timestep.
        """
        scheduler = cls(topology, planner, settings, random)
        scheduler._restore(records, lost_hosts, now_ms)
        return scheduler

    def on_network(
        self, topology: Topology, planner: Planner, random: Random, lost_hosts: Collection[str], now_ms: int
    ) -> "OnlineScheduler":
        """The same plan on another network, as `restore` makes it; this scheduler is as it was, and is used no more.

        Chunks in flight keep their tokens, as far as their hosts and links are where they were; tokens that the network
        lacks are paid first. All other chunks are revoked and planned again, and requests whose writer, or last source
        of a chunk, is gone end.
        """
        scheduler = OnlineScheduler(topology, planner, self._settings, random)
        scheduler._chunk_ms = self._chunk_ms
        scheduler._sequence = self._sequence
        scheduler._restore(self._records(), lost_hosts, max(now_ms, self._now_ms), self._policy.step)
        return scheduler

    # ---- one event

    def _begin(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)
        self._event = _EventEffects()

    def _finish(self) -> EventOutcome:
        """Collect the effects of an event, and start chunks unless more events are gathered first."""
        self._gathered += 1
        if not self._settings.gather_ms:
            return self._planned()
        if self.plan_at_ms is None:
            self.plan_at_ms = self._now_ms + self._gather_ms()
        return self._collected()

    def _gather_ms(self) -> int:
        limit = self._settings.gather_ms
        return limit if self._chunk_ms is None else min(limit, max(1, self._chunk_ms // _GATHER_SHARE))

    def _planned(self) -> EventOutcome:
        """Start chunks, and collect the effects."""
        self._policy.advance(self._launch, self._gathered)
        self._gathered, self.plan_at_ms = 0, None
        return self._collected()

    def _collected(self) -> EventOutcome:
        event, self._event = self._event, _EventEffects()
        records: list[RequestRecord | ChunkRecord] = [request_record(self._topology, job) for job in event.jobs]
        records += event.chunks.values()
        go = tuple(go_of(self._topology, flight) for flight in event.go)
        return EventOutcome(go, tuple(event.revoked), tuple(event.finished), tuple(records), tuple(event.given_up))

    def _launch(self, unit: ChunkUnit, chain: HostChain) -> None:
        job = unit.job
        chain = chain._replace(chunk=unit.take())
        job.waiting -= 1
        self._queue.put(job, job.counted)
        attempt = job.attempts[chain.chunk] = job.attempts.get(chain.chunk, 0) + 1
        flight = ChunkAttempt(job, chain, attempt, self._now_ms, self._policy.step)
        flight.move(ChunkEvent.START)
        self._add_in_flight(flight)
        self._policy.started(flight)
        before = job.state
        job.move(RequestEvent.START)
        if job.state is not before:
            self._event.jobs[job] = None
        self._event.go[flight] = None
        self._note_chunk(flight)

    def _add_in_flight(self, flight: ChunkAttempt) -> None:
        flight.job.flights[flight.chunk] = flight
        for host in set(flight.chain.hosts):
            self._at_host.setdefault(host, set()).add(flight)

    def _end_attempt(self, flight: ChunkAttempt, event: ChunkEvent) -> None:
        """End an attempt; the caller returns the chunk to its unit, if it waits again."""
        flight.move(event)
        del flight.job.flights[flight.chunk]
        for host in set(flight.chain.hosts):
            self._at_host[host].discard(flight)
        self._policy.ended(flight, done=flight.state is ChunkState.DONE)

    def _revoke(self, flight: ChunkAttempt) -> None:
        self._end_attempt(flight, ChunkEvent.REVOKE)
        self._event.revoked.append(go_of(self._topology, flight))

    def _retry(self, flight: ChunkAttempt, why: str) -> None:
        """Return the chunk of a failed attempt to the queue, or fail its request after the last attempt."""
        job = flight.job
        self._note_chunk(flight)
        if flight.attempt >= self._settings.max_attempts:
            self._end(job, RequestEvent.EXHAUST, f"{why}; that was the last of {flight.attempt} attempts")
            return
        unit = job.unit_of(flight.chunk)
        unit.give(flight.chunk)
        job.waiting += 1
        self._queue.put(job, job.counted)
        self._policy.enter(unit)

    def _end(self, job: TransferJob, event: RequestEvent, reason: str) -> None:
        """End a request by this event, for this reason."""
        self._leave(job)
        for flight in list(job.flights.values()):
            self._revoke(flight)
        self._event.jobs[job] = None
        job.end(event, reason)
        (self._event.finished if job.state is RequestState.FINISHED else self._event.given_up).append(job.name)
        for host in self._hosts_of(job):
            self._of_host[host].discard(job)
        self._active -= 1
        self._remember(job)

    def _remember(self, job: TransferJob) -> None:
        self._ended[job.name] = None
        while len(self._ended) > self._settings.max_remembered:
            oldest = next(iter(self._ended))
            del self._ended[oldest], self._jobs[oldest]

    # ---- jobs and the queue

    def _place_last(self, job: TransferJob) -> None:
        self._sequence += 1
        job.sequence, job.submitted_ms = self._sequence, self._now_ms
        job.rank = (self._now_ms - job.priority * self._settings.priority_ms, self._sequence)

    def _adopt(self, job: TransferJob) -> None:
        """Add a new or restored job."""
        self._jobs[job.name] = job
        self._active += 1
        for host in self._hosts_of(job):
            self._of_host.setdefault(host, set()).add(job)
        self._enter(job)

    def _enter(self, job: TransferJob) -> None:
        """Enter the job's waiting units into the queue."""
        job.waiting = sum(unit.waiting for unit in job.units)
        self._queue.put(job, job.waiting)
        for unit in job.units:
            if unit.waiting:
                self._policy.enter(unit)

    def _leave(self, job: TransferJob) -> None:
        self._policy.leave(job)
        self._queue.put(job, 0)
        job.waiting = 0

    def _sort(self, job: TransferJob) -> None:
        """Divide a job's chunks into units again after a change of lost or avoided hosts."""
        self._leave(job)
        gone = job.sort(self._lost)
        if gone is None:
            self._enter(job)
        else:
            self._end(job, RequestEvent.LOSE_SOURCES, f"chunk {gone} has no source left: all its hosts are lost")

    @staticmethod
    def _hosts_of(job: TransferJob) -> set[int]:
        """The writer and the sources of the job."""
        return {host for sources in job.sources for host in sources} | ({job.writer} - {intake.NO_WRITER})

    @staticmethod
    def _in_order(jobs: Iterable[TransferJob]) -> list[TransferJob]:
        return sorted(jobs, key=lambda job: job.rank)

    def _lose(self, number: int) -> None:
        host = self._topology.servers[number].name
        self._lost.add(number)
        self._policy.lose(number)
        concerned = self._in_order(self._of_host.get(number, ()))
        for job in concerned:
            if job.writer == number:
                self._end(job, RequestEvent.LOSE_WRITER, f"its host {host!r} is lost")
        flights = sorted(self._at_host.get(number, ()), key=lambda flight: (flight.job.rank, flight.chunk))
        for flight in flights:
            if flight.job.flights.get(flight.chunk) is flight:
                self._revoke(flight)
                self._retry(flight, f"host {host!r} was lost during attempt {flight.attempt} of chunk {flight.chunk}")
        for job in concerned:
            if not job.state.ended and job.writer != number:
                self._sort(job)

    # ---- lookups

    def _job(self, request: str) -> TransferJob:
        job = self._jobs.get(request)
        if job is None:
            raise RequestError("request", f"{request!r} is not known (any more)")
        return job

    @staticmethod
    def _flight(job: TransferJob, chunk: int, attempt: int) -> ChunkAttempt | None:
        flight = job.flights.get(chunk)
        return flight if flight is not None and flight.attempt == attempt else None

    @staticmethod
    def _ignored_reason(job: TransferJob, chunk: int, attempt: int) -> str:
        """Why a report on an attempt not in flight changes nothing. Raises RequestError if it was never started."""
        last = job.attempts.get(chunk, 0)
        if not 0 <= chunk < job.chunks:
            raise RequestError("chunk", f"{chunk!r}: request {job.name!r} has chunks 0 to {job.chunks - 1}")
        if not 1 <= attempt <= last:
            raise RequestError("attempt", f"{attempt!r}: chunk {chunk} of {job.name!r} was started {last} times")
        if chunk in job.done:
            return f"chunk {chunk} of {job.name!r} is done"
        if job.state.ended:
            return f"request {job.name!r} is {job.state}"
        return f"attempt {attempt} of chunk {chunk} of {job.name!r} was revoked; the last is {last}"

    def _note_chunk(self, flight: ChunkAttempt) -> None:
        record = chunk_record(self._topology, flight, self._now_ms)
        self._event.chunks[flight.job, flight.chunk] = record

    def _view(self) -> SchedulerView:
        return SchedulerView(self._topology, self._settings, self._policy, self._queue, self._jobs, self._lost)

    # ---- from the records

    def _records(self) -> Iterator[RequestRecord | ChunkRecord]:
        """Everything that `_restore` needs. The chain of a chunk that is done is left out where it counts no more."""
        counted = {(flight.job, flight.chunk): flight for flight in self._policy.counted_done()}
        for job in dict.fromkeys([*self._jobs.values(), *(job for job, _ in counted)]):
            yield request_record(self._topology, job)
            for chunk, attempt in job.attempts.items():
                flight = job.flights.get(chunk) or counted.get((job, chunk))
                if flight is not None:
                    yield chunk_record(self._topology, flight, flight.since_ms)
                else:
                    state = ChunkState.DONE if chunk in job.done else ChunkState.WAITING
                    yield ChunkRecord(job.name, chunk, attempt, state.value, (), (), self._now_ms, 0)

    def _restore(
        self,
        records: Iterable[RequestRecord | ChunkRecord],
        lost: Collection[str],
        now_ms: int,
        step: int = 0,
    ) -> None:
        requests: dict[str, RequestRecord] = {}
        chunks: dict[tuple[str, int], ChunkRecord] = {}
        for record in records:
            if isinstance(record, RequestRecord):
                requests[record.name] = record
            else:
                chunks[record.request, record.chunk] = record
        self._begin(max([now_ms, *(record.submitted_ms for record in requests.values())]))
        jobs = {name: intake.job_of(self._topology, self._settings, record) for name, record in requests.items()}
        self._policy.resume_at(max([step, *(chunk.step for chunk in chunks.values())]))
        for chunk in sorted(chunks.values(), key=lambda record: (record.request, record.chunk)):
            if chunk.request in jobs:
                self._resume(jobs[chunk.request], chunk)
        for job in sorted(jobs.values(), key=lambda job: job.sequence):
            self._sequence = max(self._sequence, job.sequence)
            if job.state.ended:
                self._jobs[job.name] = job
                self._remember(job)
            else:
                self._adopt_restored(job)
        for host in lost:
            number = intake.host_number(self._topology, "lost_hosts", host)
            if number not in self._lost:
                self._lose(number)
        self._gathered = 1
        self.restored = self._planned()

    def _resume(self, job: TransferJob, record: ChunkRecord) -> None:
        """Restore the state of a chunk. A chunk whose chain is no longer in the topology waits again."""
        job.attempts[record.chunk] = record.attempt
        state = ChunkState(record.state)
        if state is ChunkState.DONE:
            job.done.add(record.chunk)
        if state is ChunkState.WAITING or (job.state.ended and state is not ChunkState.DONE):
            return
        chain = chain_of(self._topology, record, job.kind)
        if chain is not None:
            flight = ChunkAttempt(job, chain, record.attempt, record.since_ms, record.step, state)
            if state is ChunkState.RUNNING:
                self._add_in_flight(flight)
            self._policy.resume(flight, done=state is ChunkState.DONE)
        elif state is ChunkState.RUNNING:
            self._event.revoked.append(ChunkStart(job.name, record.chunk, record.attempt, record.hosts, job.kind))
            self._event.chunks[job, record.chunk] = replace(
                record, state=ChunkState.WAITING.value, since_ms=self._now_ms
            )

    def _adopt_restored(self, job: TransferJob) -> None:
        gone = job.sort(())
        self._adopt(job)
        if job.writer == intake.NO_WRITER and job.writer_name is not None:
            self._end(job, RequestEvent.LOSE_WRITER, "its host is not in the network any more")
        elif gone is not None:
            reason = f"chunk {gone} has no source left: none is in the network any more"
            self._end(job, RequestEvent.LOSE_SOURCES, reason)
