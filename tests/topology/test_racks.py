"""Racks as operators have them: what Hadoop and Kubernetes print is read whole, or refused with where and why."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.base.racks import (
    HostPlace,
    RacksError,
    domains,
    is_node_list,
    is_topology_of_hadoop,
    read_node_list,
    read_script_output,
    read_topology_of_hadoop,
)
from scheduler.topology.description import load_network
from scheduler.topology.host_places import places
from tests.support.cli import cairn

HADOOP = """Rack: /dc1/rack1
   10.0.0.1:9866 (dn1.example.com) In Service
   10.0.0.2:9866 (dn2.example.com) Decommissioned

Rack: /dc1/rack2
   10.0.0.3:9866

Rack: /default-rack
   [fd00::4]:9866 (dn4.example.com)
"""


def node(name: str, labels: dict[str, object], *addresses: str) -> dict[str, object]:
    """A node as kubectl shows it, with some of what else it says."""
    found = [{"type": "InternalIP", "address": address} for address in addresses]
    status = {"addresses": found, "nodeInfo": {"kubeletVersion": "v1.30.0"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def listed(*nodes: object) -> str:
    """What `kubectl get nodes -o json` prints."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes, "metadata": {"resourceVersion": ""}})


NODES = listed(
    node("n1", {"topology.kubernetes.io/zone": "eu-1a", "rack": "r7", "kubernetes.io/os": "linux"}, "10.1.0.1", "n1"),
    node("n2", {"failure-domain.beta.kubernetes.io/zone": "eu-1b"}, "10.1.0.2"),
    node("n3", {"topology.kubernetes.io/rack": "r9"}),
    node("n4", {}),
)


def test_what_hdfs_prints() -> None:
    """Racks with their hosts, by address and by name, whatever state follows; the default rack is none."""
    assert is_topology_of_hadoop(HADOOP)
    found = {name: place.rack for name, place in read_topology_of_hadoop(HADOOP, "f").places().items()}
    assert found == {
        "10.0.0.1": "/dc1/rack1", "dn1.example.com": "/dc1/rack1", "10.0.0.2": "/dc1/rack1",
        "dn2.example.com": "/dc1/rack1", "10.0.0.3": "/dc1/rack2", "fd00::4": "", "dn4.example.com": "",
    }  # fmt: skip
    assert domains("/dc1/rack1") == ("dc1", "rack1")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Rack: rack1\n   a:1\n", "f: line 1: 'rack1' is not a path of a rack: it must be /NAME or /NAME/NAME"),
        ("Rack: /a//b\n   a:1\n", "'/a//b' is not a path of a rack"),
        ("Rack: /" + "/".join("abcdefghi") + "\n   a:1\n", "of at most 8 names"),
        ("Rack: /r1\n   a\n", "f: line 2: 'a' is not an ADDRESS:PORT of a DataNode"),
        ("Rack: /r1\n   a:1\nSafe mode is ON\n", "f: line 3: 'Safe mode is ON' is neither `Rack: /PATH` nor"),
        ("Rack: /r1\n\n", "f: names no hosts"),
        ("Rack: /r1\n   a:1\nRack: /r2\n   a:2\n", "f: host 'a' is in '/r1' and in '/r2'"),
    ],
)
def test_what_hdfs_does_not_print(text: str, problem: str) -> None:
    """The line is named, with what is expected there."""
    with pytest.raises(RacksError) as refused:
        read_topology_of_hadoop(text, "f")
    assert problem in str(refused.value)


