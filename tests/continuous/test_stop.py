"""Runners are stopped from outside: with a sidecar they commit what they have, without one they leave at once."""

from __future__ import annotations

import threading
from pathlib import Path

from spe_adapter.continuous.loop import Event, FragmentProgress, Recovered
from spe_adapter.continuous.runner import Options, Runner
from tests.continuous.processes import Work, create, described, produce
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

ROWS = [(b"key-%d" % (number % 50), number) for number in range(400)]


def started(
    address: str, may_begin: threading.Event | None = None
) -> tuple[Runner, threading.Thread, list[Event], threading.Event]:
    """A runner on a thread of its own that commits all rows, behind its recovery not before it may."""
    seen: list[Event] = []
    done = threading.Event()

    def observe(event: Event) -> None:
        seen.append(event)
        if may_begin is not None:
            assert may_begin.wait(PATIENCE_S)
        if isinstance(event, FragmentProgress) and event.figures.records == len(ROWS):
            done.set()

    runner = Runner(described(Work(address, "stopped", len(ROWS))), 0, Options(address), observe=observe)
    thread = threading.Thread(target=runner.run)
    thread.start()
    return runner, thread, seen, done


def test_stop_commits_and_returns(tmp_path: Path) -> None:
    """After a stop nothing is left to process, and the next runner has nothing to replay that was not footprinted."""
    with Sidecar(tmp_path / "data") as sidecar:
        create(sidecar.address, "in")
        produce(sidecar.address, "in", ROWS)
        may_begin = threading.Event()
        runner, thread, seen, done = started(sidecar.address, may_begin)
        try:
            assert runner.needed_offsets() in ({}, {"in": 0})
        finally:
            may_begin.set()
        assert done.wait(PATIENCE_S)
        runner.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert isinstance(seen[0], Recovered)
        assert seen[0].epoch == 0


def test_stop_does_not_wait_for_a_sidecar_that_is_away(tmp_path: Path) -> None:
    """The sidecar is gone for good: the runner asks for it again and again, until it is told to stop."""
    with Sidecar(tmp_path / "data") as sidecar:
        create(sidecar.address, "in")
        produce(sidecar.address, "in", ROWS)
        runner, thread, _, done = started(sidecar.address)
        assert done.wait(PATIENCE_S)
        sidecar.kill()
        runner.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        sidecar.restart()
