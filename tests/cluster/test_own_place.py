"""Where a host of a cluster is: read from settings, files and scripts, and told to the others without a restart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from logstore.base.racks import HostPlace
from logstore.cluster.own_place import OwnPlace
from logstore.cluster.settings import PlaceSettings
from logstore.errors import ConfigError
from logstore.testing.reports import RecordedReports
from tests.cluster.memory import MemoryCluster, simulated

NAMES = ("a", "10.0.0.1")
NODES = '{"kind": "List", "items": [{"metadata": {"name": "a", "labels": {"rack": "%s"}}}]}'


def place_of(**settings: str | int) -> HostPlace:
    """What is read for host a."""
    return OwnPlace(PlaceSettings(**settings), NAMES, RecordedReports()).read()  # type: ignore[arg-type]


def script(directory: Path, text: str) -> str:
    """A rack script."""
    path = directory / "racks.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_where_a_host_is_read_from(tmp_path: Path) -> None:
    """Its own settings come first; a file is known by what it says, and a host by any of its names."""
    hadoop, nodes, described = tmp_path / "racks", tmp_path / "nodes.json", tmp_path / "net.toml"
    hadoop.write_text("Rack: /dc/r1\n   10.0.0.1:9866 (dn1)\n")
    nodes.write_text(
        '{"kind": "List", "items": [{"metadata": {"name": "a", "labels": {"topology.kubernetes.io/zone": "z"}}}]}'
    )
    described.write_text('[[switch]]\nname = "r2"\n[[switch]]\nname = "r3"\n[[link]]\nfrom = "r2"\nto = "r3"\n'
                         'rate = "1 GB/s"\nboth_ways = true\n[[server]]\nname = "a"\nrack = "r3"\n'
                         'disk_rate = "50 MB/s"\ndisk = 2\n[[server]]\nname = "b"\nrack = "r2"\n')  # fmt: skip
    assert place_of() == HostPlace()
    assert place_of(rack="r9", disk_rate=7) == HostPlace("r9", 7)
    assert place_of(topology=str(hadoop)) == HostPlace("/dc/r1")
    assert place_of(topology=str(hadoop), disk_rate=5) == HostPlace("/dc/r1", 5)
    assert place_of(topology=str(hadoop), rack="/other") == HostPlace("/other")
    assert place_of(topology=str(nodes)) == HostPlace("/z")
    assert place_of(topology=str(described)) == HostPlace("/r3", 100_000_000, (1_000_000_000,))
    assert place_of(script=script(tmp_path, 'test "$*" = a && echo /dc/r4')) == HostPlace("/dc/r4")


def test_what_prevents_a_start(tmp_path: Path) -> None:
    """A file that is not there, names other hosts or is damaged, and a script that fails, are refused by name. With a
    rack of its own a host need not be in the file.
    """
    other = tmp_path / "racks"
    other.write_text("Rack: /dc/r1\n   10.0.0.9:9866\n")
    for settings, problem in (
        ({"topology": str(tmp_path / "none")}, "No such file"),
        ({"topology": str(other)}, "names none of 'a', '10.0.0.1'"),
        ({"topology": str(other)}, "add one of them there, or give --rack"),
        ({"script": str(tmp_path / "none.sh")}, "No such file"),
        ({"script": script(tmp_path, "echo oops >&2; exit 3")}, "exit status 3: oops"),
    ):
        with pytest.raises(ConfigError, match="topology of this host: ") as refused:
            place_of(**settings)
        assert problem in str(refused.value)
    assert place_of(topology=str(other), rack="/dc/r7", disk_rate=3) == HostPlace("/dc/r7", 3)
    other.write_text("[[server]\n")
    with pytest.raises(ConfigError, match="no valid TOML"):
        place_of(topology=str(other))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '{"kind": "List", "items": [{"metadata": {"name": "a", "labels": {"rack": "%s"}}}]}' % ("r" * 300),
            "0 to 255",
        ),
        (
            r'{"kind": "List", "items": [{"metadata": {"name": "a", "labels": {"rack": "\u0007"}}}]}',
            "control characters",
        ),
        ('{"switch": %s}' % ("9" * 5_000), "integer string conversion"),
        ('{"server": [{"name": "a", "rack": "r", "disk_rate": "1e30 B/s"}]}', "disk_rate"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_place_that_no_entry_holds_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """A name that is too long, a number that is too large: the file is refused, as one that cannot be read is."""
    path = tmp_path / "nodes.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="topology of this host: ") as refused:
        place_of(topology=str(path))
    assert problem in str(refused.value)


async def test_a_changed_file_is_announced(tmp_path: Path, autojump_clock: object) -> None:
    """A new place is announced, once; a damaged file is reported once and changes nothing; SIGHUP reads it at once."""
    path, reports = tmp_path / "racks", RecordedReports()
    path.write_text("Rack: /r1\n   10.0.0.1:9866\n")
    own = OwnPlace(PlaceSettings(topology=str(path)), NAMES, reports)
    assert own.read() == HostPlace("/r1")
    told: list[HostPlace] = []
    heard = trio.Event()

    async def announce(place: HostPlace) -> None:
        told.append(place)
        heard.set()

    def write(text: str) -> None:
        path.write_text(text)
        os.utime(path, ns=(len(told), len(text)))  # another time, whatever the clock's grain

    async with trio.open_nursery() as nursery:
        nursery.start_soon(own.follow, announce)
        write("Rack: /r2\n   10.0.0.1:9866\n")
        await heard.wait()
        write("Rack: /r3\n   damaged\n")
        while "place_unreadable" not in reports.names():  # noqa: ASYNC110  time is virtual
            await trio.sleep(1)
        await trio.sleep(100)
        heard = trio.Event()
        write("Rack: /r4\n   10.0.0.1:9866\n")
        own.look_again()
        await heard.wait()
        nursery.cancel_scope.cancel()
    assert told == [HostPlace("/r2"), HostPlace("/r4")]
    assert reports.names().count("place_unreadable") == 1


def test_all_hosts_hear_of_a_move() -> None:
    """A member's new place is in its entry at once, without a takeover, and after it has joined anew as well."""

    async def test(cluster: MemoryCluster) -> None:
        (stream,) = await cluster.create_topic()
        name, _ = await cluster.append(stream, b"0")
        membership = cluster.hosts[name].membership
        await membership.move(HostPlace("/z/r1", 100, (7, 9)))
        await cluster.until(lambda: all(each.view.members[name].rack == "/z/r1" for each in cluster.hosts.values()))
        assert cluster.hosts["a"].view.members[name] == membership.member
        assert await cluster.append(stream, b"1") == (name, 1)
        await membership.move(HostPlace("/z/r2"))
        await cluster.until(lambda: all(each.view.members[name].rack == "/z/r2" for each in cluster.hosts.values()))
        assert cluster.hosts["a"].view.members[name].disk_rate == 0
        assert "cluster_left" not in cluster.reports.names()

    simulated(test, "a", "b", "c")
