"""The calibrator: orders measurements from the agents, one after the other, and collects the rates.

Invariants: two measurements share a link or a disk only to measure that sharing; the topology and the seed determine
which measurements are made; after a cancelled calibration no job runs on an agent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, NamedTuple

import trio

from logstore.base.addresses import Address
from scheduler.calibration.rules import SATURATED, HostRates, LinkRate, Measured, fill, pairs, sample, sides, spread
from scheduler.calibration.tasks import together
from scheduler.calibration.windows import ReceiveWindow, number_in, overlap, placed, together_in
from scheduler.calibration.wire import CalibrationError, ask
from scheduler.topology import Link, Server, Topology
from scheduler.topology.quantities import rate_for_people

HELLO_S: Final = 15.0
GRACE_S: Final = 30.0
DISK_S: Final = 600.0
HELLOS_AT_ONCE: Final = 32
MAX_ATTEMPTS: Final = 3
MIN_OVERLAP: Final = 0.9
"""The share of the time from the first begin to the last end in which all pairs of hosts must be counted."""


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """The extent of the measurements.

    `sample`: hosts of a rack; `partners`: the number of hosts that each of them sends to and receives from;
    `concurrency`: the numbers of parallel writers to try; `file_bytes`: the size of each writer's file; `streams`:
    connections of a pair, since one may not fill a link; `max_pairs`: pairs of hosts that together fill a link between
    switches.
    """

    seconds: float = 2.0
    warm_up_s: float = 0.5
    sample: int = 4
    partners: int = 2
    streams: int = 2
    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    file_bytes: int = 64 << 20
    max_pairs: int = 16


class CalibrationStep(NamedTuple):
    """One measurement is done: its number, the number of all, and its result as text."""

    done: int
    total: int
    text: str


class Calibrator:
    """Measures one network. `addresses`: of the agents, by server name; `token`: a secret, or what gives it at each
    request; `report` gets every step.
    """

    def __init__(
        self,
        topology: Topology,
        addresses: Mapping[str, Address],
        token: bytes | Callable[[], bytes],
        settings: CalibrationSettings,
        random: Random,
        report: Callable[[CalibrationStep], None],
    ) -> None:
        self.topology = topology
        self.settings = settings
        self._addresses = addresses
        self._token = token
        self._report = report
        self._sampled = sample(topology, settings.sample, random)
        self._pairs = pairs(self._sampled, settings.partners)
        self._sides = {number: sides for number, link in enumerate(topology.links) if (sides := self._ends(link))}
        self._done = 0
        each = len(settings.concurrency)
        self._total = len(self._pairs) + len(self._sampled) * each + len(self._sides)
        self._total += sum(len(self._writes_of(server)) for server in self._sampled)

    async def measure(self) -> Measured:
        """Run all measurements. Raises CalibrationError, which names the agent."""
        await self._greet()
        send, receive = await self._host_links()
        hosts: dict[str, HostRates] = {}
        for server in self._sampled:
            disk = {count: await self._disk(server, count) for count in self.settings.concurrency}
            writes = {count: await self._writes(server, count) for count in self._writes_of(server)}
            hosts[server.name] = HostRates(send.get(server.name), receive.get(server.name), disk, writes)
        typical = fill(self.topology, Measured(hosts))
        links = {number: await self._link(number, typical) for number in self._sides}
        return Measured(hosts, links)

    # ---- selection

    def _ends(self, link: Link) -> tuple[list[Server], list[Server]] | None:
        """The possible senders and receivers over a link, at most `max_pairs` each; None: there is a way around it."""
        found = sides(self.topology, link)
        if found is None:
            return None
        senders, receivers = (spread(side)[: self.settings.max_pairs] for side in found)
        return senders, receivers

    def _others(self, server: Server) -> list[Server]:
        """The targets of a server's parallel writes: the other sampled servers, those of its rack first."""
        others = [other for other in self._sampled if other is not server]
        return sorted(others, key=lambda other: other.rack != server.rack)

    def _writes_of(self, server: Server) -> list[int]:
        """The numbers of parallel writes of a server to try; each write goes to another host."""
        counts = [count for count in self.settings.concurrency if count <= len(self._sampled) - 1]
        return counts if len(counts) > 1 else []

    # ---- measurements

    async def _greet(self) -> None:
        """Check that every agent answers. Raises CalibrationError, which names the first that does not."""
        needed = {server.name for server in self._sampled}
        needed.update(server.name for ends in self._sides.values() for side in ends for server in side)
        names = [server.name for server in self.topology.servers if server.name in needed]
        missing = [name for name in names if name not in self._addresses]
        if missing:
            raise CalibrationError(
                f"server {missing[0]!r} has no address: give it in the file, or --agent NAME=HOST:PORT"
            )
        problems: list[str] = []

        async def greet(name: str) -> None:
            try:
                await self._ask(name, {"do": "hello"}, HELLO_S)
            except CalibrationError as error:
                problems.append(str(error))

        for start in range(0, len(names), HELLOS_AT_ONCE):
            await together([partial(greet, name) for name in names[start : start + HELLOS_AT_ONCE]])
        if problems:
            others = f" (and {len(problems) - 1} more agents)" if len(problems) > 1 else ""
            raise CalibrationError(f"{problems[0]}{others}")

    async def _host_links(self) -> tuple[dict[str, float], dict[str, float]]:
        """The best rates at which each sampled server sends and receives, by name."""
        send: dict[str, float] = {}
        receive: dict[str, float] = {}
        for source, target in self._pairs:
            bytes_s = (await self._window(source, target)).bytes_s
            send[source.name] = max(bytes_s, send.get(source.name, 0))
            receive[target.name] = max(bytes_s, receive.get(target.name, 0))
            self._step(f"{source.name} → {target.name}: {rate_for_people(bytes_s)}")
        return send, receive

    async def _disk(self, server: Server, count: int) -> float:
        """The mean rate of each of `count` parallel writers of a server's disk."""
        order = {"do": "write", "writers": count, "bytes": self.settings.file_bytes}
        rates = _rates(server.name, await self._ask(server.name, order, DISK_S), count)
        each = sum(rates) / count
        self._step(f"{server.name}, disk, {count} at a time: {rate_for_people(each)} each")
        return each

    async def _writes(self, server: Server, count: int) -> float:
        """The mean rate of each of `count` parallel writes of a server to other servers' disks."""
        to = [str(self._addresses[other.name]) for other in self._others(server)[:count]]
        done = await self._ask(server.name, {"do": "send", "to": to, "bytes": self.settings.file_bytes}, DISK_S)
        rates = _rates(server.name, done, count)
        each = sum(rates) / count
        self._step(f"{server.name}, {count} writes at a time: {rate_for_people(each)} each")
        return each

    async def _link(self, number: int, typical: Mapping[str, HostRates]) -> LinkRate:
        """What a link between switches carries: more and more pairs of hosts send over it until it is full."""
        senders, receivers = self._sides[number]
        most = min(len(senders), len(receivers))
        count = min(2, most)
        while True:
            chosen = list(zip(senders[:count], receivers[:count], strict=True))
            bytes_s = await self._at_once(chosen)
            alone = sum(min(typical[a.name].send or 0, typical[b.name].receive or 0) for a, b in chosen)
            full = bytes_s < SATURATED * alone
            if full or count == most:
                link = self.topology.links[number]
                least = "" if full else "at least "
                self._step(f"{link.source} → {link.target}: {least}{rate_for_people(bytes_s)} ({count} pairs)")
                return LinkRate(bytes_s, full, count)
            count = min(2 * count, most)

    async def _at_once(self, chosen: Sequence[tuple[Server, Server]]) -> float:
        """What pairs of hosts carry together. Windows that hardly overlap make a rate too low: these are repeated."""
        best = 0.0
        for _ in range(MAX_ATTEMPTS):
            windows = await together([partial(self._window, sender, receiver) for sender, receiver in chosen])
            best = max(best, together_in(windows).bytes_s)
            if overlap(windows) >= MIN_OVERLAP:
                break
        return best

    async def _window(self, source: Server, target: Server) -> ReceiveWindow:
        """Have one server send to another for some seconds; the window that the target counted in, on this clock."""
        how = self.settings
        request = {
            "do": "send", "to": [str(self._addresses[target.name])],
            "seconds": how.seconds, "warm_up_s": how.warm_up_s, "streams": how.streams,
        }  # fmt: skip
        ordered_at = trio.current_time()
        done = await self._ask(source.name, request, how.seconds + GRACE_S)
        answered_at = trio.current_time()
        windows = done.get("windows")
        if not isinstance(windows, list) or len(windows) != 1 or not isinstance(windows[0], dict):
            raise CalibrationError(f"agent of {source.name!r}: no window in {done}")
        return placed(windows[0], ordered_at, answered_at, f"agent of {source.name!r}")

    async def _ask(self, name: str, request: Mapping[str, object], limit_s: float) -> dict[str, object]:
        try:
            token = self._token if isinstance(self._token, bytes) else self._token()
            return await ask(self._addresses[name], token, request, limit_s)
        except CalibrationError as error:
            raise CalibrationError(f"agent of {name!r}: {error}") from None

    def _step(self, text: str) -> None:
        self._done += 1
        self._report(CalibrationStep(self._done, self._total, text))


def _rates(name: str, done: Mapping[str, object], count: int) -> list[float]:
    rates = done.get("bytes_s")
    if not isinstance(rates, list) or len(rates) != count:
        raise CalibrationError(f"agent of {name!r}: no {count} rates in {done}")
    return [number_in({"bytes_s": rate}, "bytes_s", f"agent of {name!r}") for rate in rates]