def test_what_kubectl_prints() -> None:
    """Zone and rack of each node, by new labels or old, found by its name and its addresses."""
    assert is_node_list(json.loads(NODES))
    found = {name: place.rack for name, place in read_node_list(NODES, "f").places().items()}
    assert found == {
        "n1": "/eu-1a/r7", "10.1.0.1": "/eu-1a/r7", "n2": "/eu-1b", "10.1.0.2": "/eu-1b", "n3": "/r9", "n4": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "f: no valid JSON"),
        ('{"items": {}, "kind": "List"}', "f: not a list of nodes as `kubectl get nodes -o json` prints it"),
        ('{"items": [], "kind": "List"}', "f: names no hosts"),
        ('{"items": [7], "kind": "List"}', "f: items[0]: must be an object, not 7"),
        (listed(node("", {})), "f: items[0].metadata.name: '' is not a name of a node"),
        (listed(node("a", {"rack": 7})), "f: items[0] (node 'a'): label rack=7 is not a name of a domain"),
        (listed(node("a", {"rack": "x/y"})), "label rack='x/y' is not a name of a domain"),
        (listed(node("a", {}), node("a", {"rack": "r"})), "f: host 'a' is in 'no rack' and in '/r'"),
    ],
)
def test_what_kubectl_does_not_print(text: str, problem: str) -> None:
    """The node is named, with what is wrong with it."""
    with pytest.raises(RacksError) as refused:
        read_node_list(text, "f")
    assert problem in str(refused.value)


def test_what_a_rack_script_prints() -> None:
    """A path for each host, in their order, with spaces or lines between; another number of paths is refused."""
    assert read_script_output("/r1 /dc/r2\n", ["a", "b"], "s").places() == {
        "a": HostPlace("/r1"),
        "b": HostPlace("/dc/r2"),
    }
    with pytest.raises(RacksError, match="s: printed 1 paths for 2 hosts"):
        read_script_output("/r1\n", ["a", "b"], "s")
    with pytest.raises(RacksError, match="s: host 'a': 'Traceback' is not a path of a rack"):
        read_script_output("Traceback", ["a"], "s")


@given(st.text(max_size=60), st.sampled_from(["", "Rack: /r\n", "Rack: /r\n  "]))
def test_any_other_text_is_refused(text: str, head: str) -> None:
    """Whatever comes, it is hosts or a RacksError."""
    for read in (read_topology_of_hadoop, read_node_list):
        with suppress(RacksError):
            assert read(head + text, "f").hosts


def test_commands_take_them(tmp_path: Path) -> None:
    """`cairn topology check` reads both as a tree of racks, on which every planner can plan."""
    (tmp_path / "printed").write_text(HADOOP)
    (tmp_path / "nodes.json").write_text(NODES)
    topology = load_network(tmp_path / "printed").topology
    assert [(server.name, server.rack, server.address) for server in topology.servers] == [
        ("dn1.example.com", "/dc1/rack1", "10.0.0.1"), ("dn2.example.com", "/dc1/rack1", "10.0.0.2"),
        ("10.0.0.3", "/dc1/rack2", None), ("dn4.example.com", "network", "fd00::4"),
    ]  # fmt: skip
    assert topology.tree is not None
    checked = cairn("topology", "check", str(tmp_path / "nodes.json"))
    assert "nodes: 4 servers in 4 racks, 5 switches, 8 links between them" in checked.out, checked.err
    assert "every planner can plan on it" in checked.out
    (tmp_path / "broken").write_text("Rack: /r1\n   here\n")
    refused = cairn("topology", "check", str(tmp_path / "broken"))
    assert (refused.status, "line 2: 'here' is not an ADDRESS:PORT" in refused.err) == (1, True)


def test_places_of_a_description(tmp_path: Path) -> None:
    """A server's switches below the topmost, the rates of the links into them, and what its disk takes in all."""
    path = tmp_path / "net.toml"
    path.write_text(
        """
        timestep = "1 s"
        [[switch]]
        name = "core"
        [[switch]]
        name = "zone"
        parent = "core"
        rate = "10 GB/s"
        [[switch]]
        name = "rack"
        parent = "zone"
        rate = "1 GB/s"
        [[server]]
        name = "a"
        rack = "rack"
        address = "10.0.0.1"
        disk_rate = "100 MB/s"
        disk = 2
        [[server]]
        name = "b"
        rack = "zone"
        """
    )
    found = places(path)
    assert found["a"] == found["10.0.0.1"] == HostPlace("/zone/rack", 200_000_000, (10_000_000_000, 1_000_000_000))
    assert found["b"] == HostPlace("/zone", 0, (10_000_000_000,))
