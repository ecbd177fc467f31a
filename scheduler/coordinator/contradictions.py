"""Consistency check of a stored request: its submission, record, chunks and events.

All parts of a change are stored in one transaction, so parts that do not fit were damaged, or changed by another
program.

Invariant: no state is changed; `check_request` returns, or raises StoreDamaged, which names the request and the
contradiction.
"""

import json
from collections.abc import Mapping, Sequence

from scheduler.coordinator.errors import StoreDamaged
from scheduler.coordinator.events import ENDS, Event
from scheduler.peace.online.records import ChunkRecord, RequestRecord
from scheduler.peace.online.states import ChunkState, RequestState
from scheduler.peace.plan import TransferKind

_EVENTS = frozenset(("go", "revoked", *ENDS))


def check_request(
    name: str, asked: str, record: RequestRecord, chunks: Mapping[str, ChunkRecord], events: Sequence[Event]
) -> None:
    """Raises StoreDamaged if these contradict each other. `chunks`: by the number in their keys."""
    what = (
        _of_record(name, asked, record)
        or _of_events(record, events)
        or next((found for number, chunk in chunks.items() if (found := _of_chunk(record, number, chunk))), None)
        or _of_gos(record, {chunk.chunk: chunk for chunk in chunks.values()}, events)
    )
    if what is not None:
        raise StoreDamaged(f"stored request {name!r} contradicts itself: {what}; restore the metadata from a copy")


def _of_record(name: str, asked: str, record: RequestRecord) -> str | None:
    submission = json.loads(asked)
    if record.name != name or submission.get("name") != name:
        return f"its record is of {record.name!r}, its submission of {submission.get('name')!r}"
    if (record.writer, record.kind) != (submission.get("writer"), submission.get("kind")):
        return (
            f"submitted was a {submission.get('kind')} by {submission.get('writer')}, stored is a {record.kind} by "
            f"{record.writer}"
        )
    if record.state not in set(RequestState):
        return f"its state is {record.state!r}"
    return None


def _of_events(record: RequestRecord, events: Sequence[Event]) -> str | None:
    for number, event in enumerate(events, 1):
        if event.get("number") != number or event.get("event") not in _EVENTS:
            return f"its event {number} is {event.get('event')!r} with number {event.get('number')!r}"
    end = next((number for number, event in enumerate(events, 1) if event["event"] in ENDS), None)
    if end is not None and (end != len(events) or events[-1]["event"] != record.state):
        return f"its event {end} of {len(events)} is {events[end - 1]['event']}, its state {record.state}"
    if end is None and RequestState(record.state).ended:
        return f"its state is {record.state}, and its writer was not told"
    return None


def _of_chunk(record: RequestRecord, number: str, chunk: ChunkRecord) -> str | None:
    if chunk.request != record.name or str(chunk.chunk) != number or not 0 <= chunk.chunk < record.chunks:
        return f"its chunk {number} of {record.chunks} has the record of chunk {chunk.chunk} of {chunk.request!r}"
    if chunk.state not in set(ChunkState):
        return f"chunk {number} has state {chunk.state!r}"
    if record.state == RequestState.WAITING:
        return f"its state is waiting, and its chunk {number} was started"
    if record.kind == TransferKind.WRITE and chunk.hosts[:1] != (record.writer,):
        return f"chunk {number} is sent by {', '.join(chunk.hosts[:1]) or 'nobody'}, its writer is {record.writer}"
    return None


def _of_gos(record: RequestRecord, chunks: Mapping[int, ChunkRecord], events: Sequence[Event]) -> str | None:
    """A chunk's newest event and its record must be of one attempt; a chunk in flight must have the hosts of its go."""
    newest = {event["chunk"]: event for event in events if event["chunk"] is not None}
    for number in newest.keys() | chunks.keys():
        event, chunk = newest.get(number), chunks.get(number)
        if event is None or chunk is None or event["attempt"] != chunk.attempt:
            told = "nothing" if event is None else f"attempt {event['attempt']}"
            stored = "nothing" if chunk is None else f"attempt {chunk.attempt}"
            return f"of chunk {number}, its writer was told {told}, and stored is {stored}"
        if list(event["hosts"]) != list(chunk.hosts):
            return (
                f"chunk {number} goes through {', '.join(chunk.hosts)}, and its writer was told "
                f"{', '.join(map(str, event['hosts']))}"
            )
        runs = chunk.state == ChunkState.RUNNING and not RequestState(record.state).ended
        if runs and event["event"] != "go":
            return f"chunk {number} is under way, and its writer was told {event['event']}"
    done = sum(chunk.state == ChunkState.DONE for chunk in chunks.values())
    if record.state == RequestState.FINISHED and done != record.chunks:
        return f"it is finished with {done} of {record.chunks} chunks done"
    return None
