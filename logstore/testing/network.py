"""How the hosts of a test cluster reach each other, and what goes wrong between them: cut, slow, healed.

    with Cluster(directory, network=RelayedNetwork()) as cluster:
        cluster.network.cut("a", "b")       # what a sends to b does not arrive; b's messages reach a
        cluster.network.heal()

`Loopback` has no faults. `RelayedNetwork` works everywhere: relays (relay.py) stand between hosts, and between hosts
and etcd. `logstore.testing.namespaces.NamespaceNetwork` gives each host a network namespace, with nft and tc; it needs
root.

Invariants:
* A fault has a direction, and names two hosts, or a host and `ETCD`. Faults add up until `heal`.
* Clients reach each host at any time: what is cut lies between hosts, or between a host and etcd.
* Everything is gone when the network has stopped.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Final, Protocol

from logstore.testing.ports import free_ports
from logstore.testing.processes import ClusterHostProcess, ClusterProcess, Etcd, LocalHost, NotStarted, ProcessPlace
from logstore.testing.relay import RelayRoute, as_json

ETCD: Final = "etcd"
"""The name that stands for etcd where a host is named."""


class NetworkUnavailable(Exception):
    """This machine or user cannot have the network; the message says what is missing."""


class ClusterNetwork(Protocol):
    """See the module."""

    def plan(self, names: Sequence[str]) -> None:
        """Choose the hosts' addresses."""
        ...

    def start(self) -> None:
        """Make it. Raises NetworkUnavailable, NotStarted."""
        ...

    def stop(self) -> None:
        """Remove it, whatever has become of it."""
        ...

    def make_etcd(self, directory: Path) -> ClusterProcess:
        """An etcd that does not run yet."""
        ...

    def make_host(self, name: str, directory: Path, flags: Sequence[str]) -> ClusterHostProcess:
        """A sidecar that does not run yet."""
        ...

    def cut(self, source: str, target: str) -> None:
        """What source sends does not reach target. Raises NetworkUnavailable."""
        ...

    def slow(self, source: str, target: str, *, delay_s: float = 0.0, bytes_s: float = 0.0) -> None:
        """What source sends arrives later, or at so many bytes a second (0: no limit). Raises NetworkUnavailable."""
        ...

    def heal(self) -> None:
        """End all faults."""
        ...


class Loopback:
    """Everything on 127.0.0.1, without faults."""

    def __init__(self) -> None:
        self._places: dict[str, ProcessPlace] = {}
        self._etcd = ("", "")

    def plan(self, names: Sequence[str]) -> None:
        """See ClusterNetwork."""
        ports = iter(free_ports(2 + 2 * len(names)))
        client, peer = (f"127.0.0.1:{next(ports)}" for _ in range(2))
        self._etcd = client, peer
        for name in names:
            kafka, link = (f"127.0.0.1:{next(ports)}" for _ in range(2))
            self._places[name] = ProcessPlace(kafka, link, link, client)

    def start(self) -> None:
        """See ClusterNetwork."""

    def stop(self) -> None:
        """See ClusterNetwork."""

    def make_etcd(self, directory: Path) -> Etcd:
        """See ClusterNetwork."""
        return Etcd(directory, *self._etcd)

    def make_host(self, name: str, directory: Path, flags: Sequence[str]) -> LocalHost:
        """See ClusterNetwork."""
        return LocalHost(name, directory, self._places[name], flags)

    def cut(self, source: str, target: str) -> None:
        """Raises NetworkUnavailable: there is nothing between hosts here."""
        raise NetworkUnavailable(
            f"nothing can be cut between {source} and {target} here: Cluster(…, network=RelayedNetwork())"
        )

    def slow(self, source: str, target: str, *, delay_s: float = 0.0, bytes_s: float = 0.0) -> None:
        """Raises NetworkUnavailable: there is nothing between hosts here."""
        raise NetworkUnavailable(
            f"nothing can be slow between {source} and {target} here: Cluster(…, network=RelayedNetwork())"
        )

    def heal(self) -> None:
        """See ClusterNetwork."""


