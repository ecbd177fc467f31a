"""Stories of replication: commands to a cluster and, below each `----`, what it then says.

A story is a text file in `stories/`. A line that begins with `#` is a comment; a command and its output end with an
empty line. `python -m tests.replica.stories` writes the outputs anew: a change of them is read before it is
committed.

| command | what it does |
|---|---|
| `cluster hosts=a,b,c copies=3 min=2` | a new cluster, which has elected its first owner |
| `append [HOST] [count=N]` | clients append at the owner, or at a host; it says who took what |
| `trim OFFSET [HOST]`, `roll [HOST]` | a client deletes the records in front of an offset; a chunk has come of age |
| `keep no` | from now on trims drop the last sealed chunk, too |
| `run MS` | time passes |
| `settle` | time passes until every batch is acknowledged and every sealed chunk has its copies |
| `crash HOST`, `start HOST`, `pause HOST`, `resume HOST` | `HOST` may be `meta`, for a pause |
| `cut A>B`, `isolate HOST`, `mend HOST`, `heal` | links |
| `wipe HOST`, `snapshot HOST`, `restore HOST` | its disk is empty; is copied; is set back to the copy |
| `break HOST`, `rot HOST EPOCH` | its writes fail; a bit flips in a chunk |
| `fill HOST`, `free HOST` | its disk has no room for entries; has room again |
| `claim HOST` | a host claims the stream, whatever it has heard |
| `read HOST EPOCH OFFSET` | a consumer reads from a host |
| `status` | the stream's registration, what is acknowledged, and what hosts think that they are |
| `disks` | the epochs of the chunks on each disk |
| `events` | what owners have reported since the last time |
| `costs` | messages, requests to the metadata store and synced operations since the last time |
| `log` | every copy is read and every promise checked |

Source of the form: etcd's raft, `testdata/*.txt`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from logstore.replica.effects import (
    Effect,
    EnoughMembers,
    MemberFailed,
    Readable,
    Ready,
    StreamUnavailable,
    TooFewMembers,
)
from logstore.replica.messages import EntriesRead, ReadEntries, Refused
from logstore.replica.registrations import ChunkRegistration, Member
from tests.replica.cluster import STREAM, Cluster, ClusterShape, Host, Planted
from tests.replica.disk import ReplicaDisk

FOLDER = Path(__file__).parent / "stories"
SEED = 1
OUTPUT = "----"


class _Listener:
    """A consumer that reads once."""

    def __init__(self) -> None:
        self.answer: EntriesRead | Refused | None = None

    def receive(self, sender: str, message: object) -> None:
        """The answer."""
        if isinstance(message, EntriesRead | Refused):
            self.answer = message

    def wake(self, reason: object) -> None:
        """It has no timers."""


class Story:
    """A cluster that obeys commands."""

    def __init__(self, planted: Planted | None = None) -> None:
        self._planted = planted
        self._cluster: Cluster | None = None
        self._snapshots: dict[str, ReplicaDisk] = {}
        self._told = 0

    @property
    def cluster(self) -> Cluster:
        """The cluster; the first command makes it."""
        assert self._cluster is not None, "a story begins with `cluster`"
        return self._cluster

    def obey(self, line: str) -> str:
        """The output of a command."""
        name, *words = line.split()
        if name == "cluster":
            return self._make(words)
        command: Callable[..., str] = getattr(self, f"_{name.replace('-', '_')}")
        return command(*words)

    def _make(self, words: list[str]) -> str:
        values = dict(word.split("=") for word in words)
        hosts = tuple(values["hosts"].split(","))
        shape = ClusterShape(hosts, int(values["copies"]), int(values["min"]), first_owner=hosts[0])
        self._cluster = cluster = Cluster(SEED, shape, self._planted)
        cluster.net.run(1_000_000)
        cluster.counts.clear()
        return self._status()

    # ---- clients

    def _append(self, *words: str) -> str:
        count = next((int(word.removeprefix("count=")) for word in words if word.startswith("count=")), 1)
        names = [word for word in words if not word.startswith("count=")]
        owner = self.cluster.owner_host()
        name = names[0] if names else owner.name if owner is not None else ""
        first = self.cluster.appended + 1
        taken = sum(self.cluster.append(name) for _ in range(count))
        if taken < count:
            return f"{name or 'nobody'} takes {taken} of {count}"
        return f"{name} takes {first} to {first + count - 1}"

    def _owner_of(self, words: tuple[str, ...]) -> Host:
        owner = self.cluster.owner_host()
        if words:
            return self.cluster.hosts[words[0]]
        assert owner is not None
        return owner

    def _trim(self, offset: str, *words: str) -> str:
        self._owner_of(words).trim(int(offset))
        return "ok"

    def _roll(self, *words: str) -> str:
        self._owner_of(words).roll()
        return "ok"

    def _keep(self, word: str) -> str:
        self.cluster.keeps_last = word == "yes"
        return "ok"

    def _read(self, host: str, epoch: str, offset: str) -> str:
        listener = _Listener()
        self.cluster.net.start("consumer", listener)
        disk = self.cluster.disks[host].label.disk
        self.cluster.net.send(
            "consumer", host, ReadEntries(STREAM, disk, int(epoch), int(offset), 1000, for_copy=False)
        )
        self.cluster.net.run(20_000)
        answer = listener.answer
        if isinstance(answer, EntriesRead):
            return f"{len(answer.entries)} batches from {answer.at.next_offset}, up to {answer.limit_offset}"
        return answer.reason.value if answer is not None else "no answer"

    # ---- time and faults

    def _run(self, duration_ms: str) -> str:
        self.cluster.net.run(int(duration_ms) * 1000)
        return "ok"

    def _settle(self) -> str:
        return "ok" if self.cluster.settle(20_000) else "not settled"

    def _crash(self, host: str) -> str:
        self.cluster.crash(host)
        return "ok"

    def _start(self, host: str) -> str:
        self.cluster.start(host)
        return "ok"

    def _pause(self, host: str) -> str:
        self.cluster.net.pause(host)
        return "ok"

    def _resume(self, host: str) -> str:
        self.cluster.net.resume(host)
        return "ok"

    def _cut(self, link: str) -> str:
        sender, target = link.split(">")
        self.cluster.net.cut(sender, target)
        return "ok"

    def _isolate(self, host: str) -> str:
        self.cluster.net.isolate(host)
        return "ok"

    def _mend(self, host: str) -> str:
        self.cluster.net.mend(host)
        return "ok"

    def _heal(self) -> str:
        self.cluster.net.heal()
        return "ok"

    def _wipe(self, host: str) -> str:
        self.cluster.wipe(host)
        return f"its disk is {self.cluster.disks[host].label.disk}"

    def _snapshot(self, host: str) -> str:
        self._snapshots[host] = self.cluster.disks[host].copy()
        return "ok"

    def _restore(self, host: str) -> str:
        self.cluster.disks[host] = self._snapshots[host].copy()
        return "ok"

    def _break(self, host: str) -> str:
        self.cluster.disks[host].fails = True
        return "ok"

    def _fill(self, host: str) -> str:
        self.cluster.disks[host].is_full = True
        return "ok"

    def _free(self, host: str) -> str:
        self.cluster.disks[host].is_full = False
        return "ok"

    def _rot(self, host: str, epoch: str) -> str:
        self.cluster.disks[host].rot((STREAM, int(epoch)), 0)
        return "ok"

    def _claim(self, host: str) -> str:
        self.cluster.hosts[host].claim(self.cluster.meta.live())
        return "ok"

    # ---- what is seen

    def _status(self) -> str:
        registration = self.cluster.registration
        owner, acked = registration.owner.host or "none", self.cluster.history.acked
        start = f", the log starts at {registration.log_start}" if registration.log_start else ""
        lines = [f"epoch {registration.epoch}, owner {owner}, {acked} acknowledged{start}"]
        lines += [self._chunk_line(chunk) for chunk in registration.chunks]
        for host in self.cluster.hosts.values():
            if host.refused is not None:
                lines.append(f"{host.name}: {host.refused.value}")
            elif host.owner is not None:
                state = f"{host.owner.state.value}, {len(host.pending)} in flight"
                lines.append(f"{host.name}: {'paused' if self.cluster.net.is_paused(host.name) else state}")
        return "\n".join(lines)

    def _chunk_line(self, chunk: ChunkRegistration) -> str:
        end = f"{chunk.end.next_offset})" if chunk.end is not None else "…"
        candidates = f", perhaps {_names(chunk.candidates)}" if chunk.candidates else ""
        return f"  chunk {chunk.epoch} [{chunk.base_offset}, {end} on {_names(chunk.members)}{candidates}"

    def _disks(self) -> str:
        return "\n".join(
            f"{name}: {' '.join(str(epoch) for _, epoch in sorted(disk.chunks)) or 'nothing'}"
            for name, disk in self.cluster.disks.items()
        )

    def _events(self) -> str:
        news, self._told = self.cluster.events[self._told :], len(self.cluster.events)
        return "\n".join(f"{host}: {_event(effect)}" for _, host, effect in news) or "none"

    def _costs(self) -> str:
        counts = dict(self.cluster.counts)
        self.cluster.counts.clear()
        return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "nothing"

    def _log(self) -> str:
        self.cluster.scrub()
        self.cluster.check()
        end = self.cluster.registration.chunks[-1].base_offset if self.cluster.registration.chunks else 0
        known = max(self.cluster.history.at_offset, default=-1) + 1
        return f"every promise holds up to offset {max(end, known)}"


def _names(members: tuple[Member, ...]) -> str:
    return " ".join(member.disk for member in members)


def _event(effect: Effect) -> str:
    if isinstance(effect, Ready):
        return f"ready in epoch {effect.epoch} from offset {effect.high_watermark}"
    if isinstance(effect, Readable):
        shown = "all of it" if effect.is_settled else "what is known to be acknowledged"
        return f"may be read in epoch {effect.epoch} up to offset {effect.end}, {shown}"
    if isinstance(effect, StreamUnavailable):
        return f"unavailable in epoch {effect.epoch}: {effect.reason}"
    if isinstance(effect, TooFewMembers):
        return f"too few members in epoch {effect.epoch}: it needs {effect.needed}"
    if isinstance(effect, EnoughMembers):
        return "enough members again"
    assert isinstance(effect, MemberFailed)
    return f"{effect.host} fails in epoch {effect.epoch}: {effect.reason}"


def play(text: str, planted: Planted | None = None) -> str:
    """A story with the outputs as they are now."""
    story = Story(planted)
    made: list[str] = []
    for block in text.strip().split("\n\n"):
        said = block.split(f"\n{OUTPUT}")[0].split("\n")
        commands = [line for line in said if not line.startswith("#")]
        outputs = [story.obey(line) for line in commands]
        made.append("\n".join([*said, *([OUTPUT, outputs[-1]] if commands else [])]))
    return "\n\n".join(made) + "\n"


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.txt")):
        path.write_text(play(path.read_text(encoding="utf-8")), encoding="utf-8")
