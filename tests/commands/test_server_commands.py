"""Operators' commands against a real sidecar: what they say is so, what they change is changed, errors name a cure."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientTopicPartition

from logstore.client.admin import Admin
from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.commands.groups import StreamLag, total_lag
from logstore.commands.hosts import progress
from logstore.commands.queries import read_inputs
from logstore.commands.status import place
from logstore.format.epoch_api import EpochCommitRequest, Part, StageRequest, TaskOutput
from logstore.format.host_summaries import DRAIN, ClusterGlance, HostsReply, HostSummary
from logstore.format.records import Record, encode_batch
from tests.support.cli import Finished, cairn
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.waiting import until

FIRST_MS = 1_700_000_000_000
ROOT = Path(__file__).resolve().parents[2]


def ask(sidecar: Sidecar, *words: str) -> Finished:
    """A command against the sidecar, with a time limit for slow machines."""
    return cairn(*words, "--servers", sidecar.address, "--timeout", str(PATIENCE_S))


def produce(client: Client, topic: str, count: int, partition: int = 0) -> None:
    """So many records, one second apart."""
    for number in range(count):
        batch = encode_batch([Record(0, FIRST_MS + 1000 * number, None, b"value")])
        client.produce(TopicPartition(topic, partition), batch)


def stage(client: Client, query: str, epoch: int, topic: str, run: str = "run-1") -> int:
    """Stage a record for an epoch; the bytes that were sent."""
    batch = encode_batch([Record(0, FIRST_MS, None, b"value")])
    client.stage(StageRequest(query, run, epoch, 0, "a", 0, (Part(topic, 0, len(batch), 1, 1),), batch))
    return len(batch)


def commit(client: Client, query: str, epoch: int, positions: str, run: str = "run-1") -> None:
    """Commit an epoch of one task."""
    tasks = (TaskOutput(0, "a", 1),)
    client.commit(EpochCommitRequest(query, run, epoch, "error", tasks, positions, forget=False))


# ---- hosts


def test_a_sidecar_alone_has_no_hosts(sidecar: Sidecar) -> None:
    """`cairn hosts` says that this is no cluster, and whom to ask."""
    found = ask(sidecar, "hosts")
    assert found.status == 1
    assert found.err.startswith("cairn hosts: this sidecar is alone: ask a host of a cluster")


# ---- status


def test_one_thing_has_no_plural() -> None:
    """A host with a stream and a chunk has no `1 streams`."""
    one, two = (HostSummary("a", 1, "", "", (), "alive", None, count, count, 0, DRAIN) for count in (1, 2))
    reply = HostsReply("a", (one,), 1, 0, 1, 0, is_complete=True)
    assert progress(one, reply).startswith("host a still owns 1 stream and has 1 chunk")
    assert progress(two, reply).startswith("host a still owns 2 streams and has 2 chunks")


def test_status_says_how_many_hosts_are_away() -> None:
    """A host whose fellows are away does not look like a sidecar alone, though nobody else is advertised."""
    alone, three = ["a:1"], ["a:1", "b:1", "c:1"]
    assert place(alone, None) == place(alone, ClusterGlance(1, 0, 0)) == "advertised as a:1"
    assert place(alone, ClusterGlance(3, 2, 4)).startswith("one of 3 hosts, 2 of them away (cairn hosts shows more)")
    assert place(three, ClusterGlance(3, 0, 0)) == "one of 3 hosts that are advertised as a:1, b:1, c:1"


def test_status_says_what_is_there(sidecar: Sidecar, client: Client) -> None:
    """The counts are those of the sidecar, and the free bytes those of its disk."""
    before = ask(sidecar, "status", "--json").json
    assert before["host"] is None
    client.create_topic("status-a", 3)
    produce(client, "status-a", 2)
    found = ask(sidecar, "status", "--json").json
    assert (found["topics"], found["streams"]) == (before["topics"] + 1, before["streams"] + 3)
    # Not more than before: chunks whose records were trimmed earlier may go at any moment.
    topics = ask(sidecar, "topics", "list", "--json").json["topics"]
    assert 0 < next(topic["bytes"] for topic in topics if topic["topic"] == "status-a") <= found["log_bytes"]
    assert found["uptime_ms"] >= before["uptime_ms"]
    assert 0 < found["disk_free_bytes"] <= found["disk_total_bytes"]
    assert found["cluster_id"] == json.loads((sidecar.data_dir / "cairn.json").read_text())["cluster_id"]
    assert found["advertised"] == sidecar.address
    text = ask(sidecar, "status")
    assert text.status == 0
    assert found["cluster_id"] in text.out


def test_status_says_whose_figures_it_shows(tmp_path: Path) -> None:
    """A host of a cluster: its name, what is so of it alone, and apart from that what is so of the whole cluster; a
    sidecar that is alone has no name.
    """
    metadata = f"sqlite:{tmp_path / 'metadata'}"
    flags = ("--cluster", metadata, "--host-name", "north", "--node-id", "0", "--peer-listen", "127.0.0.1:0")
    with (
        Sidecar(tmp_path / "data", *flags) as host,
        Client(parse_addresses(host.address), limit_s=PATIENCE_S) as client,
    ):
        client.create_topic("status-b", 2)
        until(lambda: ask(host, "status", "--json").json["streams"] == 2, "the host does not lead its streams")
        found = ask(host, "status", "--json").json
        assert (found["host"], found["hosts"], found["topics"]) == ("north", 1, 1)
        of_host, of_cluster = ask(host, "status").out.split("\n\n")
    assert of_host.startswith(f"Of host north alone:\nhost     north, asked at {host.address}\n")
    assert [line.split()[0] for line in of_host.splitlines()[1:]] == [
        "host",
        "version",
        "up",
        "leads",
        "log",
        "staged",
        "disk",
    ]
    assert "leads    2 partitions\n" in of_host
    assert of_cluster.startswith("Of the whole cluster, as host north knows it:\ncluster id  ")
    named = [line.split()[0] for line in of_cluster.splitlines()[1:]]
    assert named == ["cluster", "hosts", "topics", "groups", "readers", "queries"]


def test_a_refused_connection_names_the_address_and_the_cure() -> None:
    """Where nothing listens: exit status 1, the address, and what to do."""
    finished = cairn("status", "--servers", "127.0.0.1:1", "--timeout", "0.1")
    assert finished.status == 1
    assert "127.0.0.1:1" in finished.err
    assert "cairn serve" in finished.err
    assert "--servers" in finished.err
    assert finished.out == ""


@pytest.mark.parametrize(
    "words", [("topics",), ("topics", "list"), ("groups",), ("hosts",), ("hosts", "list")], ids=" ".join
)
def test_an_error_begins_with_the_command_as_it_was_given(words: tuple[str, ...]) -> None:
    """With its action, if it was given with one."""
    finished = cairn(*words, "--servers", "no port:x")
    assert finished.status == 2
    assert finished.err.startswith(f"cairn {' '.join(words)}: --servers: ")


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--servers", "no port:x"),
        ("status", "--timeout", "0"),
        ("topics", "create"),
        ("topics", "create", "t", "--partitions", "none"),
        ("groups", "reset", "g"),
        ("trim", "t"),
        ("offsets",),
        ("no-such-command",),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_status_2(words: tuple[str, ...]) -> None:
    """What cannot be meant is refused before anything is asked, with exit status 2."""
    finished = cairn(*words)
    assert finished.status == 2
    assert finished.err


def test_ctrl_c_is_status_130(tmp_path: Path) -> None:
    """A command that waits for an answer ends at Ctrl-C with 130 and no traceback."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        command = [sys.executable, "-m", "logstore.cli", "status", "--servers", f"127.0.0.1:{port}", "--timeout", "600"]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()  # now it waits for an answer
        connection.recv(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
        connection.close()
    assert process.returncode == 130
    assert "Traceback" not in err


# ---- topics


def test_topics_are_created_changed_grown_and_deleted(sidecar: Sidecar, client: Client) -> None:
    """Each action does what it says, and says so; the list has what is there."""
    refused = ask(sidecar, "topics", "create", "life", "--replication-factor", "2")
    assert (refused.status, "replication factor 2: there is 1 node" in refused.err) == (1, True)
    assert ask(sidecar, "topics", "create", "life", "--partitions", "2", "--set", "retention.ms=5000").status == 0
    assert client.topic_configs("life")["retention.ms"] == "5000"
    produce(client, "life", 3)
    listed = {topic["topic"]: topic for topic in ask(sidecar, "topics", "--json").json["topics"]}
    assert listed["life"]["partitions"] == 2
    assert listed["life"]["bytes"] == (Admin(client).sizes() or {})[TopicPartition("life", 0)] > 0
    described = ask(sidecar, "topics", "describe", "life", "--json").json
    assert [(p["earliest"], p["latest"]) for p in described["partitions"]] == [(0, 3), (0, 0)]
    assert described["configs"]["retention.ms"] == "5000"
    assert ask(sidecar, "topics", "set", "life", "retention.ms=", "segment.bytes=2048").status == 0
    assert client.topic_configs("life")["retention.ms"] != "5000"
    assert client.topic_configs("life")["segment.bytes"] == "2048"
    assert ask(sidecar, "topics", "grow", "life", "5").status == 0
    assert client.partitions("life") == 5
    refused = ask(sidecar, "topics", "delete", "life")
    assert refused.status == 2
    assert "--yes" in refused.err
    assert ask(sidecar, "topics", "delete", "life", "--yes").status == 0
    assert "life" not in client.topics()


def test_what_a_sidecar_refuses_is_said(sidecar: Sidecar) -> None:
    """A topic that is not there, one that is, a setting that cannot be: status 1 and the reason."""
    refused = ask(sidecar, "topics", "describe", "nowhere").err
    assert "UNKNOWN_TOPIC_OR_PARTITION" in refused
    assert "`cairn topics` lists the topics" in refused
    assert ask(sidecar, "topics", "create", "twice").status == 0
    again = ask(sidecar, "topics", "create", "twice")
    assert (again.status, "twice" in again.err) == (1, True)
    wrong = ask(sidecar, "topics", "set", "twice", "cleanup.policy=compact")
    assert (wrong.status, "cleanup.policy" in wrong.err) == (1, True)
    assert ask(sidecar, "topics", "set", "twice", "nonsense").status == 2


def test_tables_are_aligned(sidecar: Sidecar) -> None:
    """In a table every line has its columns where the titles are."""
    ask(sidecar, "topics", "create", "aligned-with-a-long-name")
    lines = ask(sidecar, "topics").out.splitlines()
    width = lines[0].index("PARTITIONS") + len("PARTITIONS")
    assert all(line[width - 1].isdigit() and line[width : width + 2] == "  " for line in lines[1:])


# ---- offsets and trim


def test_offsets_and_trim_agree_with_the_log(sidecar: Sidecar, client: Client) -> None:
    """Offsets by time, trimming by time and by offset: what is said to go is what goes."""
    client.create_topic("cut", 2)
    produce(client, "cut", 6)
    produce(client, "cut", 2, partition=1)
    found = ask(sidecar, "offsets", "cut", "--time", str(FIRST_MS + 2500), "--json").json
    assert [(p["earliest"], p["latest"], p["at_time"]) for p in found["partitions"]] == [(0, 6, 3), (0, 2, 2)]
    assert ask(sidecar, "offsets", "cut:1", "--json").json["partitions"] == [
        {"partition": 1, "earliest": 0, "latest": 2}
    ]
    assert ask(sidecar, "trim", "cut", "--before", "1").status == 2  # not without --yes
    by_time = ask(sidecar, "trim", "cut:0", "--before-time", "2023-11-14T22:13:22Z", "--yes", "--json").json
    assert by_time["trimmed"] == [{"partition": 0, "from": 0, "earliest": 2}]
    above = ask(sidecar, "trim", "cut:1", "--before", "7", "--yes")
    assert (above.status, "beyond the end" in above.err) == (2, True)
    assert ask(sidecar, "trim", "cut", "--before", "latest", "--yes").status == 0
    assert [p["earliest"] for p in ask(sidecar, "offsets", "cut", "--json").json["partitions"]] == [6, 2]
    assert "no records before" in ask(sidecar, "trim", "cut:0", "--before", "6", "--yes").out


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "-5"])
def test_a_time_that_is_none_is_refused(sidecar: Sidecar, client: Client, text: str) -> None:
    """With the forms that are understood."""
    finished = ask(sidecar, "offsets", "t", f"--time={text}")
    assert finished.status == 2
    assert "2026-01-31T12:00:00Z" in finished.err


