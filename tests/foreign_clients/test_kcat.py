"""kcat: list, produce and consume from a shell."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.foreign_clients.adapters import ConfluentClient, Message
from tests.foreign_clients.broker import Broker
from tests.support.limits import PATIENCE_S

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat on the path")


def kcat(broker: Broker, *arguments: str, text: str | None = None) -> str:
    """What kcat prints."""
    command = ["kcat", "-b", broker.bootstrap, "-m", str(PATIENCE_S), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kcat_lists(broker: Broker, topic: str) -> None:
    """-L shows the broker, the topic and its partition's leader."""
    listed = json.loads(kcat(broker, "-L", "-J"))
    assert [node["name"] for node in listed["brokers"]] == [broker.bootstrap]
    found = next(one for one in listed["topics"] if one["topic"] == topic)
    assert [part["leader"] for part in found["partitions"]] == [listed["brokers"][0]["id"]]


def test_kcat_produces_and_consumes(broker: Broker, topic: str) -> None:
    """Lines with keys and headers go in, and come out with their offsets; compressed too."""
    kcat(broker, "-P", "-t", topic, "-p", "0", "-K", ":", "-H", "origin=shell", "-z", "snappy", text="a:1\nb:2\nc:3\n")
    printed = kcat(broker, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%o %k %s %h\n")
    assert printed.splitlines() == ["0 a 1 origin=shell", "1 b 2 origin=shell", "2 c 3 origin=shell"]


def test_kcat_finds_moments(broker: Broker, topic: str) -> None:
    """Query mode and consuming from a timestamp find the offset of a moment."""
    sent = [Message(value=b"%d" % number, timestamp_ms=1_700_000_000_000 + number * 1000) for number in range(5)]
    ConfluentClient(broker.bootstrap).produce(topic, sent)
    assert kcat(broker, "-Q", "-t", f"{topic}:0:1700000002500").strip() == f"{topic} [0] offset 3"
    printed = kcat(broker, "-C", "-t", topic, "-p", "0", "-o", "s@1700000002500", "-e", "-q", "-f", "%o\n")
    assert printed.split() == ["3", "4"]


def test_kcat_joins_groups(broker: Broker, topic: str, group: str) -> None:
    """-G reads as a member of a group and commits: the second call gets only what is new."""
    client = ConfluentClient(broker.bootstrap)
    for expected in (["0", "1", "2"], ["3", "4", "5"]):
        client.produce(topic, [Message(value=b"x")] * 3)
        arguments = ("-X", "auto.offset.reset=earliest", "-c", "3", "-q", "-f", "%o\n")
        assert kcat(broker, *arguments, "-G", group, topic).split() == expected
