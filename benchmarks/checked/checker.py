"""Judges a history: which promises it breaks. Pure: entries in, violations out.

The promises:
* **log**: an acknowledged record is in the log once at least, at its offset; a record of an idempotent producer is
  there once at most, and its records are in the order of sending; nothing is there that was not sent; offsets of a
  dense stream have no holes; no offset is given to two records. Every log with acknowledged records can be read. What
  is trimmed is judged by what readers saw of it. A record that was sent after another one of any producer was
  acknowledged lies behind that.
* **trimming**: what was deleted stays deleted, nothing else goes, and retention keeps what it must.
* **copies**: each record of the log lies on as many disks as its topic has copies.
* **reads**: what was read at an offset is what is there at the end; a reader's offsets go up, without holes but where
  records were trimmed, to the end of the log.
* **groups**: an answer is the offset of a commit that is the last one, or may be; a record below the last committed
  offset was delivered to a member; a group gets to the end.
* **topics**: a topic that was made is there, with its partitions, until somebody deletes it, and not afterwards; a
  setting is what it was altered to last.
* **epochs**: an epoch is in all its streams or in none, once, in order, as one run has sent it; one that was committed,
  or told to a later run, is in them; a run that was replaced commits nothing, nor what a later run was told is missing.
* **hosts** end when they are told to, and only then.

What the cluster does not promise (docs/cluster.md) is not judged: an owner that is cut off answers reads with what it
knows, so a reader may wait for what another one has seen. A call without an answer may be carried out late: what first
shows behind the end of a log, after that log was asked for, need not be in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from benchmarks.checked.history import Entry
from benchmarks.checked.registers import NEVER, Answer, Register

MAX_OF_A_KIND: Final = 20
"""Violations of a kind that are told one by one."""
RECORD_BYTES_MAX: Final = 200
"""Of a record on a disk, with a batch of its own."""
RECORD_BYTES_MIN: Final = 30


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
    """Offset of each number; below 0: the library was not told it."""


@dataclass
class Stream:
    """What is known of a stream. `copies`: on so many disks; 0: not judged."""

    is_dense: bool = True
    copies: int = 0
    keeps_bytes: int = 0
    topic: str = ""
    made_s: float = 0.0
    log: dict[int, str] | None = None
    """What is in it at the end; None: nobody could read it."""
    start: int = 0
    limit: int = 0
    looked_s: float = 0.0
    """When the log was asked for."""
    seen: dict[int, str] = field(default_factory=dict)
    """What readers saw, at each offset, first."""
    told_s: dict[int, float] = field(default_factory=dict)
    """When an answer named an offset first."""
    skipped: list[tuple[str, int, int]] = field(default_factory=list)
    """By whom, from where, to where."""
    cleared: list[tuple[int, bool]] = field(default_factory=list)
    """Up to where records were to be deleted, and whether that was acknowledged."""
    acks: list[Ack] = field(default_factory=list)
    held: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """On each disk, the offsets whose record is that of the log."""

    def at(self, offset: int) -> str | None:
        """The record at an offset; in front of the log's start the one that somebody saw there."""
        return (self.log or {}).get(offset) if offset >= self.start else self.seen.get(offset)

    def must_hold(self, offset: int) -> bool:
        """Whether the log must have a record that somebody was told of."""
        return offset >= self.start and (offset < self.limit or self.told_s[offset] < self.looked_s)


class Ack(NamedTuple):
    """A record that was acknowledged."""

    begun_s: float
    ended_s: float
    offset: int
    record: str


class TopicChange(NamedTuple):
    """A topic made, grown or deleted."""

    begun_s: float
    ended_s: float
    is_acked: bool
    call: str
    partitions: int


