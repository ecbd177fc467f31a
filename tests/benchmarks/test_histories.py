"""The checker of histories: it finds every planted violation, and none in a history that keeps its promises."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checked.checker import Checker
from benchmarks.checked.history import Recorder, read_history
from tests.benchmarks.smoke import run_benchmark
from tests.benchmarks.written_histories import ORDERS, RESULTS, STREAM, History, good
from tests.metadata.support import needs_etcd


def test_a_history_that_keeps_its_promises_passes() -> None:
    """Duplicates of a producer that is not idempotent, and calls whose outcome nobody knows, break nothing."""
    assert good().broken() == set()


def lost_ack(history: History) -> None:
    """The log lacks a record that was acknowledged, and nothing else shows it."""
    history.produce("p", 1, 2)
    history.log("p:0", "q:0", "q:0")


def duplicate(history: History) -> None:
    """A batch of an idempotent producer that was sent again is in the log twice."""
    history.log("p:0", "q:0", "q:0", "p:0")


def reorder(history: History) -> None:
    """A record that failed at first comes behind the one that was sent after it."""
    for number in (1, 2):
        history.fail("produce", "p", stream=STREAM, number=number)
    history.log("p:0", "q:0", "q:0", "p:2", "p:1")


def acked_out_of_order(history: History) -> None:
    """Two records are acknowledged at offsets in the other order."""
    history.produce("q", 2, 4)
    history.produce("q", 3, 3)
    history.log("p:0", "q:0", "q:0", "q:3", "q:2")


def acked_behind_a_newer_owner(history: History) -> None:
    """A record is acknowledged at an offset in front of one that another producer was told of before it was sent."""
    history.produce("q", 2, 6)
    history.produce("p", 2, 5)


def idempotent_records_change_places(history: History) -> None:
    """Two records of an idempotent producer, under way at once, are acknowledged at offsets in the other order."""
    calls = [history.begin("produce", "p", stream=STREAM, number=number) for number in (2, 3)]
    for call, offset in zip(calls, (6, 5), strict=True):
        history.end(call, offset=offset)


def offset_twice(history: History) -> None:
    """Two owners give the same offset."""
    history.produce("p", 2, 0)


def never_sent(history: History) -> None:
    """The log holds what nobody sent."""
    history.log("p:0", "q:0", "q:0", "q:77")


def other_stream(history: History) -> None:
    """The log holds a record of another topic, which had the same name."""
    history.add(what="producer", who="old", stream="t#0-0", idempotent=True)
    history.call("produce", "old", stream="t#0-0", number=0, answer={"offset": 0})
    history.log("old:0", stream="t#1-0")


def hole(history: History) -> None:
    """An offset is missing."""
    records = [(0, "p:0"), (1, "q:0"), (3, "q:0")]
    history.call("log", stream=STREAM, answer={"records": records, "start": 0, "limit": 4})


def read_goes_back(history: History) -> None:
    """A reader is given again what it has read."""
    history.read(3, (1, "q:0"), (2, "q:0"))


def read_skips(history: History) -> None:
    """A reader is given the record behind the next one."""
    history.read(3, (4, "p:1"))


def read_vanishes(history: History) -> None:
    """A record that was read is not in the log at the end: it was shown before it was safe."""
    history.fail("produce", "p", stream=STREAM, number=5)
    history.read(5, (5, "p:5"))
    history.log(*ORDERS)


def reads_differ(history: History) -> None:
    """Two readers are given different records at an offset."""
    history.read(1, (1, "q:1"))


def commit_goes_back(history: History) -> None:
    """A group has an older offset than the one that was committed last."""
    history.call("commit", "m", group="g2", stream=STREAM, offset=1)
    history.call("commit", "m", group="g2", stream=STREAM, offset=2)
    history.call("committed", "end", group="g2", stream=STREAM, answer={"offset": 1})


def commit_is_lost(history: History) -> None:
    """A group has no offset, though one was committed."""
    history.call("commit", "m", group="g2", stream=STREAM, offset=1)
    history.call("committed", "end", group="g2", stream=STREAM, answer={"offset": -1001})


def group_skips(history: History) -> None:
    """A group has committed a record that no member was given."""
    history.add(what="group", group="g2", streams=[STREAM], reads=True)
    given = [record for record in enumerate(ORDERS) if record[0] != 2]
    history.call("deliver", "m", group="g2", stream=STREAM, answer={"records": given})
    history.call("commit", "m", group="g2", stream=STREAM, offset=5)
    history.call("committed", "end", group="g2", stream=STREAM, answer={"offset": 5})


def commit_is_not_told(history: History) -> None:
    """A group has committed, and nobody is told what."""
    history.call("commit", "m", group="g2", stream=STREAM, offset=1)
    history.fail("committed", "end", group="g2", stream=STREAM)


def all_commits_are_lost(history: History) -> None:
    """A group that had committed has no offset any more, and begins anew with a lower one."""
    history.call("committed", "end", group="g", stream=STREAM, answer={"offset": -1001})
    history.call("commit", "m", group="g", stream=STREAM, offset=5)


def commit_comes_early(history: History) -> None:
    """An answer is the offset of a commit that began behind it."""
    history.call("committed", "end", group="g", stream=STREAM, answer={"offset": 7})
    history.call("commit", "m", group="g", stream=STREAM, offset=7)


def commit_comes_much_later(history: History) -> None:
    """A commit that failed takes the place of a later one after an hour, as with the state of an old disk."""
    history.fail("commit", "m", group="g2", stream=STREAM, offset=1)
    history.call("commit", "m", group="g2", stream=STREAM, offset=2)
    history.add(what="disk", host="a")
    history.entries[-1]["at_s"] += 3_600.0
    for call, answer in (("commit", {}), ("committed", {"offset": 2}), ("committed", {"offset": 1})):
        offset = {"offset": 2} if call == "commit" else {}
        history.call(call, "end", group="g2", stream=STREAM, answer=answer, **offset)
        for entry in history.entries[-2:]:
            entry["at_s"] += 3_600.0


def group_stops(history: History) -> None:
    """A group never gets to the end of the log."""
    history.add(what="producer", who="late", stream=STREAM, idempotent=True)
    history.call("produce", "late", stream=STREAM, number=0, answer={"offset": 5})
    history.log(*ORDERS, "late:0")


def setting_goes_back(history: History) -> None:
    """A topic has the setting that it had before it was altered."""
    history.call("alter", topic="t", key="k", value=4)
    history.call("described", topic="t", key="k", answer={"value": 3})


def topic_is_lost(history: History) -> None:
    """A topic that was made is not there."""
    history.call("topics", answer={"topics": {"perhaps": 1}})


def topic_shrinks(history: History) -> None:
    """A topic that was grown has its former number of partitions."""
    history.call("topics", answer={"topics": {"t": 1}})


def topic_comes_back(history: History) -> None:
    """A topic that was deleted is there."""
    history.call("topics", answer={"topics": {"t": 2, "gone": 1}})


def epoch_twice(history: History) -> None:
    """An epoch is in a stream twice."""
    history.log("e/a:0", "e/a:1", "e/a:1", "e/a:2", stream="out-0")


def epoch_torn(history: History) -> None:
    """An epoch that failed is in one of its streams."""
    history.log("e/a:0", "e/a:1", "e/a:2", "e/a:3", stream="out-0")


def epoch_lost(history: History) -> None:
    """An epoch that was committed is nowhere."""
    for partition in range(2):
        history.log("e/a:0", "e/a:2", stream=f"out-{partition}")


def epoch_never_sent(history: History) -> None:
    """An epoch that nobody tried to commit is in all streams."""
    for partition in range(2):
        history.log(*RESULTS, "e/a:4", stream=f"out-{partition}")


def epoch_in_another_stream(history: History) -> None:
    """An epoch is in a stream that it was not sent to."""
    history.log(*ORDERS, "e/a:1")


def told_epoch_is_lost(history: History) -> None:
    """A run was told that an epoch is committed whose commit had no answer, and the epoch is nowhere."""
    history.fail("epoch", query="e", run="b", number=3, streams=["out-0", "out-1"])
    history.call("take over", query="e", run="c", answer={"last": 3})


def epoch_is_forgotten(history: History) -> None:
    """A run is told of an epoch before one that was acknowledged."""
    history.call("take over", query="e", run="c", answer={"last": 1})


def told_epoch_is_forgotten(history: History) -> None:
    """A run is told of an epoch before one that had no answer, but of which an earlier run was told."""
    told_epoch_is_lost(history)
    for partition in range(2):
        history.log(*RESULTS, "e/b:3", stream=f"out-{partition}")
    history.call("take over", query="e", run="d", answer={"last": 2})


def given_up_epoch_is_told(history: History) -> None:
    """A run is told of an epoch of which an earlier run was told that it is not committed."""
    history.call("take over", query="e", run="c", answer={"last": 3})


def epoch_of_two_runs(history: History) -> None:
    """Each stream of an epoch has what another run has sent, which was tried twice without an answer."""
    history.fail("epoch", query="e", run="b", number=3, streams=["out-0", "out-1"])
    history.log(*RESULTS, "e/b:3", stream="out-0")
    history.log(*RESULTS, "e/a:3", stream="out-1")


def epoch_of_another_run(history: History) -> None:
    """A run is told that it has committed an epoch, and the streams have what another run has sent."""
    history.call("epoch", query="e", run="b", number=3, streams=["out-0", "out-1"])
    for partition in range(2):
        history.log(*RESULTS, "e/a:3", stream=f"out-{partition}")


def replaced_run_commits_late(history: History) -> None:
    """The commit of a run is carried out, whole, after a later run was told that the epoch is not committed."""
    for partition in range(2):
        history.log(*RESULTS, "e/a:3", stream=f"out-{partition}")


def epoch_is_not_read(history: History) -> None:
    """A reader of a stream with control records, whose offsets have holes, is not given an epoch."""
    records = [(0, RESULTS[0]), (2, RESULTS[1]), (4, RESULTS[2])]
    history.read(0, records[0], records[2], stream="out-0")
    history.call("log", stream="out-0", answer={"records": records, "start": 0, "limit": 6})


def trimmed_record_was_twice(history: History) -> None:
    """A record of an idempotent producer was read at two offsets, both of which are trimmed at the end."""
    history.read(1, (1, "of-kept-0:1"), (2, "of-kept-0:1"), stream="kept-0")


def trimmed_record_was_another(history: History) -> None:
    """At the offset of an acknowledged record another one was read, in front of what is left at the end."""
    history.add(what="producer", who="k", stream="kept-0", idempotent=False)
    history.fail("produce", "k", stream="kept-0", number=0)
    history.read(3, (3, "k:0"), stream="kept-0")


def trimmed_record_was_not_sent(history: History) -> None:
    """A reader was given what nobody has sent, in front of what is left at the end."""
    history.read(3, (3, "of-kept-0:77"), stream="kept-0")


def lost_ack_without_offset(history: History) -> None:
    """A record is lost whose acknowledgement told no offset, as of a batch that was sent again."""
    history.produce("p", 2, -1001)


def group_never_commits(history: History) -> None:
    """A group has committed nothing of a log with records, and nobody is told anything of it."""
    history.add(what="group", group="idle", streams=[STREAM], reads=True)
    history.fail("committed", "end", group="idle", stream=STREAM)


def replaced_run_commits(history: History) -> None:
    """A run that was replaced is told that it has committed."""
    history.call("zombie", query="e", number=4)


def replaced_run_writes(history: History) -> None:
    """What a run that was replaced has written is in a stream, though it was refused."""
    history.log(*RESULTS, "e/a~replaced:3", stream="out-0")


def epochs_out_of_order(history: History) -> None:
    """A later epoch stands in front."""
    for partition in range(2):
        history.log("e/a:1", "e/a:0", "e/a:2", stream=f"out-{partition}")


def log_cannot_be_read(history: History) -> None:
    """Nobody can read a log with acknowledged records at the end, though it could be read before."""
    history.fail("log", "end", stream=STREAM)


def log_of_epochs_cannot_be_read(history: History) -> None:
    """Nor one that only queries write to."""
    history.fail("log", "end", stream="out-0")


def log_of_a_topic_cannot_be_read(history: History) -> None:
    """Nor one of a topic that came late, and that nobody has deleted since."""
    history.call("delete", topic="gone", partitions=0)
    history.add(what="producer", who="filler", stream="gone-0#1", idempotent=True, topic="gone")
    history.call("produce", "filler", stream="gone-0#1", number=0, answer={"offset": 0})


def reader_stops(history: History) -> None:
    """A reader never gets to the end of the log."""
    history.add(what="reader", who="r2", streams=[STREAM])
    history.call("read", "r2", stream=STREAM, offset=0, answer={"records": [(0, "p:0")]})


def read_skips_what_is_kept(history: History) -> None:
    """Records that retention has not taken are skipped."""
    kept = [f"of-kept-0:{number}" for number in range(20)]
    history.read(7, (9, kept[9]), stream="kept-0")


def retention_takes_too_much(history: History) -> None:
    """Less is left than retention must keep."""
    history.log("of-kept-0:19", stream="kept-0", start=19)


def retention_stands_still(history: History) -> None:
    """A stream is many times what retention leaves of it, and nothing is gone."""
    history.stream("grows-0", keeps_bytes=2_000)
    history.log(*history.sent("grows-0", 200), stream="grows-0")


def deleted_records_come_back(history: History) -> None:
    """Records that were deleted are there again."""
    history.log(*(f"of-cleared-0:{number}" for number in range(1, 5)), stream="cleared-0", start=1)


def more_is_deleted(history: History) -> None:
    """A record is gone that nobody had deleted."""
    history.log("of-cleared-0:4", stream="cleared-0", start=4)


def log_begins_late(history: History) -> None:
    """The log of a topic without retention has lost its beginning."""
    history.log(*ORDERS[1:], start=1)


def copy_is_missing(history: History) -> None:
    """A record is on one disk, though its topic has two copies, whatever the cluster says of itself."""
    history.disks("a", "b", lacking=3)


def copy_differs(history: History) -> None:
    """A disk has another record at an offset."""
    history.disks("a")
    history.add(what="copies", host="b", stream=STREAM, records=[(0, "p:1")])


def host_dies(history: History) -> None:
    """A host ends that nobody has ended."""
    history.add(what="died", host="b", status=-11, why="it had ended by itself", log="")


PLANTED = {
    log_cannot_be_read: "logs can be read",
    log_of_epochs_cannot_be_read: "logs can be read",
    log_of_a_topic_cannot_be_read: "logs can be read",
    reader_stops: "readers reach the end",
    read_skips_what_is_kept: "reads have no holes",
    retention_takes_too_much: "retention keeps enough",
    retention_stands_still: "retention goes on",
    deleted_records_come_back: "deleted records stay deleted",
    more_is_deleted: "only deleted records go",
    log_begins_late: "only deleted records go",
    copy_is_missing: "copies",
    copy_differs: "copies",
    host_dies: "hosts stay up",
    commit_is_not_told: "commits can be read",
    all_commits_are_lost: "commits stay",
    commit_comes_early: "commits stay",
    commit_comes_much_later: "commits stay",
    group_stops: "groups reach the end",
    setting_goes_back: "settings stay",
    epoch_never_sent: "nothing that was not sent",
    epoch_in_another_stream: "nothing that was not sent",
    told_epoch_is_lost: "committed epochs stay",
    epoch_is_forgotten: "runs are told the last epoch",
    told_epoch_is_forgotten: "runs are told the last epoch",
    given_up_epoch_is_told: "runs are told the last epoch",
    epoch_of_two_runs: "epochs whole",
    epoch_of_another_run: "committed epochs stay",
    replaced_run_commits_late: "replaced runs commit nothing",
    epoch_is_not_read: "reads have no holes",
    trimmed_record_was_twice: "idempotent records once",
    trimmed_record_was_another: "acknowledged records stay",
    trimmed_record_was_not_sent: "nothing that was not sent",
    lost_ack_without_offset: "acknowledged records stay",
    group_never_commits: "groups reach the end",
    replaced_run_commits: "replaced runs commit nothing",
    replaced_run_writes: "nothing that was not sent",
    lost_ack: "acknowledged records stay",
    duplicate: "idempotent records once",
    reorder: "idempotent records in order",
    acked_out_of_order: "in order",
    acked_behind_a_newer_owner: "in order",
    idempotent_records_change_places: "idempotent records in order",
    offset_twice: "an offset once",
    never_sent: "nothing that was not sent",
    other_stream: "nothing that was not sent",
    hole: "no holes",
    read_goes_back: "reads go up",
    read_skips: "reads have no holes",
    read_vanishes: "what was read stays",
    reads_differ: "reads agree",
    commit_goes_back: "commits stay",
    commit_is_lost: "commits stay",
    group_skips: "groups get all",
    topic_is_lost: "topics stay",
    topic_shrinks: "topics stay",
    topic_comes_back: "deleted topics go",
    epoch_twice: "epochs once",
    epoch_torn: "epochs whole",
    epoch_lost: "committed epochs stay",
    epochs_out_of_order: "epochs in order",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_violation_is_found(plant: Any) -> None:
    """Each is told by the name of the promise that it breaks."""
    history = good()
    plant(history)
    assert PLANTED[plant] in history.broken()


def test_an_unanswered_commit_may_come_late() -> None:
    """A commit that failed may be carried out behind a later one; one that was answered before may not."""
    history = History()
    history.fail("commit", "m", group="g", stream=STREAM, offset=1)
    history.call("commit", "m", group="g", stream=STREAM, offset=2)
    history.call("committed", "end", group="g", stream=STREAM, answer={"offset": 1})
    assert history.broken() == set()


def test_an_unanswered_record_may_come_behind_the_end_of_a_log() -> None:
    """A produce without an answer that is carried out after the log was read breaks nothing; before, it does."""
    history = good()
    history.fail("produce", "p", stream=STREAM, number=2)
    history.log(*ORDERS)
    history.read(5, (5, "p:2"))
    assert history.broken() == set()
    history.log(*ORDERS)
    assert history.broken() == {"what was read stays"}


def test_records_that_are_under_way_at_once_may_change_places() -> None:
    """A producer that is not idempotent may send some of them again, when the leader changes."""
    history = History()
    calls = [history.begin("produce", "q", stream=STREAM, number=number) for number in range(3)]
    for call, offset in zip(calls, (1, 2, 0), strict=True):
        history.end(call, offset=offset)
    history.log("q:2", "q:0", "q:1")
    assert history.broken() == set()


def test_batches_that_were_sent_again_break_nothing() -> None:
    """Acknowledgements that tell no offset, as a library gives for them, are no two records at an offset."""
    history = History()
    for number in range(2):
        history.produce("p", number, -1001)
    history.log("p:0", "p:1")
    assert history.broken() == set()


def test_every_promise_has_a_planted_violation() -> None:
    """No rule of the checker is without one."""
    source = Path(inspect.getsourcefile(Checker) or "").read_text(encoding="utf-8")
    promises = set(re.findall(r'_breaks\(\s*"([^"]+)"', source)) | set(re.findall(r'_check_end\("([^"]+)"', source))
    assert promises == set(PLANTED.values())


def test_copies_on_all_disks_break_nothing() -> None:
    """More disks than copies may have a record; what lies in front of the log's start need not be anywhere."""
    history = good()
    history.add(what="copies", host="c", stream="kept-0", records=[(19, "of-kept-0:19")])
    history.disks("a", "b", "c")
    broken = history.broken()
    assert broken == {"copies"}  # of kept-0 and cleared-0, which no disk has
    for stream, count, start in (("kept-0", 20, 7), ("cleared-0", 5, 3)):
        records = [(number, f"of-{stream}:{number}") for number in range(start, count)]
        for host in ("a", "b"):
            history.add(what="copies", host=host, stream=stream, records=records)
    assert history.broken() == set()


