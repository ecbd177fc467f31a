"""How a cluster lies on this machine: addresses, ports, racks, settings, and the daemons' command lines.

Invariants:
* The NameNode's ports are chosen once, so that it comes back where it was; a DataNode takes whatever port is free.
* A DataNode is known by its address alone; its calls leave from there, and its host name is the address again, because
  WebHDFS redirects clients to it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from logstore.testing.ports import free_ports
from scheduler.topology import Server, Topology, both_ways
from tests.support.hdfs.launch import DATANODE, NAMENODE, Daemon, Runtime, java_command, launch, write_common

POLICY = "org.apache.hadoop.hdfs.server.blockmanagement.PlannedPlacementPolicy"
PLAN_PLUGIN = "cairn.hdfs.PlanServer"
RPC_PORT, HTTP_PORT, PLAN_PORT = 8020, 9870, 9875
"""Used where no free port can be asked for, because the NameNode's address is in another network namespace."""
NAMENODE_HEAP_MB = 160
DATANODE_HEAP_MB = 96

SETTINGS = {
    # A lost DataNode is avoided after 5 s, given up after 11 s, and its blocks copied anew soon after.
    "dfs.heartbeat.interval": "1",
    "dfs.namenode.heartbeat.recheck-interval": "500",
    "dfs.namenode.stale.datanode.interval": "5000",
    "dfs.namenode.avoid.write.stale.datanode": "true",
    "dfs.namenode.avoid.read.stale.datanode": "true",
    "dfs.namenode.reconstruction.pending.timeout-sec": "5",
    "dfs.namenode.redundancy.interval.seconds": "1s",
    # A restarted NameNode serves as soon as its blocks are reported; writes in flight wait for it.
    "dfs.namenode.safemode.extension": "0",
    "dfs.client.retry.policy.enabled": "true",
    "dfs.client.retry.policy.spec": "300,100,2000,60",  # milliseconds, times; it would sleep for 10 s
    "dfs.client.socket-timeout": "10000",
    "ipc.client.connect.retry.interval": "200",
    "ipc.client.connect.max.retries": "150",  # a DataNode that gives up sleeps for 5 s
    "dfs.blockreport.initialDelay": "0s",
    # One machine: addresses without names, files smaller than a block, no users.
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
    "dfs.namenode.fs-limits.min-block-size": "0",
    "dfs.permissions.enabled": "false",
    "net.topology.node.switch.mapping.impl": "org.apache.hadoop.net.TableMapping",
    "dfs.block.replicator.classname": POLICY,
    "dfs.namenode.plugins": PLAN_PLUGIN,
}


@dataclass(frozen=True, slots=True)
class Node:
    """A DataNode: its name in plans, its address, its rack, and a command prefix such as `ip netns exec NAME`."""

    name: str
    address: str
    rack: str
    wrapper: tuple[str, ...] = ()


class NameNodePlace(NamedTuple):
    """Where the NameNode listens."""

    address: str
    rpc_port: int = RPC_PORT
    http_port: int = HTTP_PORT
    plan_port: int = PLAN_PORT
    wrapper: tuple[str, ...] = ()

    @classmethod
    def choose(cls, address: str, wrapper: tuple[str, ...] = ()) -> "NameNodePlace":
        """Free ports at an address of this network namespace; Hadoop's usual ones if the address is elsewhere."""
        try:
            rpc, web, plan = free_ports(3, address)
        except OSError:
            return cls(address, wrapper=wrapper)
        return cls(address, rpc, web, plan, wrapper)


def loopback_nodes(count: int, racks: int) -> list[Node]:
    """DataNodes `r1h1`, `r1h2`, … with loopback addresses of their own, spread evenly over racks `rack1`, `rack2`, …

    The addresses depend on this process, so that clusters side by side seldom share one (they would not mind).
    """
    names = [f"r{1 + number * racks // count}h{{}}" for number in range(count)]
    seen: dict[str, int] = {}
    nodes = []
    for number, pattern in enumerate(names):
        seen[pattern] = seen.get(pattern, 0) + 1
        rack = "rack" + pattern[1 : pattern.index("h")]
        nodes.append(Node(pattern.format(seen[pattern]), loopback(10 + number), rack))
    return nodes


def network(nodes: Sequence[Node], uplink: int) -> Topology:
    """The network that Peace plans these DataNodes on: racks below one switch, each connected with `uplink` chunks."""
    racks = list(dict.fromkeys(node.rack for node in nodes))
    links = [link for rack in racks for link in both_ways(rack, "core", uplink)]
    servers = [Server(node.name, node.rack, address=node.address) for node in nodes]
    return Topology(servers, links, switches=["core", *racks], name=f"{len(nodes)} DataNodes")


def loopback(last: int) -> str:
    """An address in a part of 127.0.0.0/8 that belongs to this process; `last` up to 65535."""
    own = os.getpid() % 250
    return f"127.{2 + own % 125}.{(own // 125) * 128 + last // 250}.{1 + last % 250}"


def write_layout(
    directory: Path, place: NameNodePlace, nodes: Sequence[Node], settings: Mapping[str, str], token: str
) -> None:
    """The files that all daemons read, in `directory`."""
    token_file = directory / "plan-token"
    token_file.touch(mode=0o600)
    token_file.write_text(token + "\n")
    (directory / "racks").write_text("".join(f"{node.address} /{node.rack}\n" for node in nodes))
    own = {
        "fs.defaultFS": f"hdfs://{place.address}:{place.rpc_port}",
        "dfs.namenode.rpc-address": f"{place.address}:{place.rpc_port}",
        "dfs.namenode.http-address": f"{place.address}:{place.http_port}",
        "dfs.namenode.name.dir": (directory / "name").as_uri(),
        "net.topology.table.file.name": str(directory / "racks"),
        "cairn.plan.address": f"{place.address}:{place.plan_port}",
        "cairn.plan.token-file": str(token_file),
    }
    addresses = {"namenode": place.address} | {node.name: node.address for node in nodes}
    write_common(directory, SETTINGS | own | dict(settings), addresses)


def format_command(runtime: Runtime, directory: Path) -> list[str]:
    """Makes an empty name space in `directory`."""
    arguments = ["-format", "-nonInteractive"]
    return java_command(runtime, directory, "format", NAMENODE, NAMENODE_HEAP_MB, arguments)


def start_namenode(runtime: Runtime, directory: Path, place: NameNodePlace) -> Daemon:
    """Start the NameNode; its log grows over restarts."""
    command = java_command(runtime, directory, "namenode", NAMENODE, NAMENODE_HEAP_MB)
    return launch("namenode", [*place.wrapper, *command], directory / "namenode.log")


def start_datanode(runtime: Runtime, directory: Path, node: Node) -> Daemon:
    """Start a DataNode; what it stored before is there again."""
    settings = {
        "dfs.datanode.data.dir": (directory / f"data-{node.name}").as_uri(),
        "dfs.datanode.address": f"{node.address}:0",
        "dfs.datanode.http.address": f"{node.address}:0",
        "dfs.datanode.ipc.address": f"{node.address}:0",
        "dfs.datanode.hostname": node.address,
        "hadoop.rpc.socket.factory.class.default": "cairn.hdfs.LocalAddressSocketFactory",
        "cairn.local-address": node.address,
    }
    defines = [word for key, value in settings.items() for word in ("-D", f"{key}={value}")]
    command = java_command(runtime, directory, "datanode", DATANODE, DATANODE_HEAP_MB, defines)
    return launch(node.name, [*node.wrapper, *command], directory / f"datanode-{node.name}.log")
