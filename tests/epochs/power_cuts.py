"""A scenario of epochs, stopped before each of its disk operations in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from logstore.testing.clock import ManualClock
from logstore.testing.faults import FileCall
from logstore.testing.simdisk import SimDisk
from tests.epochs.stage_set import Sidecar

RunEpochs = Callable[[Sidecar, str, int, dict[int, str]], None]
"""A query's incarnation, from an epoch on; what it is answered goes into the last argument: the incarnation of each
epoch.
"""


class PowerCut(Exception):
    """The simulated disk stops here."""


def set_up() -> SimDisk:
    """A data directory with the topic, everything durable."""
    disk = SimDisk(unit_bytes=256)
    sidecar = Sidecar(disk, ManualClock())
    sidecar.create("out", 2)
    sidecar.run()
    return disk


def cut_at(disk: SimDisk, number: int) -> Callable[[FileCall], None]:
    """Let the disk stop before its `number`th changing call from now."""
    left = number

    def before(call: FileCall) -> None:
        nonlocal left
        if call.changes_disk:
            left -= 1
            if left < 0:
                raise PowerCut

    disk.before_call = before
    return before


def interrupted(run_epochs: RunEpochs) -> Iterator[tuple[int, SimDisk, dict[int, str]]]:
    """The scenario stopped before each of its disk operations in turn: its number, the disk, what was acked by then."""
    number = 0
    while True:
        disk = set_up()
        acked: dict[int, str] = {}
        sidecar = Sidecar(disk, ManualClock())
        cut_at(disk, number)
        try:
            run_epochs(sidecar, "run-1", 0, acked)
        except PowerCut:
            yield number, disk, acked
            number += 1
        else:
            return


def recover(disk: SimDisk) -> Sidecar:
    """The next life of the sidecar, ready to serve."""
    sidecar = Sidecar(disk, ManualClock())
    sidecar.roll_forward()
    return sidecar