# ---- groups


def test_groups_show_lag_and_are_reset(sidecar: Sidecar, client: Client) -> None:
    """A real consumer's group: its member and lag while it runs; reset and deletion only without members."""
    client.create_topic("read", 2)
    produce(client, "read", 5)
    consumer = Consumer(
        {
            "bootstrap.servers": sidecar.address,
            "group.id": "readers-1",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["read"])
    assert consumer.poll(PATIENCE_S) is not None
    consumer.commit(offsets=[ClientTopicPartition("read", 0, 2)], asynchronous=False)
    described = ask(sidecar, "groups", "describe", "readers-1", "--json").json
    (member,) = described["members"]
    assert described["state"] == "Stable"
    assert sorted(member["streams"]) == [["read", 0], ["read", 1]]
    assert [(s["partition"], s["committed"], s["lag"]) for s in described["streams"]] == [(0, 2, 3), (1, None, None)]
    busy = ask(sidecar, "groups", "reset", "readers-1", "--to", "latest", "--yes")
    assert (busy.status, "stop them first" in busy.err) == (1, True)
    assert "NON_EMPTY_GROUP" in ask(sidecar, "groups", "delete", "readers-1").err
    consumer.close()

    def listed() -> tuple[int, int]:
        groups = {group["group"]: group for group in ask(sidecar, "groups", "--json").json["groups"]}
        return groups["readers-1"]["members"], groups["readers-1"]["lag"]

    until(lambda: listed() == (0, 3), "the member has left")
    shown = ask(sidecar, "groups", "reset", "readers-1", "--to", "earliest")
    assert "nothing was changed" in shown.out
    assert Admin(client).committed("readers-1") == {TopicPartition("read", 0): 2}
    by_time = ask(sidecar, "groups", "reset", "readers-1", "--to", str(FIRST_MS + 1000), "--yes", "--json").json
    assert by_time["offsets"] == [{"topic": "read", "partition": 0, "from": 2, "to": 1}]
    assert ask(sidecar, "groups", "reset", "readers-1", "--topic", "read", "--to-offset", "9", "--yes").status == 2
    assert ask(sidecar, "groups", "reset", "readers-1", "--topic", "read:0", "--to-offset", "4", "--yes").status == 0
    assert Admin(client).committed("readers-1") == {TopicPartition("read", 0): 4}
    assert ask(sidecar, "groups", "delete", "readers-1").status == 0
    gone = ask(sidecar, "groups", "describe", "readers-1")
    assert (gone.status, "no group 'readers-1'" in gone.err) == (1, True)


def test_the_lag_of_a_group_is_not_known_without_all_ends() -> None:
    """Where the host that is asked has not heard of a topic, nobody is told that the group lags behind by nothing."""
    read, unknown = StreamLag(TopicPartition("read", 0), 2, 5, ""), StreamLag(TopicPartition("new", 0), 7, None, "")
    assert [total_lag(streams) for streams in ([], [read], [read, read], [read, unknown], [unknown])] == [
        0,
        3,
        6,
        None,
        None,
    ]


# ---- queries


def test_queries_show_epoch_run_lag_and_staged_bytes(sidecar: Sidecar, client: Client) -> None:
    """What a query staged and committed is what is shown; its lag counts what came behind its last input."""
    client.create_topic("input", 1)
    client.create_topic("output", 1)
    produce(client, "input", 5)
    positions = json.dumps({"v": 2, "input": {"offsets": ['{"input":{"0":3}}']}})
    stage(client, "q-1", 7, "output")
    commit(client, "q-1", 7, positions)
    sent_bytes = stage(client, "q-1", 8, "output", run="run-2")
    queries = {query["query"]: query for query in ask(sidecar, "queries", "--json").json["queries"]}
    found = queries["q-1"]
    assert (found["epoch"], found["run"], found["run_number"]) == (7, "run-2", 2)
    assert (found["state"], found["streams_left"], found["lag"]) == ("idle", 0, 2)
    assert found["staged_attempts"] == 1
    assert found["staged_bytes"] > sent_bytes
    assert found["positions"] == positions
    assert ask(sidecar, "queries", "q-1").out.count("q-1") == 1
    assert ask(sidecar, "queries", "none").status == 1


def test_queries_show_names_and_topics_and_take_the_beginning_of_an_id(sidecar: Sidecar, client: Client) -> None:
    """What a sink noted of its query is shown, with the topics of the newest epoch with output. An id may be shortened
    while it means one query; a whole id means itself, even where another one begins so.
    """
    for topic in ("out-a", "out-b"):
        client.create_topic(topic, 1)
    note = json.dumps({"v": 2, "of": "sink", "checkpoint": "/cp/a", "name": "clicks"})
    for query, topic in (("3f2b-1", "out-a"), ("3f2b-10", "out-b"), ("77aa", "out-b")):
        stage(client, query, 0, topic)
        commit(client, query, 0, note if query == "77aa" else "[]")
    client.commit(EpochCommitRequest("77aa", "run-1", 1, "error", (), note, forget=False))
    (found,) = ask(sidecar, "queries", "77", "--json").json["queries"]
    assert (found["query"], found["name"], found["checkpoint"], found["topics"], found["epoch"]) == (
        "77aa", "clicks", "/cp/a", ["out-b"], 1
    )  # fmt: skip
    (found,) = ask(sidecar, "queries", "3f2b-1", "--json").json["queries"]
    assert (found["query"], found["name"], found["topics"]) == ("3f2b-1", None, ["out-a"])
    several = ask(sidecar, "queries", "3f2b")
    assert several.status == 1
    assert "'3f2b-1', '3f2b-10'; give more of the id" in several.err
    assert ask(sidecar, "queries", "").status == 2
    (line,) = [line for line in ask(sidecar, "queries").out.splitlines() if line.startswith("77aa")]
    assert line.split()[:4] == ["77aa", "clicks", "out-b", "1"]
    assert "out-b" in ask(sidecar, "queries", "77").out


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ("", {}),
        ("not JSON", {}),
        ("[" * 100_000, {}),
        ('{"input": {"offsets": null}}', {}),
        ('{"input": {"offsets": ["5", "{\\"t\\": {\\"0\\": 7, \\"note\\": 1}}"]}}', {TopicPartition("t", 0): 7}),
    ],
)
def test_positions_that_are_not_understood_are_no_input(positions: str, expected: dict[TopicPartition, int]) -> None:
    """A client may commit any positions: none of them breaks the command."""
    assert read_inputs(positions) == expected


def test_an_unknown_flag_is_named_with_its_command() -> None:
    """Status 2, and one line that names the flag and the help of the command that was meant."""
    refused = cairn("status", "--nowhere", "x")
    assert refused.status == 2
    assert refused.err == "cairn status: unknown: --nowhere x; `cairn status --help` lists the options\n"
