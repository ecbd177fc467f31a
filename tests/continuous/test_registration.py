"""A runner is a registered reader of its sources and its target: retention keeps what its recovery would read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.client.wire import EARLIEST, LATEST
from logstore.errors import FencedIncarnation, OffsetOutOfRange, UnknownReader
from logstore.format.reader_api import LOG_START, ReaderOffset
from spe_adapter.continuous.errors import FragmentRefused
from spe_adapter.continuous.fragment import Fragment
from spe_adapter.continuous.runner import READER_PREFIX, Options, Runner
from spe_adapter.epochs.retention import HeldStreams
from spe_adapter.epochs.scan import ends
from tests.continuous.processes import RunnerProcess, Work, described, expected, produce
from tests.continuous.test_kills import consumed
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

FLAGS = ("--retention-check-interval-ms", "20")
TRIMMED_AT_ONCE = {"retention.ms": "1", "segment.bytes": "1024"}
ROWS = [(b"key-%d" % (number * 7 % 31), number) for number in range(2_000)]
QUERY = "registered"
READER = f"{READER_PREFIX}{QUERY}.0"
FIRST = 850
"""After so many rows most windows of seven values have been open for longer than an epoch."""


def log_start(client: Client) -> int:
    """The first offset of the source that is there."""
    stream = TopicPartition("in", 0)
    return client.offsets({stream: EARLIEST})[stream].offset


def wait_for_start(client: Client, at_least: int) -> None:
    """Wait until the source starts there."""
    until(lambda: log_start(client) >= at_least, lambda: f"the source still starts at {log_start(client)}")


def lazy(address: str, records: int) -> Work:
    """Work whose policy wants no footprint of an open window, so that a recovery replays all that is open."""
    return Work(address, QUERY, records, epoch_records=100, q_limit=10**9, u_limit=10**9)


def test_open_windows_keep_their_input(tmp_path: Path) -> None:
    """Retention removes a source's records at once; runners that end and that are killed find what they need, what
    none needs any more is gone, and each result comes once.
    """
    with Sidecar(tmp_path / "data", *FLAGS) as sidecar, Client(parse_addresses(sidecar.address)) as client:
        client.create_topic("in", 1, TRIMMED_AT_ONCE)
        fragment = described(lazy(sidecar.address, 0))
        Runner(fragment, 0, Options(sidecar.address)).run(lambda: True)  # registers before there are records
        produce(sidecar.address, "in", ROWS[:FIRST])
        with RunnerProcess(lazy(sidecar.address, FIRST)) as runner:
            assert [heard[0] for heard in runner.hear_until("done", 1_000)][-1] == "done"
        (held,) = (entry.offset for entry in client.describe_reader(READER).streams if entry.topic == "in")
        assert 0 < held < FIRST - 100
        wait_for_start(client, held // 100 * 100)  # a chunk has two batches of fifty records
        assert log_start(client) <= held
        produce(sidecar.address, "in", ROWS[FIRST:])
        with RunnerProcess(lazy(sidecar.address, len(ROWS))) as runner:  # killed after its first epoch
            for heard in runner.hear_until("epoch", 1_000):
                assert heard[0] != "failed", heard
        with RunnerProcess(lazy(sidecar.address, len(ROWS))) as runner:
            assert [heard[0] for heard in runner.hear_until("done", 1_000)][-1] == "done"
        assert consumed(sidecar.address, "out-registered") == expected(ROWS)


def test_registration_can_be_declined(tmp_path: Path) -> None:
    """`register=False`: the source keeps nothing for the runner, and no reader is known."""
    with Sidecar(tmp_path / "data", *FLAGS) as sidecar, Client(parse_addresses(sidecar.address)) as client:
        client.create_topic("in", 1, TRIMMED_AT_ONCE)
        fragment = described(Work(sidecar.address, QUERY, 0))
        Runner(fragment, 0, Options(sidecar.address, register=False)).run(lambda: True)
        assert client.reader_names() == []
        Runner(fragment, 0, Options(sidecar.address)).run(lambda: True)
        assert client.reader_names() == [f"{READER_PREFIX}{fragment.name_in(0)}"]
        client.remove_reader(f"{READER_PREFIX}{fragment.name_in(0)}")
        try:
            client.describe_reader(f"{READER_PREFIX}{fragment.name_in(0)}")
        except UnknownReader:
            return
        raise AssertionError("the reader is still known")


def test_offsets_that_are_not_there(tmp_path: Path) -> None:
    """The source was made anew, or trimmed: the runner holds what is there, at either end."""
    with Sidecar(tmp_path / "data", *FLAGS) as sidecar, Client(parse_addresses(sidecar.address)) as client:
        client.create_topic("in", 1)
        produce(sidecar.address, "in", ROWS[:100])
        stream, reader = TopicPartition("in", 0), HeldStreams("r")
        for asked, expected_offset in ((1_000, 100), (2_000, 100), (20, 100)):
            reader.acknowledge(client, {stream: asked})
            assert [entry.offset for entry in client.describe_reader("r").streams] == [expected_offset]
        client.delete_records(stream, 50)
        client.remove_reader("r")
        reader.acknowledge(client, {stream: 20})
        assert [entry.offset for entry in client.describe_reader("r").streams] == [50]


def test_an_older_runner_moves_nothing(tmp_path: Path) -> None:
    """It gets an error by name when it acknowledges, keeps alive or registers; a runner registers with its number."""
    with Sidecar(tmp_path / "data", *FLAGS) as sidecar, Client(parse_addresses(sidecar.address)) as client:
        client.create_topic("in", 1, TRIMMED_AT_ONCE)
        fragment = described(Work(sidecar.address, QUERY, 0))
        name = f"{READER_PREFIX}{fragment.name_in(0)}"
        numbers = []
        for _ in range(2):
            Runner(fragment, 0, Options(sidecar.address)).run(lambda: True)
            numbers.append(client.describe_reader(name).incarnation_number)
        assert numbers[0] > 0
        assert numbers[1] == numbers[0] + 1
        stream, older = TopicPartition("in", 0), HeldStreams(name)
        older.incarnation_number = numbers[0]
        before = client.describe_reader(name).streams
        with pytest.raises(FencedIncarnation, match=f"belongs to incarnation {numbers[1]}"):
            older.register(client, {stream: 0})
        newest = HeldStreams(name)
        newest.incarnation_number = numbers[1]
        newest.register(client, {stream: 0})
        older._placed = dict(newest._placed)
        with pytest.raises(FencedIncarnation):
            older.keep_alive(client)
        with pytest.raises(FencedIncarnation):
            older.acknowledge(client, {stream: 0})
        assert before
        assert [entry.topic for entry in client.describe_reader(name).streams] == ["in"]


def test_streams_that_are_being_trimmed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records go while a reader registers: each stream that is refused is held from what is there of it, however many
    are refused one after the other, and wherever its start has moved to.
    """
    with Sidecar(tmp_path / "data", *FLAGS) as sidecar, Client(parse_addresses(sidecar.address)) as client:
        streams = [TopicPartition("trimmed", partition) for partition in range(4)]
        client.create_topic("trimmed", len(streams))
        for stream in streams:
            produce(sidecar.address, "trimmed", ROWS[:100], partition=stream.partition)

        class Trimming(HeldStreams):
            """Another stream is trimmed before each attempt."""

            attempts = 0

            def _register(self, client: Client, positions: Mapping[TopicPartition, int]) -> tuple[ReaderOffset, ...]:
                if self.attempts < 3:
                    client.delete_records(streams[self.attempts], 50 + self.attempts)
                self.attempts += 1
                return super()._register(client, positions)

        reader = Trimming("r")
        reader.register(client, dict(zip(streams, (20, 20, 20, 1_000), strict=True)))
        held = {entry.partition: entry.offset for entry in client.describe_reader("r").streams}
        assert held == {0: 50, 1: 51, 2: 52, 3: 100}
        assert reader.attempts > 3

        class Moving(HeldStreams):
            """The log's start moves on during the first attempts."""

            attempts = 0

            def _register(self, client: Client, positions: Mapping[TopicPartition, int]) -> tuple[ReaderOffset, ...]:
                self.attempts += 1
                if self.attempts <= 3:
                    raise OffsetOutOfRange("trimmed-0", 40 + self.attempts, 45, 100)
                return super()._register(client, positions)

        caplog.clear()
        Moving("moving").register(client, {streams[0]: LOG_START})
        assert [entry.offset for entry in client.describe_reader("moving").streams] == [50]
        assert not caplog.records, "nothing that a recovery needs is gone"