def test_faults_that_nobody_saw_are_counted() -> None:
    """Of two faults at a time each counts for itself, and only what was seen counts as a fault of its kind."""
    checker = Checker()
    checker.feed(good().entries)
    assert checker.counts["fault: kill"] == 1
    assert checker.counts["fault: pause"] == 0
    assert checker.counts["fault: pause, not seen"] == 1


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Calls, answers and failures come back in their order, with the times of the clock that was given."""
    times = iter(range(100))
    path = tmp_path / "history.jsonl"
    with Recorder(path, lambda: float(next(times))) as recorder:
        recorder.begin("produce", "p", stream=STREAM, number=0).ok(offset=7)
        recorder.begin("create", "admin", topic="t", partitions=1).failed("no")
    recorder.add(what="disk", host="late")  # dropped: the history is closed
    assert list(read_history(path)) == [
        {"at_s": 1.0, "what": "begin", "who": "p", "id": 1, "call": "produce", "stream": STREAM, "number": 0},
        {"at_s": 2.0, "what": "end", "who": "p", "id": 1, "ok": True, "offset": 7},
        {"at_s": 3.0, "what": "begin", "who": "admin", "id": 2, "call": "create", "topic": "t", "partitions": 1},
        {"at_s": 4.0, "what": "end", "who": "admin", "id": 2, "ok": False, "error": "no"},
    ]


@needs_etcd
@pytest.mark.clients
@pytest.mark.slow
def test_half_a_minute_of_faults_breaks_no_promise(tmp_path: Path) -> None:
    """Clients, faults and the judge, end to end."""
    found, _ = run_benchmark("histories", tmp_path, "--smoke", "--data", tmp_path)
    assert (found["violations"], found["trouble"]) == ([], [])
    assert found["calls"]["produce"] > 100
