"""Judges a history: which promises it breaks. Pure: entries in, violations out.

The promises:
* **log**: an acknowledged record is in the log once at least, at its offset; a record of an idempotent producer is
  there once at most, and its records are in the order of sending; nothing is there that was not sent; offsets of a
  dense stream have no holes; no offset is given to two records.
* **reads**: what was read at an offset is what is there at the end; a reader's offsets go up, without holes.
* **groups**: an answer is the offset of a commit that is the last one, or may be; a record below the last committed
  offset was delivered to a member.
* **topics**: a topic that was made is there, with its partitions, until somebody deletes it, and not afterwards.
* **epochs**: an epoch is in all its streams or in none, once, in order; one that was committed is in them.

What the cluster does not promise (docs/cluster.md) is not judged: an owner that is cut off answers reads with what it
knows, so a reader may wait for what another one has seen.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from benchmarks.checked.history import Entry

NEVER: Final = float("inf")
MAX_OF_A_KIND: Final = 20
"""Violations of a kind that are told one by one."""


class Violation(NamedTuple):
    """A promise that is broken: its name, and what was seen."""

    promise: str
    seen: str


@dataclass
class Producer:
    """What one producer has asked for and was told."""

    stream: str
    is_idempotent: bool
    asked: set[int] = field(default_factory=set)
    acked: dict[int, int] = field(default_factory=dict)
    """Offset of each number."""


@dataclass
class Stream:
    """What is known of a stream."""

    is_dense: bool = True
    log: dict[int, str] | None = None
    """What is in it at the end; None: nobody looked."""
    limit: int = 0
    seen: dict[int, str] = field(default_factory=dict)
    """What readers saw, at each offset, first."""


class Write(NamedTuple):
    """A commit of a group."""

    begun_s: float
    ended_s: float
    """NEVER: it may still happen."""
    is_acked: bool
    offset: int


class TopicChange(NamedTuple):
    """A topic made, grown or deleted."""

    begun_s: float
    ended_s: float
    is_acked: bool
    call: str
    partitions: int


class Checker:
    """Takes the entries of a history, then says what is wrong."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Calls by their kind, and those that failed."""
        self._violations: list[Violation] = []
        self._of_kind: Counter[str] = Counter()
        self._open: dict[int, Entry] = {}
        self._producers: dict[str, Producer] = {}
        self._streams: defaultdict[str, Stream] = defaultdict(Stream)
        self._owners: dict[tuple[str, int], str] = {}
        self._positions: dict[tuple[str, str], int] = {}
        self._delivered: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._writes: defaultdict[tuple[str, str], list[Write]] = defaultdict(list)
        self._answers: defaultdict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        self._topics: defaultdict[str, list[TopicChange]] = defaultdict(list)
        self._listed: list[tuple[float, dict[str, int]]] = []
        self._epochs: defaultdict[str, dict[int, tuple[list[str], bool]]] = defaultdict(dict)

    @property
    def violation_count(self) -> int:
        """All of them, told or not."""
        return self._of_kind.total()

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take entries, in their order."""
        for entry in entries:
            match entry["what"]:
                case "stream":
                    self._streams[entry["stream"]].is_dense = entry["dense"]
                case "producer":
                    self._producers[entry["who"]] = Producer(entry["stream"], entry["idempotent"])
                case "begin":
                    self._open[entry["id"]] = entry
                    self._begins(entry)
                case "end":
                    self._ends(self._open.pop(entry["id"]), entry)

    def violations(self) -> list[Violation]:
        """What is wrong, when all entries have been taken. Call it once."""
        for asked in self._open.values():
            self._settle(asked, {"ok": False, "at_s": NEVER})
        for name, stream in self._streams.items():
            self._check_stream(name, stream)
        for who, producer in self._producers.items():
            self._check_producer(who, producer)
        for group, answers in self._answers.items():
            self._check_group(group, answers)
        for at_s, found in self._listed:
            self._check_topics(at_s, found)
        for query, epochs in self._epochs.items():
            self._check_epochs(query, epochs)
        return self._violations

    def _breaks(self, promise: str, seen: str) -> None:
        self._of_kind[promise] += 1
        if self._of_kind[promise] <= MAX_OF_A_KIND:
            self._violations.append(Violation(promise, seen))

    def _begins(self, asked: Entry) -> None:
        if asked["call"] == "produce":
            self._producers[asked["who"]].asked.add(asked["number"])

    def _ends(self, asked: Entry, answer: Entry) -> None:
        call = asked["call"]
        self.counts[call] += 1
        if not answer["ok"]:
            self.counts[f"{call}, failed"] += 1
        elif call == "produce":
            self._acked(asked, answer["offset"])
        elif call == "read":
            self._read(asked, answer["records"])
        elif call == "deliver":
            self._delivers(asked, answer["records"])
        elif call == "fault":
            self.counts[f"fault: {asked['kind']}"] += 1
        elif call == "log":
            stream = self._streams[asked["stream"]]
            stream.limit = answer["limit"]
            stream.log = dict(answer["records"])
            if len(stream.log) != len(answer["records"]):
                self._breaks("an offset once", f"{asked['stream']}: an offset is twice in what the log gave")
        self._settle(asked, answer)

    def _settle(self, asked: Entry, answer: Entry) -> None:
        """Calls whose effect counts when they have failed, too."""
        begun_s, is_ok = asked["at_s"], answer["ok"]
        ended_s = answer["at_s"] if is_ok else NEVER
        match asked["call"]:
            case "commit":
                write = Write(begun_s, ended_s, is_ok, asked["offset"])
                self._writes[asked["group"], asked["stream"]].append(write)
            case "committed" if is_ok:
                self._answers[asked["group"], asked["stream"]].append((begun_s, answer["offset"]))
            case "create" | "grow" | "delete":
                change = TopicChange(begun_s, ended_s, is_ok, asked["call"], asked.get("partitions", 0))
                self._topics[asked["topic"]].append(change)
            case "topics" if is_ok:
                self._listed.append((begun_s, answer["topics"]))
            case "epoch":
                _, was_acked = self._epochs[asked["query"]].get(asked["number"], ([], False))
                self._epochs[asked["query"]][asked["number"]] = asked["streams"], is_ok or was_acked

    def _acked(self, asked: Entry, offset: int) -> None:
        producer = self._producers[asked["who"]]
        producer.acked[asked["number"]] = offset
        record = f"{asked['who']}:{asked['number']}"
        before = self._owners.setdefault((producer.stream, offset), record)
        if before != record:
            self._breaks("an offset once", f"{producer.stream}: {before} and {record} were both told offset {offset}")

    def _read(self, asked: Entry, records: list[tuple[int, str]]) -> None:
        name, position = asked["stream"], asked["offset"]
        stream = self._streams[name]
        for offset, _ in records:
            if offset < position:
                self._breaks("reads go up", f"{asked['who']} read {name} {offset} at position {position}")
            elif offset > position and stream.is_dense:
                self._breaks("reads have no holes", f"{asked['who']} read {name} {offset} at position {position}")
            position = offset + 1
        self._positions[asked["who"], name] = position
        self._saw(asked["who"], name, records)

    def _delivers(self, asked: Entry, records: list[tuple[int, str]]) -> None:
        self._delivered[asked["group"], asked["stream"]].update(offset for offset, _ in records)
        self._saw(asked["who"], asked["stream"], records)

    def _saw(self, who: str, name: str, records: list[tuple[int, str]]) -> None:
        stream = self._streams[name]
        for offset, value in records:
            before = stream.seen.setdefault(offset, value)
            if before != value:
                self._breaks("reads agree", f"{who} read {value} at {name} {offset}, where {before} was read before")

    def _check_stream(self, name: str, stream: Stream) -> None:
        if stream.log is None:
            return
        offsets = sorted(stream.log)
        if stream.is_dense and offsets != list(range(stream.limit)):
            missing = sorted(set(range(stream.limit)) - set(offsets))[:5]
            self._breaks("no holes", f"{name}: {len(offsets)} records of {stream.limit}, missing {missing}")
        for offset, value in stream.seen.items():
            if stream.log.get(offset) != value:
                now = stream.log.get(offset, "nothing")
                self._breaks("what was read stays", f"{name} {offset}: {value} was read, {now} is there")
        for offset, value in stream.log.items():
            who, _, number = value.rpartition(":")
            producer = self._producers.get(who)
            if who in self._epochs:
                continue
            if producer is None or producer.stream != name or int(number) not in producer.asked:
                self._breaks("nothing that was not sent", f"{name} {offset}: {value}")

    def _check_producer(self, who: str, producer: Producer) -> None:
        log = self._streams[producer.stream].log
        if log is None:
            return
        for number, offset in producer.acked.items():
            if log.get(offset) != f"{who}:{number}":
                now = log.get(offset, "nothing")
                self._breaks("acknowledged records stay", f"{producer.stream} {offset}: {who}:{number} was, {now} is")
        acked = sorted(producer.acked.items())
        for (before, low), (number, high) in pairwise(acked):
            if high <= low:
                self._breaks("in order", f"{producer.stream}: {who}:{before} at {low}, {who}:{number} at {high}")
        if producer.is_idempotent:
            self._check_once(who, producer.stream, log)

    def _check_once(self, who: str, name: str, log: dict[int, str]) -> None:
        mark = f"{who}:"
        numbers = [int(value[len(mark) :]) for _, value in sorted(log.items()) if value.startswith(mark)]
        for number, times in Counter(numbers).items():
            if times > 1:
                self._breaks("idempotent records once", f"{name}: {who}:{number} is there {times} times")
        if numbers != sorted(numbers):
            at = next(place for place, (low, high) in enumerate(pairwise(numbers)) if high < low)
            self._breaks("idempotent records in order", f"{name}: {who}: {numbers[at : at + 2]}")

    def _check_group(self, key: tuple[str, str], answers: list[tuple[float, int]]) -> None:
        group, name = key
        writes = self._writes[key]
        for read_s, offset in answers:
            if offset < 0:
                may_be = not any(write.is_acked and write.ended_s < read_s for write in writes)
            else:
                may_be = any(
                    write.offset == offset
                    and write.begun_s < NEVER
                    and not any(
                        later.is_acked and later.begun_s > write.ended_s and later.ended_s < read_s for later in writes
                    )
                    for write in writes
                )
            if not may_be:
                self._breaks("commits stay", f"group {group}, {name}: {offset} at {read_s:.3f} s, which is no last one")
        if group not in {delivered for delivered, _ in self._delivered}:
            return
        last = max(answers)[1]
        missing = sorted(set(range(last)) - self._delivered[key])
        if missing and self._streams[name].is_dense:
            self._breaks("groups get all", f"group {group}, {name}: {last} committed, not delivered: {missing[:5]}")

    def _check_topics(self, at_s: float, found: dict[str, int]) -> None:
        for topic, changes in self._topics.items():
            made_s = _last_acked(changes, "create", at_s)
            gone_s = _last_acked(changes, "delete", at_s)
            if made_s is not None and not _may_follow(changes, "delete", made_s):
                life = [each for each in changes if each.is_acked and each.ended_s >= made_s]
                wanted = max(each.partitions for each in life)
                if found.get(topic, 0) < wanted:
                    self._breaks("topics stay", f"{topic}: {found.get(topic, 0)} partitions of {wanted}")
            if gone_s is not None and topic in found and not _may_follow(changes, "create", gone_s):
                self._breaks("deleted topics go", f"{topic} was deleted, and is there")

    def _check_epochs(self, query: str, epochs: dict[int, tuple[list[str], bool]]) -> None:
        found: defaultdict[str, list[int]] = defaultdict(list)
        looked = {name for streams, _ in epochs.values() for name in streams if self._streams[name].log is not None}
        for name in looked:
            log = self._streams[name].log or {}
            mark = f"{query}:"
            found[name] = [int(value[len(mark) :]) for _, value in sorted(log.items()) if value.startswith(mark)]
            for number, times in Counter(found[name]).items():
                if times > 1:
                    self._breaks("epochs once", f"{name}: epoch {number} of {query} is there {times} times")
            if found[name] != sorted(found[name]):
                self._breaks("epochs in order", f"{name}: epochs of {query} are not in their order")
        for number, (streams, is_acked) in sorted(epochs.items()):
            has = [name for name in streams if number in found[name]]
            if looked.issuperset(streams) and len(has) not in (0, len(streams)):
                self._breaks("epochs whole", f"epoch {number} of {query} is in {has} of {streams}")
            if is_acked and looked.issuperset(streams) and not has:
                self._breaks("committed epochs stay", f"epoch {number} of {query} is in none of {streams}")


def _last_acked(changes: list[TopicChange], call: str, before_s: float) -> float | None:
    """When the last call of a kind was acknowledged before a moment; None: none was."""
    times = [each.ended_s for each in changes if each.call == call and each.is_acked and each.ended_s < before_s]
    return max(times, default=None)


def _may_follow(changes: list[TopicChange], call: str, after_s: float) -> bool:
    """Whether a call of a kind may have been carried out behind a moment."""
    return any(each.call == call and each.ended_s > after_s for each in changes)