def test_open_windows_keep_their_output(tmp_path: Path) -> None:
    """Retention removes a target's records at once, but for those that a recovery reads: runners that are killed and
    that end find their state, and the results that are there are the newest ones, each once.
    """
    with Sidecar(tmp_path / "data", *FLAGS) as sidecar, Client(parse_addresses(sidecar.address)) as client:
        client.create_topic("in", 1)
        client.create_topic("out-registered", 1, TRIMMED_AT_ONCE)
        work = Work(sidecar.address, QUERY, FIRST, epoch_records=50)
        produce(sidecar.address, "in", ROWS[:FIRST])
        with RunnerProcess(work) as runner:
            assert [heard[0] for heard in runner.hear_until("done", 1_000)][-1] == "done"
        target = TopicPartition("out-registered", 0)
        held = {entry.topic: entry.offset for entry in client.describe_reader(READER).streams}
        assert held["out-registered"] > 0
        until(lambda: client.offsets({target: EARLIEST})[target].offset, "the target is trimmed")
        assert client.offsets({target: EARLIEST})[target].offset <= held["out-registered"]
        produce(sidecar.address, "in", ROWS[FIRST:])
        for ending in ("epoch", "done"):  # killed after its first epoch, then to the end
            with RunnerProcess(replace(work, records=len(ROWS))) as runner:
                assert [heard[0] for heard in runner.hear_until(ending, 1_000)][-1] == ending
        found = consumed(sidecar.address, "out-registered")
        assert found == expected(ROWS)[-len(found) :]


