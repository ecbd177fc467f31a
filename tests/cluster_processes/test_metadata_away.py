"""What commands say while the metadata store of a cluster does not answer."""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from logstore.client import wire
from logstore.client.admin import Admin
from logstore.client.blocking import Client, parse_addresses
from logstore.commands.output import run
from logstore.errors import ClusterAuthorizationFailed
from logstore.format.topic_partition import TopicPartition
from logstore.testing.cluster import Cluster
from tests.metadata.support import needs_etcd
from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

pytestmark = needs_etcd


def ended_together(address: str, commands: Iterable[Sequence[str]]) -> list[tuple[int, str]]:
    """Exit status and errors of `cairn topics` with each of these words. Each waits until its time is over, so all wait
    at once.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "logstore.cli", "topics", *words, "--servers", address, "--timeout", "5"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in commands
    ]
    try:
        errors = [process.communicate(timeout=PATIENCE_S)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, error) for process, error in zip(started, errors, strict=True)]


def failure_of(address: str, ask: Callable[[Admin], object]) -> Exception:
    """What a question fails with. There is one answer, however late it comes: the client does not ask again."""
    with Client(parse_addresses(address), limit_s=0.001, request_timeout_s=PATIENCE_S) as client:
        try:
            ask(Admin(client))
        except Exception as error:  # noqa: BLE001  whatever it is, the caller looks at it
            return error
    raise AssertionError("the question was answered")


def failed_with(failure: Exception, _: argparse.Namespace) -> int:
    """A command whose question has failed so."""
    raise failure


def test_who_asks_about_hosts_and_topics_hears_that_the_metadata_store_is_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `cairn hosts` and `cairn topics describe` ask is answered with the reason, and so is what changes topics; a
    command that gets such an answer does not tell to start a sidecar. All ask at the same time, as each has to wait.
    """
    with Cluster(tmp_path, ("a",)) as cluster:
        (a,) = cluster
        with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
            client.create_topic("orders", 2)
        cluster.etcd.pause()
        until(lambda: "event=metadata_away" in a.log, "the host hears nothing of it")
        told_of = "the metadata store is away (http://"
        commands = {
            ("create", "more"): told_of,
            ("grow", "orders", "3"): told_of,
            ("set", "orders", "retention.ms=60000"): told_of,
            ("delete", "orders", "--yes"): "while the metadata store is away",
        }
        questions: list[Callable[[Admin], object]] = [Admin.hosts, lambda admin: admin.places("orders")]
        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(failure_of, a.address, question) for question in questions]
            ended = ended_together(a.address, commands)
            failures = [each.result() for each in asked]
        for failure in failures:
            assert run("hosts", argparse.Namespace(), partial(failed_with, failure)) == 1
            told = capsys.readouterr().err
            assert told_of in told
            assert "running there" not in told
            assert "Start one" not in told
        for (words, expected), (status, err) in zip(commands.items(), ended, strict=True):
            assert (status, expected in err) == (1, True), f"{words}: {err}"
            assert "running there" not in err
        cluster.etcd.go_on()


@pytest.mark.slow
def test_status_shows_what_the_host_knows_while_the_metadata_store_is_away(tmp_path: Path) -> None:
    """What nobody can say, and why, is said; all else is shown, groups among it as `cairn groups` shows them."""
    with Cluster(tmp_path, ("a",)) as cluster:
        (a,) = cluster
        with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
            client.create_topic("orders", 1)
            Admin(client).commit("billing", {TopicPartition("orders", 0): 0})
        cluster.etcd.pause()
        until(lambda: "event=metadata_away" in a.log, "the host hears nothing of it")
        shown = cairn("status", "--servers", a.address, "--timeout", "5", "--json")
        assert shown.status == 0, shown.err
        assert "status: queries are unknown" in shown.err
        assert "Start one" not in shown.err
        groups = cairn("groups", "--servers", a.address, "--timeout", "20", "--json").json["groups"]
        assert [shown.json[what] for what in ("groups", "readers", "queries")] == [len(groups), 0, None]
        assert [group["group"] for group in groups] == ["billing"]
        cluster.etcd.go_on()


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [("a",), ("a", "b", "c")])
def test_commands_that_only_look_make_no_topics(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    """Groups, readers and queries of a cluster that has none: the topics that keep them are not made for the answer."""
    with Cluster(tmp_path, hosts) as cluster:
        for words in (("status",), ("groups",), ("readers", "list")):
            for host in cluster:
                told = cairn(*words, "--servers", host.address)
                assert told.status == 0, told.err
        assert cairn("groups", "describe", "nobody", "--servers", cluster.bootstrap).err.count("no group 'nobody'") == 1
        with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
            found = client.call(wire.METADATA, wire.metadata_request(None, create=False), wire.metadata_reply)
            assert list(found) == []
            client.create_topic("orders", 1)
            Admin(client).commit("billing", {TopicPartition("orders", 0): 0})
            assert Admin(client).group_names() == ["billing"]


@pytest.mark.slow
def test_who_has_no_right_does_not_hear_where_the_metadata_store_is(tmp_path: Path) -> None:
    """A caller without rights is refused, whether the metadata store answers or not."""
    with Cluster(tmp_path, ("a",)) as cluster:
        (a,) = cluster
        topic, pattern = ResourceType.TOPIC, ResourcePatternType.LITERAL
        only = AclBinding(topic, "t", pattern, "User:bob", "*", AclOperation.READ, AclPermissionType.ALLOW)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for made in admin.create_acls([only]).values():
            made.result(PATIENCE_S)
        cluster.etcd.pause()
        until(lambda: "event=metadata_away" in a.log, "the host hears nothing of it")
        with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
            with pytest.raises(ClusterAuthorizationFailed) as refused:
                Admin(client).hosts()
            assert "http://" not in str(refused.value)
        cluster.etcd.go_on()
