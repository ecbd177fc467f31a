"""Runs of tests in virtual time: the same seed gives the same run, and a run that hangs ends with what it waits for.

Invariants:
* Time passes only when every task waits. The order in which tasks run that could run at the same moment comes from the
  seed alone: trio shuffles them, with a generator that is seeded here.
* A run has three limits, none of them in the time of the machine: virtual time, processor time, and processor time in
  which no virtual time passes.
* A run that fails says which seed it had, and at which time it was.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from itertools import islice
from typing import Any, Final, TypeVar

import trio
import trio.testing

from tests.support.virtual_clock import VirtualClock

T = TypeVar("T")
AnyClock = VirtualClock | trio.testing.MockClock

VIRTUAL_S: Final = 3600.0
"""Of virtual time: no test waits for more than some minutes."""
PROCESSOR_S: Final = 200.0
"""Of processor time: the longest run needs ten."""
STILL_S: Final = 30.0
"""Of processor time in which virtual time stands still."""
LOOK_EVERY: Final = 1_000
"""Turns of the event loop between two looks at the processor's time."""
MAX_TASKS: Final = 60
"""Tasks that a report names."""
FRAMES: Final = 6
"""Of each of them: the innermost places where it waits."""


class StuckRun(AssertionError):
    """A run in virtual time that went on for too long."""


def seed_scheduler(seed: int) -> None:
    """Choose the order in which trio runs the tasks that can run at the same moment, from now on."""
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio._core._run._r.seed(seed)


class Trace(trio.abc.Instrument):
    """What a run did: each step of a task, with its time, as one digest."""

    def __init__(self) -> None:
        self._hash = sha256()
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task goes on."""
        self.steps += 1
        self._hash.update(f"{trio.current_time()!r} {task.name}\n".encode())

    def __str__(self) -> str:
        return f"{self.steps} steps, {self._hash.hexdigest()[:16]}"


class _Limits(trio.abc.Instrument):
    """Ends a run that is stuck: cancels its scope, and has the report of why."""

    def __init__(self, clock: AnyClock, limit_s: float, still_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._still_s = still_s
        self._begun_s = self._moved_s = time.process_time()
        self._seen_s = clock.current_time()
        self._turns = 0
        self.scope = trio.CancelScope()
        self.report = ""

    def before_io_wait(self, timeout: float) -> None:
        """A turn of the event loop ends."""
        if self.report:
            return
        self._turns += 1
        now_s = self._clock.current_time()
        if now_s > self._limit_s:
            self._end(f"it is not over after {self._limit_s} s")
        elif self._turns % LOOK_EVERY == 0:
            self._look(now_s, time.process_time())

    def _look(self, now_s: float, processor_s: float) -> None:
        if now_s != self._seen_s:
            self._seen_s, self._moved_s = now_s, processor_s
        if processor_s - self._moved_s > self._still_s:
            self._end(f"time has stood still for {self._still_s} s of the processor")
        elif processor_s - self._begun_s > PROCESSOR_S:
            self._end(f"it has taken {PROCESSOR_S} s of the processor")

    def _end(self, why: str) -> None:
        root = trio.lowlevel.current_root_task()
        tasks = list(_below(root)) if root is not None else []
        waiting = "\n".join(f"  {task.name}: {_place(task)}" for task in islice(tasks, MAX_TASKS))
        self.report = f"{why}; its {len(tasks)} tasks are at\n{waiting}"
        self.scope.cancel()


def _below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda child: child._counter):
            yield from _below(child)


def _place(task: trio.lowlevel.Task) -> str:
    """Where a task waits, in files that are not trio's."""
    frames = [(frame.f_code.co_filename, number) for frame, number in task.iter_await_frames()]
    places = [f"{name.rpartition('/')[2]}:{number}" for name, number in frames if "/trio/" not in name]
    return " > ".join(places[-FRAMES:])


def run_virtual(
    main: Callable[..., Awaitable[T]],
    *arguments: Any,
    seed: int = 0,
    limit_s: float = VIRTUAL_S,
    still_s: float = STILL_S,
    clock: AnyClock | None = None,
    trace: Trace | None = None,
) -> T:
    """Run a function in virtual time; returns its result. `clock`: one that a test has made; it may not jump.

    Raises StuckRun behind a limit, and whatever the function raises, with a note of the seed.
    """
    clock = clock or VirtualClock()
    limits = _Limits(clock, limit_s, still_s)
    results: list[T] = []

    async def limited() -> None:
        with limits.scope:
            results.append(await main(*arguments))

    seed_scheduler(seed)
    instruments = [limits] if trace is None else [limits, trace]
    try:
        trio.run(limited, clock=clock, instruments=instruments)
    except BaseException as error:
        if limits.report:
            raise StuckRun(f"seed {seed}, at {clock.current_time():.3f} s: {limits.report}") from error
        error.add_note(f"virtual time: seed {seed}, at {clock.current_time():.3f} s")
        raise
    if limits.report:
        raise StuckRun(f"seed {seed}, at {clock.current_time():.3f} s: {limits.report}")
    return results[0]
