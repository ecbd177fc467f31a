"""What is counted and kept of the events, and how durations are counted."""

import threading

from logstore.base.events import Level, LogEvent, ignore
from logstore.base.histogram import Histogram
from logstore.base.prometheus import Metric, Sample, histogram_samples, text
from logstore.events import DISK_FULL, READ_FAILED, REQUEST_CRASHED, TOPIC_CREATED, TRIMMED
from logstore.monitoring.event_log import KEPT, MAX_CHARACTERS, EventLog
from logstore.testing.clock import ManualClock
from logstore.testing.reports import RecordedReports
from tests.monitoring.support import samples


def test_events_are_passed_on_and_counted() -> None:
    """Every event reaches the log with its fields; infos are counted and not kept."""
    reports = RecordedReports()
    log = EventLog(reports, ManualClock())
    log(TOPIC_CREATED, topic="a")
    log(TRIMMED, stream="a-0", first=5, last=9, why="age", freed_bytes=100)
    log(TRIMMED, stream="a-0", first=10, last=10, why="age", freed_bytes=0)
    assert log.counts == {TOPIC_CREATED: 1, TRIMMED: 2}
    assert (log.trimmed_records, log.trimmed_bytes) == (6, 100)
    assert log.last() == []
    assert len(reports.events) == 3


def test_clients_cannot_push_out_what_an_operator_should_see() -> None:
    """However many warnings clients cause, those of the sidecar itself stay; texts and numbers are bounded."""
    log = EventLog(ignore, ManualClock())
    log(DISK_FULL, error="No space left on device")
    for number in range(10 * KEPT):
        log(READ_FAILED, stream=f"s-{number}", error="x" * 10_000)
    kept = log.last()
    assert len(kept) == KEPT + 1
    assert DISK_FULL in [seen.event for seen in kept]
    assert all(len(value) <= MAX_CHARACTERS for seen in kept for value in seen.fields.values())


def test_repeats_are_one_entry_with_a_count() -> None:
    """An event that is folded by a field is one entry for each value of it: the latest, and how many there were."""
    log = EventLog(ignore, ManualClock())
    for number in range(3):
        log(REQUEST_CRASHED, client="10.0.0.1", trace=f"{number}")
    log(REQUEST_CRASHED, client="10.0.0.2", trace="other")
    assert {(seen.fields["client"], seen.fields["trace"], seen.count) for seen in log.last()} == {
        ("10.0.0.1", "2", 3),
        ("10.0.0.2", "other", 1),
    }


def test_threads_lose_no_count() -> None:
    """Events of several threads are all counted."""
    log, event = EventLog(ignore, ManualClock()), LogEvent("noise", Level.WARNING)

    def report() -> None:
        for _ in range(2000):
            log(event)

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.counts[event] == 8000


def test_hostile_labels_break_no_line() -> None:
    """A label's value may be any text: it is escaped, and read back as it was."""
    hostile = 'a"b\\c\nd} 1\n# TYPE x counter'
    (found,) = samples(text([Metric("x", "gauge", "says\nmore", [Sample({"name": hostile}, 1)])]))["x"]
    assert dict(found)["name"] == hostile


def test_buckets_hold_what_they_say() -> None:
    """Buckets are cumulative, a bound belongs to its bucket, and what is longer than all is in the last."""
    histogram = Histogram((0.1, 1))
    for duration_s in (-1, 0.05, 0.1, 0.5, 1, 7):
        histogram.add(duration_s)
    assert dict(histogram.buckets()) == {"0.1": 3, "1": 5, "+Inf": 6}
    assert [sample.value for sample in histogram_samples({}, histogram)] == [3, 5, 6, histogram.sum_s, 6]
