"""Disk jobs on threads: each is collected once, warm threads come first, and no wait depends on the disk."""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logstore.disk.files import OsFiles
from logstore.disk.writers import Finished, WriterThreads
from logstore.interfaces import FileSystem
from logstore.log.jobs import DiskJob, Operation, WorkOnFile, WriteFile
from tests.support.limits import PATIENCE_S

THREADS = 4


@contextmanager
def running(root: Path) -> Iterator[WriterThreads]:
    """Writer threads at work; they are ended with the block."""
    writers = WriterThreads(OsFiles(root), THREADS)
    try:
        yield writers
    finally:
        writers.stop()


def job_of(*operations: Operation) -> DiskJob:
    """A job whose outcome nobody waits for."""
    return DiskJob(operations, lambda: None, lambda operation, error: None)


def work(do: Callable[[], object]) -> DiskJob:
    """A job that calls a function."""

    def run(_: FileSystem) -> None:
        do()

    return job_of(WorkOnFile("", run))


def collected(writers: WriterThreads, count: int) -> list[Finished]:
    """So many finished jobs."""
    found: list[Finished] = []
    for _ in range(int(PATIENCE_S * 1000)):  # each wait ends after a millisecond, whatever happens
        if len(found) >= count:
            break
        if writers.wait_briefly():
            found += writers.collect()
    return found


def test_every_job_is_collected_once_with_its_own_outcome(tmp_path: Path) -> None:
    """More jobs than threads, a few at a time; every second one fails."""
    outcomes: list[int | None] = []
    with running(tmp_path) as writers:
        for number in range(25):
            missing = f"missing-{number}"
            jobs = [work(lambda: None), job_of(WriteFile(missing, 0, [b"x"]))]
            for job in jobs:
                writers.submit([job])
            for job, failure, took_s in collected(writers, len(jobs)):
                assert any(job is submitted for submitted in jobs)
                assert took_s >= 0
                outcomes.append(None if failure is None else failure[1].errno)
        assert writers.collect() == [], "a job was collected twice"
    assert outcomes.count(None) == outcomes.count(errno.ENOENT) == 25


def test_jobs_one_after_the_other_run_on_the_same_thread(tmp_path: Path) -> None:
    """The thread that became idle last is the cheapest to wake: its processor still has its memory at hand."""
    names: list[str] = []
    with running(tmp_path) as writers:
        for _ in range(3 * THREADS):
            writers.submit([work(lambda: names.append(threading.current_thread().name))])
            collected(writers, 1)
    assert len(set(names)) == 1


def test_jobs_given_together_run_in_order_on_one_thread_and_fail_alone(tmp_path: Path) -> None:
    """Each has an outcome of its own: that of the second does not touch the third."""
    names: list[str] = []
    note = work(lambda: names.append(threading.current_thread().name))
    with running(tmp_path) as writers:
        writers.submit([note, job_of(WriteFile("missing", 0, [b"x"])), note])
        found = collected(writers, 3)
    assert [failure is None for _, failure, _ in found] == [True, False, True]
    assert len(names) == 2
    assert len(set(names)) == 1


def test_a_wait_ends_while_the_disk_hangs(tmp_path: Path) -> None:
    """The event loop goes on without the job, which is collected later."""
    goes_on = threading.Event()
    with running(tmp_path) as writers:
        writers.submit([work(goes_on.wait)])
        try:
            assert not writers.wait_briefly()
            assert writers.collect() == []
        finally:
            goes_on.set()
        assert len(collected(writers, 1)) == 1


def test_jobs_run_at_the_same_time_on_all_threads(tmp_path: Path) -> None:
    """As many jobs as there are threads wait for each other, and all of them end."""
    together = threading.Barrier(THREADS, timeout=PATIENCE_S)
    with running(tmp_path) as writers:
        for _ in range(THREADS):
            writers.submit([work(together.wait)])
        assert len(collected(writers, THREADS)) == THREADS


def test_a_thread_keeps_nothing_of_a_finished_job(tmp_path: Path) -> None:
    """A job's batches may be a megabyte, and a thread may be idle for long."""

    class Batches:
        """What a job holds."""

    held = Batches()
    gone = weakref.ref(held)
    with running(tmp_path) as writers:
        writers.submit([work(lambda held=held: None)])  # type: ignore[misc]
        del held
        assert len(collected(writers, 1)) == 1
        # The thread lets go before it notifies; what is left are frames of this test.
        gc.collect()
        assert gone() is None


def test_a_defect_of_a_job_is_raised_where_jobs_are_collected(tmp_path: Path) -> None:
    """Anything but an OSError is a defect of the program, and must not end in a thread that nobody hears."""

    def fail() -> None:
        raise ZeroDivisionError("a defect")

    with running(tmp_path) as writers:
        writers.submit([work(fail)])
        with pytest.raises(ZeroDivisionError, match="a defect"):
            collected(writers, 1)
