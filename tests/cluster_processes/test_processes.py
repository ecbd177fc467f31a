"""A cluster as its users have it: three sidecar processes, an etcd, clients written by others, and what goes wrong.

Each test prints for how long there was no acknowledgement (`pytest -s` shows it), and bounds it in beats
(`tests.cluster_processes.beats`): where the leader is lost, behind the first answer that named another one. Tests
that leave every host with its disk share a cluster, and leave it without topics and with all hosts. Who fails ends it:
what its hosts said is shown, and the next test has a new one.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import InvalidReplicationFactorError, KafkaError

from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.errors import UnknownTopicOrPartition
from logstore.testing.cluster import Cluster, ClusterHostProcess
from tests.cluster_processes.beats import Beats, NamedLeader, beating, beats, longest_gap, naming
from tests.cluster_processes.clients import ASK_MS, PATIENCE_MS, again, asked, create_topic, read
from tests.cluster_processes.foreign_producers import require, run_franz_go, run_java
from tests.cluster_processes.places import wait_all_members
from tests.cluster_processes.shared_cluster import SharedCluster, delete
from tests.metadata.support import needs_etcd
from tests.support.beside import beside
from tests.support.cluster_network import new_network
from tests.support.examples import is_long
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

pytestmark = [
    needs_etcd,
    pytest.mark.clients,
]
TOPIC = "orders"
FILLED, FILLED_CHUNK_BYTES = "filled", 1 << 18
LOST_S, STOPPED_S = 3.0, 1.0
"""What producers may take to go on when a host is killed, and when it stops as planned."""
TRIALS = 50
"""Until no host took another one for failed in one of them. Each takes some seconds."""
WARM, AFTER = (500, 1_500) if is_long() else (200, 500)
"""Records before and after what happens to a host: clients notice, and there is something to lose."""
AWAY = 3_000
"""Records while etcd is away: one a millisecond at most, so that they take longer than a lease lasts."""
HASTY_MS = 2_000
"""For an answer of a host, where one stands still."""


def partitions_of(cluster: Cluster, topic: str = TOPIC, servers: str = "") -> list[dict[str, Any]]:
    """The topic's partitions, as clients are told by one of these hosts, or of all; none if it has not heard of it."""
    described = asked(servers or cluster.bootstrap, lambda admin: admin.describe_topics([topic]))
    found: list[dict[str, Any]] = described[0]["partitions"]
    return found