@dataclass
class Query:
    """What is known of a query's epochs."""

    streams: dict[int, list[str]] = field(default_factory=dict)
    """Of each epoch that anybody tried to commit."""
    tried: set[tuple[str, int]] = field(default_factory=set)
    """Runs and the epochs that they tried to commit."""
    replaced: set[tuple[str, int]] = field(default_factory=set)
    """Those of them that a later run was told are not committed."""
    acked: dict[int, str] = field(default_factory=dict)
    """The run that was told that it has committed an epoch."""
    told: int = -1
    """The last epoch, as a run was told that took over."""


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
        self._readers: dict[tuple[str, str], int] = {}
        """Position of each reader that must get to the end."""
        self._groups: dict[str, tuple[list[str], bool]] = {}
        self._delivered: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._commits: defaultdict[tuple[str, str], Register] = defaultdict(Register)
        self._settings: defaultdict[tuple[str, str], Register] = defaultdict(Register)
        self._topics: defaultdict[str, list[TopicChange]] = defaultdict(list)
        self._listed: list[tuple[float, dict[str, int]]] = []
        self._queries: defaultdict[str, Query] = defaultdict(Query)

    @property
    def violation_count(self) -> int:
        """All of them, told or not."""
        return self._of_kind.total()

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take entries, in their order."""
        for entry in entries:
            match entry["what"]:
                case "begin":
                    self._open[entry["id"]] = entry
                    if entry["call"] == "produce":
                        self._producers[entry["who"]].asked.add(entry["number"])
                case "end":
                    self._ends(self._open.pop(entry["id"]), entry)
                case _:
                    self._declared(entry)

    def violations(self) -> list[Violation]:
        """What is wrong, when all entries have been taken. Call it once."""
        for asked in self._open.values():
            self._settle(asked, {"ok": False, "at_s": NEVER})
        for name, stream in self._streams.items():
            self._check_stream(name, stream)
        for who, producer in self._producers.items():
            self._check_producer(who, producer)
        for (who, stream_name), position in self._readers.items():
            self._check_end("readers reach the end", f"{who} at {stream_name}", stream_name, position)
        for key, register in self._commits.items():
            self._check_commits(key, register)
        for group, (streams, reads) in self._groups.items():
            for stream_name in streams if reads else ():
                self._check_group(group, stream_name)
        for (topic, setting), register in self._settings.items():
            for answer in register.wrong_answers():
                self._breaks("settings stay", f"{topic}: {setting} was {answer.value} at {answer.begun_s:.3f} s")
        for at_s, found in self._listed:
            self._check_topics(at_s, found)
        for name, query in self._queries.items():
            self._check_epochs(name, query)
        return self._violations

    def _breaks(self, promise: str, seen: str) -> None:
        self._of_kind[promise] += 1
        if self._of_kind[promise] <= MAX_OF_A_KIND:
            self._violations.append(Violation(promise, seen))

    def _declared(self, entry: Entry) -> None:
        """Entries that are no calls."""
        match entry["what"]:
            case "stream":
                stream = self._streams[entry["stream"]]
                stream.is_dense, stream.copies = entry["dense"], entry["copies"]
                stream.keeps_bytes = entry["keeps_bytes"]
            case "producer":
                self._producers[entry["who"]] = Producer(entry["stream"], entry["idempotent"])
                if "topic" in entry:
                    stream = self._streams[entry["stream"]]
                    stream.topic, stream.made_s = entry["topic"], entry["at_s"]
            case "reader":
                self._readers |= {(entry["who"], stream): 0 for stream in entry["streams"]}
            case "group":
                self._groups[entry["group"]] = entry["streams"], entry["reads"]
            case "setting":
                register = self._settings[entry["topic"], entry["key"]]
                register.write(entry["at_s"], entry["at_s"], entry["value"], is_acked=True)
            case "died":
                self._breaks("hosts stay up", f"{entry['host']} ended with status {entry['status']}: {entry['why']}")
            case "copies":
                self._has_copies(entry["host"], self._streams[entry["stream"]], entry["records"])
            case "disk":
                self.counts["disks read"] += 1

    def _ends(self, asked: Entry, answer: Entry) -> None:
        call = asked["call"]
        self.counts[call] += 1
        if not answer["ok"]:
            self.counts[f"{call}, failed"] += 1
        elif call == "produce":
            self._acked(asked, answer)
        elif call == "read":
            self._read(asked, answer)
        elif call == "deliver":
            self._delivered[asked["group"], asked["stream"]].update(offset for offset, _ in answer["records"])
            self._saw(asked, answer)
        elif call == "fault":
            for kind, seen in answer["seen"].items():
                self.counts[f"fault: {kind}" if seen else f"fault: {kind}, not seen"] += 1
        elif call == "zombie":
            self._breaks("replaced runs commit nothing", f"{asked['query']} at epoch {asked['number']}")
        self._settle(asked, answer)

    def _settle(self, asked: Entry, answer: Entry) -> None:
        """Calls whose effect counts when they have failed, too."""
        begun_s, is_ok, end_s = asked["at_s"], answer["ok"], answer["at_s"]
        match asked["call"]:
            case "log":
                self._looked(asked, answer if is_ok else None)
            case "commit":
                register = self._commits[asked["group"], asked["stream"]]
                register.write(begun_s, end_s, asked["offset"], is_acked=is_ok)
            case "committed" if is_ok:
                value = answer["offset"] if answer["offset"] >= 0 else None
                self._commits[asked["group"], asked["stream"]].answers.append(Answer(begun_s, end_s, value))
            case "alter":
                register = self._settings[asked["topic"], asked["key"]]
                register.write(begun_s, end_s, asked["value"], is_acked=is_ok)
            case "described" if is_ok:
                self._settings[asked["topic"], asked["key"]].answers.append(Answer(begun_s, end_s, answer["value"]))
            case "create" | "grow" | "delete":
                ended_s = end_s if is_ok else NEVER
                change = TopicChange(begun_s, ended_s, is_ok, asked["call"], asked.get("partitions", 0))
                self._topics[asked["topic"]].append(change)
            case "topics" if is_ok:
                self._listed.append((begun_s, answer["topics"]))
            case "clear":
                self._streams[asked["stream"]].cleared.append((asked["offset"], is_ok))
            case "epoch":
                query = self._queries[asked["query"]]
                query.streams[asked["number"]] = asked["streams"]
                query.tried.add((asked["run"], asked["number"]))
                if is_ok:
                    query.acked[asked["number"]] = asked["run"]
            case "take over" if is_ok:
                self._took_over(asked["query"], answer["last"])

    def _took_over(self, name: str, last: int) -> None:
        query = self._queries[name]
        least = max(query.acked, default=-1)
        most = max((number for _, number in query.tried - query.replaced), default=-1)
        if not max(least, query.told) <= last <= most:
            seen = f"{last}; epoch {least} was acknowledged, {query.told} told, {most} not given up"
            self._breaks("runs are told the last epoch", f"{name}: {seen}")
        query.told = max(query.told, last)
        query.replaced |= {attempt for attempt in query.tried if attempt[1] > last}

    def _looked(self, asked: Entry, answer: Entry | None) -> None:
        name = asked["stream"]
        stream = self._streams[name]
        if answer is None:
            stream.log = None
            return
        stream.start, stream.limit, stream.looked_s = answer["start"], answer["limit"], asked["at_s"]
        stream.log = dict(answer["records"])
        if len(stream.log) != len(answer["records"]):
            self._breaks("an offset once", f"{name}: an offset is twice in what the log gave")
        self._saw(asked, answer)

    def _acked(self, asked: Entry, answer: Entry) -> None:
        producer, offset = self._producers[asked["who"]], answer["offset"]
        producer.acked[asked["number"]] = offset
        if offset < 0:
            return
        stream, record = self._streams[producer.stream], f"{asked['who']}:{asked['number']}"
        stream.told_s.setdefault(offset, answer["at_s"])
        stream.acks.append(Ack(asked["at_s"], answer["at_s"], offset, record))
        before = self._owners.setdefault((producer.stream, offset), record)
        if before != record:
            self._breaks("an offset once", f"{producer.stream}: {before} and {record} were both told offset {offset}")

    def _read(self, asked: Entry, answer: Entry) -> None:
        name, position = asked["stream"], asked["offset"]
        for offset, _ in answer["records"]:
            if offset < position:
                self._breaks("reads go up", f"{asked['who']} read {name} {offset} at position {position}")
            elif offset > position:
                self._streams[name].skipped.append((asked["who"], position, offset))
            position = offset + 1
        if (asked["who"], name) in self._readers:
            self._readers[asked["who"], name] = position
        self._saw(asked, answer)

    def _saw(self, asked: Entry, answer: Entry) -> None:
        who, name = asked["who"], asked["stream"]
        stream = self._streams[name]
        for offset, value in answer["records"]:
            stream.told_s.setdefault(offset, answer["at_s"])
            before = stream.seen.setdefault(offset, value)
            if before != value:
                self._breaks("reads agree", f"{who} read {value} at {name} {offset}, where {before} was read before")

    def _has_copies(self, host: str, stream: Stream, records: list[tuple[int, str]]) -> None:
        log = stream.log or {}
        stream.held[host].update(offset for offset, value in records if log.get(offset) == value)

    def _check_stream(self, name: str, stream: Stream) -> None:
        self._check_order(name, stream.acks)
        if stream.log is None:
            if self._must_be_readable(name, stream):
                self._breaks("logs can be read", f"{name}: nobody could read it at the end")
            return
        offsets = sorted(stream.log)
        wanted = set(range(stream.start, stream.limit))
        if stream.is_dense and set(offsets) != wanted:
            missing = sorted(wanted - set(offsets))[:5]
            self._breaks("no holes", f"{name}: {len(offsets)} records of {len(wanted)}, missing {missing}")
        for who, position, offset in stream.skipped:
            between = bisect_left(offsets, position), bisect_left(offsets, offset)
            if between[0] < between[1]:
                self._breaks("reads have no holes", f"{who} read {name} {offset} at position {position}")
        for offset, value in stream.seen.items():
            if stream.must_hold(offset) and stream.at(offset) != value:
                now = stream.at(offset) or "nothing"
                self._breaks("what was read stays", f"{name} {offset}: {value} was read, {now} is there")
        for offset, value in (stream.seen | stream.log).items():
            if not self._was_sent(name, value):
                self._breaks("nothing that was not sent", f"{name} {offset}: {value}")
        self._check_start(name, stream)
        self._check_copies(name, stream, offsets)

    def _check_order(self, name: str, acks: list[Ack]) -> None:
        """Records of a producer that are under way at once may change places when the leader does, unless the producer
        is idempotent: of others only those are judged that were sent when one behind them had been acknowledged.
        """
        ended, at, last = sorted(acks, key=lambda ack: ack.ended_s), 0, Ack(0.0, 0.0, -1, "")
        for ack in sorted(acks):
            while ended[at].ended_s < ack.begun_s:
                last, at = max(last, ended[at], key=lambda each: each.offset), at + 1
            if ack.offset <= last.offset:
                at_last = f"{last.record} was acknowledged at {last.offset}"
                self._breaks("in order", f"{name}: {ack.record} is at {ack.offset}; before it was sent, {at_last}")

    def _must_be_readable(self, name: str, stream: Stream) -> bool:
        """Whether anything was acknowledged there, and nobody has tried to delete it since."""
        changes = self._topics[stream.topic]
        if any(each.call == "delete" and each.begun_s >= stream.made_s for each in changes):
            return False
        return any(each.acked for each in self._producers.values() if each.stream == name) or any(
            name in streams for query in self._queries.values() for streams in query.streams.values()
        )

    def _was_sent(self, name: str, value: str) -> bool:
        who, _, number = value.rpartition(":")
        if not number.isdecimal():
            return False
        query, _, run = who.partition("/")
        if query in self._queries:
            known = self._queries[query]
            return (run, int(number)) in known.tried and name in known.streams[int(number)]
        producer = self._producers.get(who)
        return producer is not None and producer.stream == name and int(number) in producer.asked

    def _check_start(self, name: str, stream: Stream) -> None:
        """What is gone was allowed to go."""
        start, length = stream.start, stream.limit - stream.start
        if stream.keeps_bytes:
            if start and length < stream.keeps_bytes // RECORD_BYTES_MAX:
                self._breaks("retention keeps enough", f"{name}: {length} records in front of {stream.limit}")
            if not start and stream.limit * RECORD_BYTES_MIN > 2 * stream.keeps_bytes:
                self._breaks("retention goes on", f"{name}: all {stream.limit} records are still there")
            return
        least = max((offset for offset, is_acked in stream.cleared if is_acked), default=0)
        most = max((offset for offset, _ in stream.cleared), default=0)
        if start < least:
            self._breaks("deleted records stay deleted", f"{name}: the log starts at {start}, deleted up to {least}")
        if start > most:
            self._breaks("only deleted records go", f"{name}: the log starts at {start}, deleted up to {most}")

    def _check_copies(self, name: str, stream: Stream, offsets: list[int]) -> None:
        """Retention may take more after the log was read: of such a stream what must stay is judged."""
        if not stream.copies or not self.counts["disks read"]:
            return
        first = stream.limit - stream.keeps_bytes // RECORD_BYTES_MAX if stream.keeps_bytes else stream.start
        times = Counter(offset for held in stream.held.values() for offset in held)
        lacking = [offset for offset in offsets if offset >= first and times[offset] < stream.copies]
        if lacking:
            has = times[lacking[0]]
            self._breaks("copies", f"{name}: {len(lacking)} records lack copies, as {lacking[0]}, on {has} disks")

    def _check_producer(self, who: str, producer: Producer) -> None:
        name, stream = producer.stream, self._streams[producer.stream]
        if stream.log is None:
            return
        values = set(stream.log.values())
        for number, offset in producer.acked.items():
            record = f"{who}:{number}"
            if offset < 0:
                if not stream.start and record not in values:
                    self._breaks("acknowledged records stay", f"{name}: {record} was, nobody was told where")
                continue
            now = stream.at(offset)
            if now != record and (now is not None or stream.must_hold(offset)):
                self._breaks("acknowledged records stay", f"{name} {offset}: {record} was, {now or 'nothing'} is")
        if not producer.is_idempotent:
            return
        placed = [(number, offset) for number, offset in sorted(producer.acked.items()) if offset >= 0]
        for (before, low), (number, high) in pairwise(placed):
            if high <= low:
                self._breaks("idempotent records in order", f"{name}: {who}:{before} at {low}, {number} at {high}")
        self._check_once(who, name, stream.seen | stream.log)

    def _check_once(self, who: str, name: str, records: dict[int, str]) -> None:
        """`records`: those of the log, and those that readers saw in front of it."""
        named = (value.rpartition(":") for _, value in sorted(records.items()))
        numbers = [int(number) for sender, _, number in named if sender == who and number.isdecimal()]
        for number, times in Counter(numbers).items():
            if times > 1:
                self._breaks("idempotent records once", f"{name}: {who}:{number} is there {times} times")
        if numbers != sorted(numbers):
            at = next(place for place, (low, high) in enumerate(pairwise(numbers)) if high < low)
            self._breaks("idempotent records in order", f"{name}: {who}: {numbers[at : at + 2]}")

    def _check_end(self, promise: str, who: str, name: str, position: int) -> None:
        last = max(self._streams[name].log or {}, default=-1)
        if position <= last:
            self._breaks(promise, f"{who}: position {position}, the last record is at {last}")

    def _check_commits(self, key: tuple[str, str], register: Register) -> None:
        group, name = key
        for answer in register.wrong_answers():
            at = f"{answer.value} at {answer.begun_s:.3f} s"
            self._breaks("commits stay", f"group {group}, {name}: {at}, which is no last one")
        if not register.is_answered:
            self._breaks("commits can be read", f"group {group}, {name}: nobody was told what was committed last")

    def _check_group(self, group: str, name: str) -> None:
        """That a group whose members read got to the end, and was given all of it."""
        answers = self._commits[group, name].answers
        last = (answers[-1].value or 0) if answers else 0
        self._check_end("groups reach the end", f"group {group} at {name}", name, last)
        stream = self._streams[name]
        missing = sorted({offset for offset in stream.log or () if offset < last} - self._delivered[group, name])
        if missing:
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

    def _check_epochs(self, name: str, query: Query) -> None:
        found: dict[str, dict[int, str]] = {}
        """The run of each epoch, by the streams whose log is known."""
        for stream_name in sorted({each for streams in query.streams.values() for each in streams}):
            log = self._streams[stream_name].log
            if log is not None:
                found[stream_name] = self._epochs_in(name, query, stream_name, log)
        for number, streams in sorted(query.streams.items()):
            if not found.keys() >= set(streams):
                continue
            runs = {found[stream].get(number) for stream in streams}
            if len(runs) > 1:
                has = {stream: found[stream].get(number, "none") for stream in streams}
                self._breaks("epochs whole", f"epoch {number} of {name}: the runs that it is of are {has}")
            is_lost = runs == {None} and (number in query.acked or number <= query.told)
            if is_lost or (number in query.acked and runs != {query.acked[number]}):
                by = query.acked.get(number, "a run that nobody answered")
                self._breaks("committed epochs stay", f"epoch {number} of {name}, by {by}: in {streams} are {runs}")

    def _epochs_in(self, name: str, query: Query, stream_name: str, log: dict[int, str]) -> dict[int, str]:
        """The epochs of a query in a log, and the run of each."""
        named = (
            value.removeprefix(f"{name}/").rpartition(":")
            for _, value in sorted(log.items())
            if value.startswith(f"{name}/")
        )
        epochs = [(int(number), run) for run, _, number in named if number.isdecimal()]
        numbers = [number for number, _ in epochs]
        for number, times in Counter(numbers).items():
            if times > 1:
                self._breaks("epochs once", f"{stream_name}: epoch {number} of {name} is there {times} times")
        if numbers != sorted(numbers):
            self._breaks("epochs in order", f"{stream_name}: epochs of {name} are not in their order")
        for number, run in epochs:
            if (run, number) in query.replaced:
                self._breaks("replaced runs commit nothing", f"{stream_name}: epoch {number} of {name}, by {run}")
        return dict(epochs)


def _last_acked(changes: list[TopicChange], call: str, before_s: float) -> float | None:
    """When the last call of a kind was acknowledged before a moment; None: none was."""
    times = [each.ended_s for each in changes if each.call == call and each.is_acked and each.ended_s < before_s]
    return max(times, default=None)


def _may_follow(changes: list[TopicChange], call: str, after_s: float) -> bool:
    """Whether a call of a kind may have been carried out behind a moment."""
    return any(each.call == call and each.ended_s > after_s for each in changes)
