"""A network in memory, in virtual time, from one seed: loss, delay, repetition, partitions, pauses, crashes.

Hosts are objects with `receive` and `wake`; what they do with time and messages they do through the network. There is
no thread, no clock and no event loop: `step` delivers the next event, and time jumps to it.

Model:
* A message is lost, delayed or repeated by chance, as `NetRules` say, and overtakes others when its delay is shorter. A
  message of a host to itself is never lost, and arrives at once, behind what is due at that moment.
* `cut` stops messages of one direction between two hosts, those under way too; `heal` ends all cuts.
* A paused host gets nothing (SIGSTOP): messages and timers wait until it resumes, and then come in their order.
  Messages that it has sent are under way already.
* A crash ends a life of a host: timers of that life never fire. Messages that were sent to a former life arrive at the
  next one, as they may through a proxy, or where a connection is made again.

Invariants: the same seed and the same calls give the same run, event by event (`trace` is a hash over them); two events
at the same time come in the order in which they were asked for.

Sources: FoundationDB's simulation, TigerBeetle's VOPR: one seed, one thread, faults as ordinary events.
"""

import hashlib
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol


class SimHost(Protocol):
    """What the network delivers to."""

    def receive(self, sender: str, message: Any) -> None:
        """A message from another host, or from this one."""

    def wake(self, reason: Any) -> None:
        """A timer that the host has set."""


@dataclass(frozen=True)
class NetRules:
    """How messages between different hosts fare. Delays are drawn evenly; a slow message takes ten times as long."""

    loss: float = 0.0
    repetition: float = 0.0
    slowness: float = 0.0
    min_delay_us: int = 100
    max_delay_us: int = 1_000


@dataclass(slots=True)
class _SimEvent:
    target: str
    life: int
    """The life that a timer belongs to; 0 for a message."""
    sender: str
    content: Any


class SimNet:
    """The network and its hosts. `describe`, if given, gets a line for each event."""

    def __init__(self, seed: int, rules: NetRules | None = None) -> None:
        self.random = Random(seed)
        self.rules = rules or NetRules()
        self.now_us = 0
        self.steps = 0
        self.lost = self.repeated = self.blocked = 0
        self._hosts: dict[str, SimHost] = {}
        self._lives: dict[str, int] = {}
        self._paused: dict[str, list[_SimEvent]] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._events: list[tuple[int, int, _SimEvent]] = []
        self._number = 0
        self._hash = hashlib.sha256()

    @property
    def now_ms(self) -> int:
        """Virtual time in milliseconds."""
        return self.now_us // 1_000

    @property
    def trace(self) -> str:
        """A hash over all events so far."""
        return self._hash.hexdigest()

    # ---- hosts

    def start(self, name: str, host: SimHost) -> None:
        """A host begins a life."""
        self._lives[name] = self._lives.get(name, 0) + 1
        self._hosts[name] = host
        self.note(f"start {name}")

    def crash(self, name: str) -> None:
        """A host's life ends, paused or not."""
        self._hosts.pop(name, None)
        self._paused.pop(name, None)
        self.note(f"crash {name}")

    def is_up(self, name: str) -> bool:
        """Whether the host lives; it may be paused."""
        return name in self._hosts

    def pause(self, name: str) -> None:
        """A host stops, as it is."""
        if name in self._hosts:
            self._paused.setdefault(name, [])
            self.note(f"pause {name}")

    def resume(self, name: str) -> None:
        """A host goes on, with everything that has come in between."""
        waiting = self._paused.pop(name, [])
        self.note(f"resume {name}")
        for event in waiting:
            self._push(0, event)

    def is_paused(self, name: str) -> bool:
        """Whether the host stands still."""
        return name in self._paused

    # ---- links

    def cut(self, sender: str, target: str) -> None:
        """No message passes from one host to another; the other direction is not touched."""
        self._cuts[sender, target] = None
        self.note(f"cut {sender}>{target}")

    def isolate(self, name: str) -> None:
        """No message passes from or to a host."""
        for other in sorted({*self._lives, name}):
            if other != name:
                self.cut(name, other)
                self.cut(other, name)

    def heal(self) -> None:
        """All links are whole."""
        self._cuts.clear()
        self.note("heal")

    def mend(self, name: str) -> None:
        """All links of one host are whole."""
        for link in [link for link in self._cuts if name in link]:
            del self._cuts[link]
        self.note(f"mend {name}")

    # ---- events

    def send(self, sender: str, target: str, message: Any) -> None:
        """Put a message on its way."""
        event = _SimEvent(target, 0, sender, message)
        if sender == target:
            self._push(0, event)
            return
        copies = 1
        if self.random.random() < self.rules.loss:
            copies = 0
            self.lost += 1
        elif self.random.random() < self.rules.repetition:
            copies = 2
            self.repeated += 1
        for _ in range(copies):
            delay_us = self.random.randint(self.rules.min_delay_us, self.rules.max_delay_us)
            if self.random.random() < self.rules.slowness:
                delay_us *= 10
            self._push(delay_us, event)

    def after(self, name: str, delay_us: int, reason: Any) -> None:
        """Wake a host, if it still lives the same life then."""
        self._push(delay_us, _SimEvent(name, self._lives[name], name, reason))

    def _push(self, delay_us: int, event: _SimEvent) -> None:
        self._number += 1
        heappush(self._events, (self.now_us + delay_us, self._number, event))

    def step(self) -> bool:
        """Deliver the next event. False: there is none."""
        if not self._events:
            return False
        self.now_us, _, event = heappop(self._events)
        self.steps += 1
        host = self._hosts.get(event.target)
        if host is None or (event.life and event.life != self._lives[event.target]):
            return True
        if event.target in self._paused:
            self._paused[event.target].append(event)
            return True
        if not event.life and (event.sender, event.target) in self._cuts:
            self.blocked += 1
            return True
        self.note(f"{event.sender}>{event.target} {event.content!r}")
        if event.life:
            host.wake(event.content)
        else:
            host.receive(event.sender, event.content)
        return True

    def run(self, duration_us: int) -> None:
        """Deliver everything that is due within a time, which then has passed."""
        until_us = self.now_us + duration_us
        while self._events and self._events[0][0] <= until_us:
            self.step()
        self.now_us = until_us

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        self._hash.update(f"{self.now_us} {line}\n".encode())