def create(cluster: Cluster, partitions: int = 1, replicas: int = 3, topic: str = TOPIC, **config: str) -> None:
    """Create a topic."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    create_topic(cluster.bootstrap, NewTopic(topic, partitions, replicas, topic_configs=settings))


def leader_of(cluster: Cluster, partition: int = 0, topic: str = TOPIC, servers: str = "") -> ClusterHostProcess:
    """The host that leads a partition, once there is one, as these hosts say, or any."""
    found: list[int] = []

    def is_led() -> bool:
        shown = partitions_of(cluster, topic, servers)
        found[:] = [each["leader_id"] for each in shown if each["partition_index"] == partition]
        return bool(found) and found[0] > 0

    until(is_led, f"somebody leads partition {partition}")
    return cluster.by_node(found[0])


def follower_of(cluster: Cluster) -> ClusterHostProcess:
    """A host that has a copy of the partition and does not lead it."""
    found: list[int] = []

    def is_found() -> bool:
        for each in partitions_of(cluster):
            found[:] = [node for node in each["isr_nodes"] if node != each["leader_id"] > 0]
        return bool(found)

    until(is_found, "a copy beside the leader's")
    return cluster.by_node(found[0])


def lacks_nothing(cluster: Cluster) -> bool:
    """Whether every chunk has as many copies as it should, as the hosts say."""
    with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
        found = Admin(client).hosts()
    return found.is_complete and found.ownerless == found.under_replicated == 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    """A cluster that is started for the first test that wants it."""
    made = SharedCluster(lambda: tmp_path_factory.mktemp("cluster"), (TOPIC, FILLED))
    yield made
    made.end()


class Moment(NamedTuple):
    """Now."""

    time_s: float
    beat: int


class Load:
    """Numbers that are produced to partition 0 until it ends; which were acknowledged, where and when."""

    def __init__(self, counting: Beats) -> None:
        self.beats = counting
        self.acked: list[tuple[int, int]] = []
        """Offset and number."""
        self.times_s: list[float] = []
        self.at_beats: list[int] = []
        """When records were acknowledged."""
        self.errors: list[str] = []
        self.sent = 0
        self.ended = threading.Event()

    def acknowledged(self, offset: int, number: int) -> None:
        """The cluster has said that it has a record."""
        self.acked.append((offset, number))
        self.times_s.append(time.monotonic())
        self.at_beats.append(self.beats.count)

    def now(self) -> Moment:
        """This moment."""
        return Moment(time.monotonic(), self.beats.count)

    def silence_s(self, since_s: float) -> float:
        """The longest time without an acknowledgement from a moment on."""
        times = [since_s, *(each for each in self.times_s if each > since_s)]
        return max((after - before for before, after in pairwise(times)), default=float("inf"))

    def check(self, what: str, since: Moment, limit_s: float, named: int | None = 0) -> None:
        """From a moment on there was no longer time without an acknowledgement than so many seconds stand for, in
        beats, behind as many beats as it took until a new leader was named.
        """
        silence = longest_gap(self.at_beats, since.beat)
        print(f"{what}: no acknowledgement for {self.silence_s(since.time_s):.2f} s, {silence} beats; named in {named}")
        assert silence <= (named or 0) + beats(limit_s), f"{what}: {silence} beats, a new leader was named in {named}"


def run_kafka_python(cluster: Cluster, load: Load, answer_ms: int = 5_000) -> None:
    """kafka-python."""
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=5, enable_idempotence=True,
        delivery_timeout_ms=PATIENCE_MS, request_timeout_ms=answer_ms, max_block_ms=PATIENCE_MS,
        bootstrap_timeout_ms=PATIENCE_MS,
    )  # fmt: skip
    while not load.ended.wait(0.001):
        number, load.sent = load.sent, load.sent + 1
        sent = producer.send(TOPIC, b"%d" % number, partition=0)
        sent.add_callback(lambda found, number=number: load.acknowledged(found.offset, number))
        sent.add_errback(lambda error: load.errors.append(repr(error)))
    producer.flush(PATIENCE_S)
    producer.close()


def run_confluent(cluster: Cluster, load: Load) -> None:
    """librdkafka."""
    producer = ConfluentProducer(
        {
            "bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5,
            "message.timeout.ms": PATIENCE_MS, "socket.timeout.ms": 10_000,
        }
    )  # fmt: skip

    def delivered(number: int) -> Callable[..., None]:
        def note(error: object, message: object) -> None:
            if error is not None:
                load.errors.append(repr(error))
            else:
                load.acknowledged(message.offset(), number)  # type: ignore[attr-defined]

        return note

    while not load.ended.wait(0.001):
        number, load.sent = load.sent, load.sent + 1
        producer.produce(TOPIC, b"%d" % number, partition=0, on_delivery=delivered(number))
        producer.poll(0)
    producer.flush(PATIENCE_S)


def run_aiokafka(cluster: Cluster, load: Load) -> None:
    """aiokafka."""

    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, acks="all", enable_idempotence=True, linger_ms=5,
            request_timeout_ms=ASK_MS, metadata_max_age_ms=1_000,
        )  # fmt: skip
        await producer.start()
        waiting = set()
        try:
            while not load.ended.is_set():
                number, load.sent = load.sent, load.sent + 1
                sent = await producer.send(TOPIC, b"%d" % number, partition=0)
                waiting.add(sent)

                def note(done: "asyncio.Future[object]", number: int = number) -> None:
                    waiting.discard(done)
                    if done.exception() is not None:
                        load.errors.append(repr(done.exception()))
                    else:
                        load.acknowledged(done.result().offset, number)  # type: ignore[attr-defined]

                sent.add_done_callback(note)
                await asyncio.sleep(0.001)
            await asyncio.wait_for(producer.flush(), PATIENCE_S)
        finally:
            await producer.stop()

    asyncio.run(produce())


CLIENTS: dict[str, Callable[[Cluster, Load], None]] = {
    "kafka-python": run_kafka_python,
    "confluent": run_confluent,
    "aiokafka": run_aiokafka,
    "java": run_java(TOPIC),
    "franz-go": run_franz_go(TOPIC),
}
LIMITS_S = {"franz-go": 6.0}
"""Of clients whose defaults make them wait for longer: `MetadataMinAge`, and two tries that reach the lost host."""
PROGRAMS = ("java", "franz-go")
"""Those that are fetched, and built, for the long run."""


@contextmanager
def producing(cluster: Cluster, run: Callable[[Cluster, Load], None] = run_kafka_python) -> Iterator[Load]:
    """A load that runs meanwhile, and has its answers at the end."""
    with beating() as counting:
        load = Load(counting)
        with beside(lambda: run(cluster, load), load.ended.set):
            wait_for_more(load, 100)
            yield load


def naming_other(cluster: Cluster, load: Load, lost: ClusterHostProcess) -> AbstractContextManager[NamedLeader]:
    """Who leads other than this host is asked meanwhile."""
    node = list(cluster).index(lost) + 1
    return naming(load.beats, lambda: [host.port for host in cluster if host.is_running], TOPIC, node)


def wait_for_more(load: Load, count: int) -> None:
    """Wait until so many more records are acknowledged."""
    wanted = len(load.acked) + count
    until(lambda: len(load.acked) >= wanted, f"{wanted} acknowledged, {load.errors[:3]}")


def read_all(cluster: Cluster, least: int) -> list[tuple[int, int]]:
    """Offset and number of every record of partition 0, of which there must be so many at least. A host that stood
    still or was cut off tells the end that it knew, until it hears that another one owns the stream.
    """
    found: list[tuple[int, int]] = []

    def is_read() -> bool:
        rows = read(cluster.bootstrap, TopicPartition(TOPIC, 0))
        found[:] = [(offset, int(value)) for offset, value in rows]
        return len(found) >= least

    until(is_read, lambda: f"{len(found)} records are read, {least} were acknowledged")
    return found


def check(cluster: Cluster, load: Load, *, is_exact: bool = True) -> None:
    """Every acknowledged record is in the log once, at its offset and in order; `is_exact`: nothing else is, and no
    record failed.
    """
    found = read_all(cluster, len(load.acked))
    assert [offset for offset, _ in found] == list(range(len(found)))
    assert set(load.acked) <= set(found)
    numbers = [number for _, number in found]
    assert numbers == sorted(set(numbers)), "a record is in the log twice, or out of order"
    if is_exact:
        assert load.errors == []
        assert len(load.acked) == load.sent == len(found)


@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=pytest.mark.slow) if name in PROGRAMS else name for name in CLIENTS]
)
def test_a_killed_owner_loses_nothing(shared: SharedCluster, client: str) -> None:
    """kill -9 of the host that leads, under load, and of the one that leads then when the first is back: every record
    that was sent is acknowledged, and in the log once.
    """
    require(client)
    with shared.lent() as cluster:
        create(cluster)
        with producing(cluster, CLIENTS[client]) as load:
            for _ in range(2):
                host = leader_of(cluster)
                wait_for_more(load, WARM)
                killed = load.now()
                with naming_other(cluster, load, host) as named:
                    host.kill()
                    wait_for_more(load, AFTER)
                    until(lambda: named.after is not None, "another leader is named")
                load.check(f"{client}: owner killed", killed, LIMITS_S.get(client, LOST_S), named.after)
                host.start()
                cluster.wait_members()
                wait_for_more(load, 200)
        check(cluster, load)


def test_a_killed_member_is_replaced(tmp_path: Path) -> None:
    """Of four hosts three have the chunk: kill -9 of one that does not lead only delays what is under way, and the
    fourth takes its place.
    """
    with Cluster(tmp_path / "cluster", ("a", "b", "c", "d"), network=new_network()) as cluster:
        create(cluster)
        with producing(cluster) as load:
            member = follower_of(cluster)
            wait_for_more(load, WARM)
            killed = load.now()
            member.kill()
            wait_for_more(load, AFTER)
            load.check("member killed", killed, LOST_S)
            until(lambda: copies_in(cluster) == [3], "the chunk has three members again")
        check(cluster, load)


def copies_in(cluster: Cluster) -> list[int]:
    """How many copies of each partition there are."""
    return [len(each["isr_nodes"]) for each in partitions_of(cluster)]


def test_a_paused_owner_is_replaced_and_acknowledges_nothing_more(shared: SharedCluster) -> None:
    """SIGSTOP for longer than a lease: another host owns the stream, and the old one finds out when it goes on."""
    with shared.lent() as cluster:
        create(cluster)
        with producing(cluster, partial(run_kafka_python, answer_ms=HASTY_MS)) as load:
            host = leader_of(cluster)
            wait_for_more(load, WARM)
            paused_s = time.monotonic()
            host.pause()
            others = ",".join(other.address for other in cluster if other is not host)
            until(lambda: leader_of(cluster, servers=others) is not host, "another host leads")
            # The process stands still: who acknowledges now is another host.
            wait_for_more(load, WARM)
            host.go_on()
            wait_for_more(load, 200)
            print(f"owner paused: no acknowledgement for {load.silence_s(paused_s):.2f} s")
        check(cluster, load)


def test_a_host_that_stops_hands_over(shared: SharedCluster) -> None:
    """SIGTERM of the owner: the others take over before it ends, it ends with status 0, and its producer goes on at
    once.
    """
    with shared.lent() as cluster:
        create(cluster)
        with producing(cluster) as load:
            wait_for_more(load, WARM)
            host = leader_of(cluster)
            stopped = load.now()
            with naming_other(cluster, load, host) as named:
                assert host.stop() == 0
                wait_for_more(load, 200)
                until(lambda: named.after is not None, "another leader is named")
            load.check("owner stopped", stopped, STOPPED_S, named.after)
        check(cluster, load)


def test_hosts_that_own_nothing_stop_cleanly(tmp_path: Path) -> None:
    """SIGTERM ends each with status 0, and its lease with it: the others do not wait for that."""
    with Cluster(tmp_path / "cluster", ("a", "b"), network=new_network()) as cluster:
        assert cluster["a"].stop() == 0
        cluster.wait_members()
        assert cluster["b"].stop() == 0
        assert [host.log for host in cluster if "Traceback" in host.log] == []


def test_a_wiped_host_gets_its_copies_again(tmp_path: Path) -> None:
    """kill -9 and an empty disk: the host is a new member, and then the two others may go."""
    with Cluster(tmp_path / "cluster", network=new_network()) as cluster:
        create(cluster, min_insync_replicas="1")
        with producing(cluster) as load:
            host = leader_of(cluster)
            host.kill()
            host.wipe()
            host.start()
            wait_for_more(load, 200)
            wait_for_more(load, AFTER)
            wait_all_members(cluster)
        until(lambda: lacks_nothing(cluster), "every chunk has all its copies")
        others = [each for each in cluster if each is not host]
        for other in others:
            other.stop()
        check(cluster, load)


def test_a_cluster_that_was_killed_as_a_whole_has_everything(shared: SharedCluster) -> None:
    """kill -9 of all hosts at once; they start again with what was acknowledged."""
    with shared.lent() as cluster:
        create(cluster)
        with producing(cluster) as load:
            wait_for_more(load, WARM)
            for host in cluster:
                host.kill()
            for host in cluster:
                host.begin()
            for host in cluster:
                host.wait_ready()
            wait_for_more(load, 200)
        check(cluster, load)


def fill_half_a_chunk(cluster: Cluster, gives_up: Callable[[], bool] = lambda: False) -> None:
    """Append half of what a chunk of the topic FILLED takes; returns when that is acknowledged, or if it gives up. The
    producer is not idempotent: ids for new ones come from the metadata store, and a host may have none left while that
    is away.
    """
    options = {"delivery_timeout_ms": PATIENCE_MS, "max_block_ms": PATIENCE_MS, "enable_idempotence": False}
    options["bootstrap_timeout_ms"] = PATIENCE_MS
    with closing(KafkaProducer(bootstrap_servers=cluster.bootstrap, **options)) as producer:
        sent = producer.send(FILLED, bytes(FILLED_CHUNK_BYTES // 2), partition=0)
        until(lambda: sent.is_done or gives_up(), "an acknowledgement of half a chunk")
        if sent.is_done:
            sent.get(0)
        else:
            producer.close(timeout=0)


def filled_chunks(cluster: Cluster) -> int:
    """How many chunks the topic FILLED has; 0 if the host that is asked has not heard of it."""
    with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
        try:
            found = Admin(client).places(FILLED)
        except UnknownTopicOrPartition:
            return 0
    return 0 if found is None or not found.places else found.places[0].chunks


def failures(cluster: Cluster) -> int:
    """How often a host took another one for failed."""
    return sum(host.log.count("event=member_failed ") for host in cluster)


def goes_on_without_etcd(cluster: Cluster, load: Load) -> bool:
    """Kill etcd, append, and start etcd again. False if a host took another one for failed meanwhile, as where the
    machine stands still for a moment: what that one has to confirm waits until etcd is back.
    """
    before = failures(cluster)
    until(lambda: lacks_nothing(cluster), "every chunk has all its copies")
    away = load.now()
    cluster.etcd.kill()
    try:
        for _ in range(6):
            fill_half_a_chunk(cluster, lambda: failures(cluster) > before)
        wanted = len(load.acked) + AWAY
        until(lambda: len(load.acked) >= wanted or failures(cluster) > before, f"{wanted} acknowledged")
        if failures(cluster) > before:
            return False
    finally:
        cluster.etcd.start()
    load.check("etcd killed", away, LOST_S)
    return True


def test_appends_go_on_without_the_metadata_store(shared: SharedCluster) -> None:
    """While etcd is away, what needs no change of it goes on, in chunks that are full, too; when it is back, so do
    takeovers, and full chunks are followed by others.
    """
    with shared.lent() as cluster:
        create(cluster, topic=FILLED, segment_bytes=str(FILLED_CHUNK_BYTES))
        create(cluster)
        fill_half_a_chunk(cluster)
        with producing(cluster) as load:
            until(lambda: filled_chunks(cluster) > 0, "the chunk that takes half of its bytes is known")
            chunks = filled_chunks(cluster)
            assert any(goes_on_without_etcd(cluster, load) for _ in range(TRIALS)), "a member failed each time"
            until(lambda: filled_chunks(cluster) > chunks, "a full chunk is followed by another one")
            wait_for_more(load, AFTER)
            leader_of(cluster).kill()
            wait_for_more(load, 200)
        check(cluster, load)


def rebalanced(cluster: Cluster) -> int:
    """How often the hosts have formed a generation of a group."""
    return sum(host.log.count("group_rebalanced") for host in cluster)


def test_a_group_goes_on_when_its_coordinator_is_killed(shared: SharedCluster) -> None:
    """What was committed is there, and the consumer goes on in its generation: every record once, here, because it
    commits after each poll, and nobody rebalances.
    """
    with shared.lent() as cluster:
        create(cluster)
        for host in cluster:  # a client that asks one that has not heard of the topic joins again
            until(lambda: partitions_of(cluster, servers=host.address), "each host knows the topic")  # noqa: B023
        with producing(cluster) as load:
            consumer = KafkaConsumer(
                TOPIC, bootstrap_servers=cluster.bootstrap, group_id="readers", auto_offset_reset="earliest",
                enable_auto_commit=False, session_timeout_ms=ASK_MS, request_timeout_ms=2 * ASK_MS,
                bootstrap_timeout_ms=PATIENCE_MS,
            )  # fmt: skip
            seen: dict[int, int] = {}

            def read_more(count: int) -> None:
                wanted = len(seen) + count

                def has_read() -> bool:
                    with suppress(KafkaError):  # it asks a host that is gone, or joins again, with the next poll
                        for records in consumer.poll(200).values():
                            seen.update((record.offset, int(record.value)) for record in records)
                        consumer.commit()
                    return len(seen) >= wanted

                until(has_read, f"{wanted} records read")

            read_more(WARM)
            rebalances = rebalanced(cluster)
            leader_of(cluster, topic="__cairn_groups").kill()
            killed_s, before = time.monotonic(), len(seen)
            read_more(WARM)
            print(f"coordinator killed: {len(seen) - before} records read within {time.monotonic() - killed_s:.2f} s")

        def has_committed() -> bool:
            with suppress(KafkaError):  # a commit of above may have met the coordinator that is gone
                for records in consumer.poll(200).values():
                    seen.update((record.offset, int(record.value)) for record in records)
                consumer.commit()
                return True
            return False

        until(has_committed, "what was read is committed")
        assert rebalanced(cluster) == rebalances
        committed = again(lambda: consumer.committed(TopicPartition(TOPIC, 0)))
        consumer.close()
        assert sorted(seen) == list(range(len(seen)))
        assert 0 < committed <= len(seen)
        check(cluster, load)


def replicas_in(cluster: Cluster) -> list[int]:
    """How many replicas each partition has."""
    return [len(each["replica_nodes"]) for each in partitions_of(cluster)]


def refusal(cluster: Cluster, topic: NewTopic) -> str:
    """The words with which a topic is refused."""

    def ask(admin: KafkaAdminClient) -> str:
        try:
            admin.create_topics([topic])
        except InvalidReplicationFactorError as error:
            return str(error)
        raise AssertionError(f"{topic} was created")

    return asked(cluster.bootstrap, ask)


def brokers(admin: KafkaAdminClient) -> int:
    """How many hosts a cluster has, as one of them says."""
    return len(admin.describe_cluster()["brokers"])


def test_topics_are_described_as_a_cluster_does(shared: SharedCluster) -> None:
    """All brokers, leaders that differ, replicas; refusals by name."""
    with shared.lent() as cluster:
        create(cluster, partitions=12, replicas=2)
        leaders = {leader_of(cluster, partition).name for partition in range(12)}
        assert len(leaders) > 1
        until(lambda: replicas_in(cluster) == [2] * 12, "each partition has two replicas")
        until(lambda: asked(cluster.bootstrap, brokers) == 3, "all hosts are told of")
        assert "replication factor 4" in refusal(cluster, NewTopic("more", 1, 4))
        delete(cluster, TOPIC)
        create(cluster, partitions=1)
        with producing(cluster) as load:
            wait_for_more(load, WARM)
        check(cluster, load)
