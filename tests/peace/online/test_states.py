"""Every step of the tables of requests and chunks is taken by a story, and every other step is refused."""

from itertools import product

import pytest

from scheduler.errors import RequestError
from scheduler.peace.online import Settings, Submission, jobs
from scheduler.peace.online.jobs import ChunkAttempt, TransferJob
from scheduler.peace.online.states import (
    CHUNK_TRANSITIONS,
    REQUEST_TRANSITIONS,
    ChunkEvent,
    ChunkState,
    RequestEvent,
    RequestState,
)
from scheduler.peace.paper import PaperPlanner
from scheduler.peace.plan import HostChain, TransferKind
from scheduler.topology import racks
from tests.peace.online.world import World
from tests.support.steps import RecordedSteps

RequestSteps = RecordedSteps[RequestState, RequestEvent]
ChunkSteps = RecordedSteps[ChunkState, ChunkEvent]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> tuple[RequestSteps, ChunkSteps]:
    """The tables that the code runs in this test."""
    requests, chunks = RequestSteps(REQUEST_TRANSITIONS), ChunkSteps(CHUNK_TRANSITIONS)
    monkeypatch.setattr(jobs, "REQUEST_TRANSITIONS", requests)
    monkeypatch.setattr(jobs, "CHUNK_TRANSITIONS", chunks)
    return requests, chunks


def write(name: str, writer: str, chunks: int = 1) -> Submission:
    """A request to write chunks with one replica anywhere."""
    return Submission(name, writer, chunks, placement=("anywhere",))


def copy(name: str, source: str) -> Submission:
    """A request to copy a chunk that one host has."""
    return Submission(name, None, 1, 1, None, 0, TransferKind.COPY, ((source,),))


def requests_that_run() -> None:
    """A request finishes after a failure; others end while they run: cancelled, exhausted, without writer or source."""
    world = World(racks([7], 1, send=1), PaperPlanner, Settings(max_attempts=2))
    world.submit(write("finished", "r1h1", chunks=2))
    world.fail(("finished", 0, 1))
    while world.request("finished").state != "finished":
        world.finish(next(iter(world.in_flight)))
    world.submit(write("cancelled", "r1h1"))
    world.cancel("cancelled")
    assert world.cancel("cancelled").ignored is not None
    world.submit(write("exhausted", "r1h1"))
    for attempt in (1, 2):
        world.expire(("exhausted", 0, attempt))
    assert world.request("exhausted").state == "failed"
    world.submit(write("no writer", "r1h1"))
    world.lose("r1h1")
    assert world.request("no writer").state == "cancelled"
    world.submit(copy("no source", "r1h2"))
    assert world.request("no source").state == "running"
    world.lose("r1h2")
    assert world.request("no source").state == "failed"


def requests_that_wait() -> None:
    """A waiting request changes its size; others end before any chunk starts; one that runs cannot change."""
    world = World(racks([7], 1, send=1), PaperPlanner, Settings())
    world.submit(write("first", "r1h1", chunks=4))
    world.submit(write("second", "r1h1", chunks=2))
    world.resubmit("second", 1)
    with pytest.raises(RequestError, match="is running"):
        world.scheduler.resubmit("first", 1, world.now_ms)
    world.cancel("second")
    world.submit(write("no writer", "r1h1"))
    world.submit(copy("no source", "r1h1"))
    assert {world.request(name).state for name in ("no writer", "no source")} == {"waiting"}
    world.lose("r1h1")
    assert world.request("no writer").state == "cancelled"
    assert world.request("no source").state == "failed"


def test_every_step_of_the_tables_is_taken(steps: tuple[RequestSteps, ChunkSteps]) -> None:
    """By the two stories together; no step outside the tables is tried."""
    requests_that_run()
    requests_that_wait()
    requests, chunks = steps
    assert requests.taken == set(REQUEST_TRANSITIONS)
    assert chunks.taken == set(CHUNK_TRANSITIONS)


@pytest.mark.parametrize(
    ("state", "event"), sorted(set(product(RequestState, RequestEvent)) - set(REQUEST_TRANSITIONS), key=repr)
)
def test_every_other_step_of_a_request_is_refused(state: RequestState, event: RequestEvent) -> None:
    """The request stays as it is, and the defect is named."""
    job = TransferJob("q", TransferKind.WRITE, 0, ((),), 1)
    job.state = state
    with pytest.raises(AssertionError, match=event.value):
        job.move(event)
    assert job.state is state


@pytest.mark.parametrize(
    ("state", "event"), sorted(set(product(ChunkState, ChunkEvent)) - set(CHUNK_TRANSITIONS), key=repr)
)
def test_every_other_step_of_a_chunk_is_refused(state: ChunkState, event: ChunkEvent) -> None:
    """The chunk stays as it is, and the defect is named."""
    flight = ChunkAttempt(
        TransferJob("q", TransferKind.WRITE, 0, ((),), 1), HostChain("q", 0, (0, 1), ((),)), 1, 0, 0, state
    )
    with pytest.raises(AssertionError, match=event.value):
        flight.move(event)
    assert flight.state is state


def test_a_state_without_steps_is_an_end() -> None:
    """`ended` and the table agree."""
    assert {state for state in RequestState if state.ended} == set(RequestState) - {
        state for state, _ in REQUEST_TRANSITIONS
    }
