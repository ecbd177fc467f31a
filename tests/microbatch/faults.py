"""Ends processes at chosen steps of chosen epochs, from within: the probe of queries under test.

Invariant: each fault happens once, however often its step is reached: whoever makes its file is the one who does it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil

from spe_adapter.microbatch.epoch import Step
from tests.support.waiting import until

Victim = Literal["worker", "task", "driver", "sidecar"]


@dataclass(frozen=True)
class Fault:
    """Who ends at which step of which batch. `task` fails by an error, `worker` is killed, `driver` means the driver
    with its JVM and all workers.
    """

    victim: Victim
    step: Step
    batch: int


class TaskHurt(Exception):
    """What a task fails with."""


class Faults:
    """A probe (see spe_adapter.microbatch.epoch) with a list of faults."""

    def __init__(
        self, directory: Path, faults: Sequence[Fault], *, driver_pid: int = 0, sidecar_pid_file: str = ""
    ) -> None:
        self._directory = str(directory)
        self._faults = tuple(faults)
        self._driver_pid = driver_pid
        self._sidecar_pid_file = sidecar_pid_file
        directory.mkdir(parents=True, exist_ok=True)

    def __call__(self, step: Step, epoch: int, partition: int) -> None:
        """See Probe."""
        for index, fault in enumerate(self._faults):
            # In tasks, partition 1's: the other one is in the middle of things.
            here = fault.step == step and fault.batch == epoch % 2**40 // 2 and partition in (-1, 1)
            if here and self._is_first(index):
                self._do(fault)

    def _is_first(self, index: int) -> bool:
        try:
            descriptor = os.open(f"{self._directory}/{index}", os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        os.fsync(descriptor)
        os.close(descriptor)
        return True

    def _do(self, fault: Fault) -> None:
        if fault.victim == "task":
            raise TaskHurt(f"at {fault.step}")
        if fault.victim == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.victim == "sidecar":
            kill_written(Path(self._sidecar_pid_file))
        else:
            kill_family(self._driver_pid)

    def fired(self) -> set[int]:
        """The faults that have happened."""
        return {int(path.name) for path in Path(self._directory).iterdir()}


def kill_written(pid_file: Path) -> None:
    """SIGKILL to the process of a pid file; if it is dead already, to the one that comes after it."""
    killed = False

    def tried() -> bool:
        nonlocal killed
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
            killed = True
        return killed

    until(tried, f"a living process in {pid_file}")


def kill_family(pid: int) -> None:
    """SIGKILL to a process and all it has started; to the caller last, if it is one of them."""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        family = [*top.children(recursive=True), top]
        for process in sorted(family, key=lambda one: one.pid == os.getpid()):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def save(path: Path, faults: Sequence[Fault]) -> None:
    """For a driver of its own."""
    path.write_text(json.dumps([asdict(fault) for fault in faults]))


def load(path: Path) -> list[Fault]:
    """The inverse."""
    return [Fault(**fields) for fields in json.loads(path.read_text())]