class RelayedNetwork:
    """Everything on 127.0.0.1, with a relay in front of each host's links, and between each host and etcd."""

    def __init__(self) -> None:
        self._places: dict[str, ProcessPlace] = {}
        self._names: list[str] = []
        self._routes: list[RelayRoute] = []
        self._etcd = ("", "")
        self._relay: subprocess.Popen[str] | None = None
        self._states: dict[tuple[str, str], dict[str, float]] = {}

    def plan(self, names: Sequence[str]) -> None:
        """See ClusterNetwork."""
        ports = iter(free_ports(2 + 4 * len(names)))
        etcd, peer = next(ports), next(ports)
        self._etcd = f"127.0.0.1:{etcd}", f"127.0.0.1:{peer}"
        self._names = list(names)
        for name in names:
            kafka, listen, advertised, to_etcd = (next(ports) for _ in range(4))
            self._routes += [RelayRoute(advertised, name, listen), RelayRoute(to_etcd, ETCD, etcd, name)]
            self._places[name] = ProcessPlace(*(f"127.0.0.1:{port}" for port in (kafka, listen, advertised, to_etcd)))

    def start(self) -> None:
        """See ClusterNetwork."""
        self._relay = subprocess.Popen(  # noqa: S603  our own program
            [sys.executable, "-m", "logstore.testing.relay_program", as_json(self._routes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        said = self._said()
        if said != "relay ready":
            raise NotStarted(f"the relay said {said!r} instead of 'relay ready'")

    def stop(self) -> None:
        """See ClusterNetwork."""
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.kill()
            relay.communicate()

    def make_etcd(self, directory: Path) -> Etcd:
        """See ClusterNetwork."""
        return Etcd(directory, *self._etcd)

    def make_host(self, name: str, directory: Path, flags: Sequence[str]) -> LocalHost:
        """See ClusterNetwork."""
        return LocalHost(name, directory, self._places[name], flags)

    def cut(self, source: str, target: str) -> None:
        """See ClusterNetwork."""
        self._change(source, target, cut=True)

    def slow(self, source: str, target: str, *, delay_s: float = 0.0, bytes_s: float = 0.0) -> None:
        """See ClusterNetwork."""
        self._change(source, target, delay_s=delay_s, bytes_s=bytes_s)

    def heal(self) -> None:
        """See ClusterNetwork."""
        for source, target in tuple(self._states):
            self._change(source, target, cut=False, delay_s=0.0, bytes_s=0.0)
        self._states.clear()

    def reset(self) -> None:
        """Close all connections between hosts at once; they are free to connect again."""
        for source, target in permutations((*self._names, ETCD), 2):
            self._tell({"source": source, "target": target, "reset": True})

    def touched_bytes(self, source: str, target: str) -> int:
        """What source has sent to target since its last fault began, and met the fault: a fault of 0 bytes was none.
        Raises NetworkUnavailable.
        """
        self._check(source, target)
        return int(self._ask({"source": source, "target": target, "ask": True}))

    def _check(self, *names: str) -> None:
        for name in names:
            if name != ETCD and name not in self._places:
                raise NetworkUnavailable(
                    f"{name!r} is not a host of this network: {', '.join(self._names)} are, and {ETCD}"
                )

    def _change(self, source: str, target: str, **changes: float) -> None:
        self._check(source, target)
        state = self._states.setdefault((source, target), {"cut": False, "delay_s": 0.0, "bytes_s": 0.0})
        state.update(changes)
        self._tell({"source": source, "target": target, **state})

    def _tell(self, command: Mapping[str, object]) -> None:
        said = self._ask(command)
        if said != "done":
            raise NotStarted(f"the relay said {said!r} instead of 'done'")

    def _ask(self, command: Mapping[str, object]) -> str:
        if self._relay is None or self._relay.stdin is None:
            raise NetworkUnavailable("the network does not run: enter the cluster first")
        self._relay.stdin.write(json.dumps(command) + "\n")
        self._relay.stdin.flush()
        return self._said()

    def _said(self) -> str:
        if self._relay is None or self._relay.stdout is None:
            raise NetworkUnavailable("the network does not run: enter the cluster first")
        line = self._relay.stdout.readline()
        if not line:
            raise NotStarted("the relay has ended")
        return line.strip()