def test_state_that_was_released_is_named(tmp_path: Path) -> None:
    """A reader may keep nothing at all, and retention takes the state: the next runner says which setting did it."""
    flags = (*FLAGS, "--reader-hold-bytes", "0")
    with Sidecar(tmp_path / "data", *flags) as sidecar, Client(parse_addresses(sidecar.address)) as client:
        client.create_topic("in", 1)
        client.create_topic("out-registered", 1, TRIMMED_AT_ONCE)
        produce(sidecar.address, "in", ROWS)
        work = replace(lazy(sidecar.address, len(ROWS)), epoch_records=50)
        with RunnerProcess(work) as runner:
            assert [heard[0] for heard in runner.hear_until("done", 1_000)][-1] == "done"
        target = TopicPartition("out-registered", 0)

        def is_lost() -> bool:
            start, end = (client.offsets({target: moment})[target].offset for moment in (EARLIEST, LATEST))
            return start == end

        until(is_lost, "the target is trimmed, state and all")
        until(lambda: "event=reader_released" in sidecar.log(), "it is told of")
        with RunnerProcess(work) as runner:
            (failed,) = runner.hear_until("failed", 1)
        assert "StateTrimmed" in str(failed[1])
        assert "reader-hold-bytes" in str(failed[1])


def test_what_a_recovery_does_not_need_may_go(tmp_path: Path) -> None:
    """`state_history="recovery"`: the reader names the query as its epochs do; without it, it names none. Without a
    registration the option is refused, as another value is.
    """
    with Sidecar(tmp_path / "data", *FLAGS) as sidecar, Client(parse_addresses(sidecar.address)) as client:
        client.create_topic("in", 1)
        produce(sidecar.address, "in", ROWS[:100])
        fragment = described(Work(sidecar.address, QUERY, 100, epoch_records=50))
        options = Options(sidecar.address, state_history="recovery")
        Runner(fragment, 0, options).run(lambda: ended(client, fragment) == [fragment.name_in(0)])
        assert client.describe_reader(READER).state == fragment.name_in(0)
        Runner(fragment, 0, replace(options, state_history="all")).run(lambda: True)
        assert client.describe_reader(READER).state == ""
        with pytest.raises(FragmentRefused, match="register"):
            Runner(fragment, 0, replace(options, register=False)).run(lambda: True)
        with pytest.raises(FragmentRefused, match="'some'"):
            Runner(fragment, 0, Options(sidecar.address, state_history="some")).run(lambda: True)  # type: ignore[arg-type]


def ended(client: Client, fragment: Fragment) -> list[str]:
    """The queries of which an epoch with a mark ended in the target, each once."""
    if fragment.topic not in client.topics():
        return []
    found = ends(client, TopicPartition(fragment.topic, 0))
    return sorted({end.query for end, _ in found})
