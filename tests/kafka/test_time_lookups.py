"""Look-ups by time against a list of all records: every codec, ties, chunks, trims, restarts, and LogAppendTime."""

import tempfile
from pathlib import Path
from typing import NamedTuple

import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from logstore.format.records import Record, encode_batch
from logstore.log.topics import CREATE_TIME, LOG_APPEND_TIME
from logstore.testing.clock import ManualClock
from tests.kafka.node import NOW_MS, Node, running
from tests.support.compressed import CODECS, compressed

LIST_OFFSETS, MAX_TIMESTAMP = 2, -3
CHUNK_BYTES = 1024
"""A chunk holds a few batches, so that look-ups pass from one chunk to the next."""
VALUE = b"value" * 12
LATEST_TIME = 8
"""Few moments, so that many records have the same one."""


class Sent(NamedTuple):
    """A batch: its codec, its records' times, and when it arrives."""

    codec: str
    times: tuple[int, ...]
    arrives: int

    def encoded(self) -> bytearray:
        """The batch as a client sends it."""
        batch = encode_batch([Record(0, NOW_MS + time, None, VALUE) for time in self.times])
        return batch if self.codec == "none" else compressed(batch, self.codec)


class Story(NamedTuple):
    """What happens to a stream before it is asked."""

    batches: tuple[Sent, ...]
    stamps_appends: bool
    trimmed_share: float
    restarts: bool

    def records(self) -> list[int]:
        """Each record's time, by its offset."""
        return [
            NOW_MS + (sent.arrives if self.stamps_appends else time) for sent in self.batches for time in sent.times
        ]

    def log_start(self) -> int:
        """The first offset that is left."""
        return int(len(self.records()) * self.trimmed_share)


moments = st.integers(0, LATEST_TIME)
sent_batches = st.builds(
    Sent, st.sampled_from(["none", *CODECS]), st.lists(moments, min_size=1, max_size=12).map(tuple), moments
)
stories = st.builds(
    Story,
    st.lists(sent_batches, min_size=1, max_size=12).map(tuple),
    st.booleans(),
    st.sampled_from([0.0, 0.0, 0.3, 0.9]),
    st.booleans(),
)


def first_at(records: list[int], start: int, time: int) -> tuple[int, int]:
    """The first record at or after that time: offset and time, or -1 and -1."""
    return next(((offset, at) for offset, at in enumerate(records) if offset >= start and at >= time), (-1, -1))


async def asked(node: Node, time: int) -> tuple[int, int]:
    """What ListOffsets answers: offset and time."""
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": time}
    answer = await node.ask(LIST_OFFSETS, 11, replica_id=-1, topics=[{"name": "t", "partitions": [part]}])
    found = answer.topics[0].partitions[0]
    assert found.error_code is ErrorCode.none
    return found.offset, found.timestamp


async def check(node: Node, story: Story) -> None:
    """Every moment, those before and behind all records, and the newest record."""
    records, start = story.records(), story.log_start()
    for time in (0, *range(NOW_MS - 1, NOW_MS + LATEST_TIME + 2)):
        assert await asked(node, time) == first_at(records, start, time), f"time {time - NOW_MS}"
    assert await asked(node, MAX_TIMESTAMP) == first_at(records, start, max(records[start:]))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories)
@example(Story((Sent("zstd", (3, 3, 1), 0), Sent("lz4", (3, 3), 0), Sent("none", (2, 3), 0)), False, 0.3, True))
@example(Story(tuple(Sent("gzip", (5,) * 12, 5) for _ in range(12)), True, 0.9, True))
def test_look_ups_find_the_record_that_a_list_finds(story: Story) -> None:
    """Whatever the batches, a time finds the first record that is left and not older, and the newest time the first
    record that has it; so it is for the chunk in use, for sealed ones, and after a restart.
    """
    kind = LOG_APPEND_TIME if story.stamps_appends else CREATE_TIME
    config = {"segment.bytes": str(CHUNK_BYTES), "message.timestamp.type": kind, "retention.ms": "-1"}

    async def run(root: Path) -> None:
        clock = ManualClock(NOW_MS)
        async with running(root, clock=clock) as node:
            await node.engine.wait(node.store.create_topic("t", 1, config))
            for sent in story.batches:
                clock.jump(NOW_MS + sent.arrives)
                await node.send("t", sent.encoded(), now_ms=NOW_MS + sent.arrives)
            if story.log_start():
                await node.engine.wait(node.store.stream("t", 0).delete_records(story.log_start()))
            await check(node, story)
        if story.restarts:
            async with running(root, clock=clock) as node:
                await check(node, story)

    with tempfile.TemporaryDirectory() as directory:
        trio.run(run, Path(directory))
