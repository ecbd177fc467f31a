"""The I/O service: writes the checkpoints of all units of one state directory, in a process of its own.

Tasks send a note at the end of each epoch. The service freezes a unit's base, which between two epochs is at a
committed version, when the policy says so, and writes it (`manager`).

Invariants:
* Bounded: MAX_UNITS units, UNITS_AT_ONCE of them being checkpointed, CHUNKS_AT_ONCE chunks being written in runs of a
  MiB. Notes beyond that, and beyond the file of notes (`service_place`), are dropped: the next epoch sends another.
* A task neither waits for the service nor fails with it; a unit that cannot be served is a log line, stands in the
  status, and is said to its tasks (`troubles`).
* It ends when nothing has come for `idle_s`, and when its socket or its directory is gone.

Source: SGuard, section 3 (I/O service), section 5.
"""

import json
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from logstore.base.clock import Clock
from logstore.base.events import Report
from logstore.base.system import SystemClock
from spe_adapter.checkpoint.datagram import MAX_DATAGRAM_BYTES, EpochNote, decode_note
from spe_adapter.checkpoint.errors import ServiceRefused
from spe_adapter.checkpoint.events import DATAGRAM_REFUSED, SERVICE_ENDED, SERVICE_STARTED, UNIT_REFUSED
from spe_adapter.checkpoint.manager import CheckpointManager, Outcome
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.policy import LoggedEpochs, MeasuredRates, UnitPolicy
from spe_adapter.checkpoint.service_place import SOCKET, STATUS, kept_notes, listen, place_of, turn_log
from spe_adapter.checkpoint.settings import settings_of
from spe_adapter.checkpoint.sites import Sites
from spe_adapter.checkpoint.snapshot import Freeze
from spe_adapter.checkpoint.steps import CheckpointState
from spe_adapter.checkpoint.troubles import RefusedUnits, TroublesFile
from spe_adapter.host import host_name

MAX_UNITS: Final = 4096
UNITS_AT_ONCE: Final = 4
CHUNKS_AT_ONCE: Final = 4
IDLE_S: Final = 300.0
TICK_S: Final = 0.5
"""How often what is due by the clock is looked at."""
MAX_DRAINED: Final = 1000
"""Notes that are taken before units are looked at."""


class _Served:
    """A unit that the service knows."""

    def __init__(self, note: EpochNote, policy: UnitPolicy, manager: CheckpointManager) -> None:
        self.described = note.settings
        self.policy = policy
        self.manager = manager
        self.epoch = note.epoch
        self.running: Future[Outcome] | None = None
        self.logged = LoggedEpochs()
        self.last: Outcome | None = None


class IoService:
    """See the module. `freeze_of` gives the way to freeze a unit's base."""

    def __init__(
        self,
        state_directory: Path,
        freeze_of: Callable[[Unit], Freeze],
        report: Report,
        clock: Clock | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._directory = state_directory
        self._freeze_of = freeze_of
        self._report = report
        self._clock = clock or SystemClock()
        self._idle_s = idle_s
        self._costs = MeasuredRates()
        self._units: OrderedDict[Unit, _Served] = OrderedDict()
        self._stop = threading.Event()
        self._refused = RefusedUnits()
        self._troubles = TroublesFile(state_directory)
        self._written_status = ""

    def stop(self) -> None:
        """End soon: checkpoints that wait or are being written fail. May be called from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Serve until the service is idle, stopped, or its directory is gone. The lock is held by the caller."""
        listening = listen(self._directory)
        inode = os.fstat(listening.fileno()).st_ino
        with (
            listening,
            ThreadPoolExecutor(UNITS_AT_ONCE, thread_name_prefix="unit") as units,
            ThreadPoolExecutor(CHUNKS_AT_ONCE, thread_name_prefix="chunk") as chunks,
        ):
            sites = Sites(self._clock, self._report, self._stop, chunks, _owner_of(self._directory))
            self._report(SERVICE_STARTED, directory=self._directory, process=os.getpid(), socket=inode)
            path = place_of(self._directory) / SOCKET
            own = path.stat()
            heard_s = self._clock.monotonic_s()
            why = "stopped"
            try:
                while not self._stop.is_set():
                    now_s = self._clock.monotonic_s()
                    if self._heard(listening, sites):
                        heard_s = now_s
                    self._collect()
                    self._begin(units)
                    self._show()
                    turn_log(self._directory)
                    busy = any(served.running is not None for served in self._units.values())
                    if not _is_there(path, own):
                        why = "its directory is gone"
                        break
                    if not busy and now_s - heard_s > self._idle_s:
                        why = f"idle for {self._idle_s:.0f} s"
                        break
            finally:
                sites.close()
        self._collect()
        if _is_there(path, own):  # else the name is another service's
            with suppress(OSError):
                path.unlink()
        self._report(SERVICE_ENDED, directory=self._directory, reason=why)

    # ---- notes

    def _heard(self, listening: socket.socket, sites: Sites) -> bool:
        """Take the notes that are there; waits for the first one for at most TICK_S."""
        heard = False
        for data in kept_notes(self._directory):
            heard = True
            self._understand(data, sites)
        listening.settimeout(TICK_S)
        for _ in range(MAX_DRAINED):
            try:
                data = listening.recv(MAX_DATAGRAM_BYTES + 1)
            except (TimeoutError, BlockingIOError):
                break
            listening.setblocking(False)
            heard = True
            self._understand(data, sites)
        return heard

    def _understand(self, data: bytes, sites: Sites) -> None:
        try:
            self._take(decode_note(data), sites)
        except ServiceRefused as error:
            self._report(DATAGRAM_REFUSED, error=error)

    def _take(self, note: EpochNote, sites: Sites) -> None:
        served = self._units.get(note.unit)
        if served is None or served.described != note.settings:
            if served is not None and served.running is not None:
                return  # its settings change after this checkpoint
            try:
                served = self._units[note.unit] = self._served(note, sites)
            except Exception as error:  # noqa: BLE001 - what one unit asks for costs the checkpoints of no other
                self._report(UNIT_REFUSED, unit=note.unit.name, error=error)
                self._refused.refuse(note.unit, error)
                self._units.pop(note.unit, None)  # it was served with other settings
                return
            self._refused.served(note.unit)
        self._units.move_to_end(note.unit)
        served.epoch = note.epoch
        served.logged.add(note.epoch, note.log_bytes)
        served.policy.epoch(note.log_bytes, note.state_bytes, self._clock.monotonic_s())
        self._costs.recovered(note.loaded_bytes, note.loaded_s)
        if len(self._units) > MAX_UNITS:
            idle = next((unit for unit, known in self._units.items() if known.running is None), None)
            if idle is not None:
                del self._units[idle]

    def _served(self, note: EpochNote, sites: Sites) -> _Served:
        settings = settings_of(note.settings)
        manager = CheckpointManager(note.unit, self._freeze_of(note.unit), sites.at(settings).tools)
        return _Served(note, UnitPolicy(settings.policy, self._costs), manager)

    # ---- checkpoints

    def _begin(self, pool: ThreadPoolExecutor) -> None:
        """Begin the checkpoints that are due, as far as threads are free."""
        free = UNITS_AT_ONCE - sum(served.running is not None for served in self._units.values())
        now_s = self._clock.monotonic_s()
        for served in self._units.values():
            if free <= 0:
                break
            if served.running is None and served.policy.is_due(now_s):
                served.policy.started(now_s)
                served.running = pool.submit(served.manager.checkpoint)
                free -= 1

    def _collect(self) -> None:
        """Note what became of the checkpoints that have ended."""
        now_s = self._clock.monotonic_s()
        for unit, served in self._units.items():
            if served.running is None or not served.running.done():
                continue
            outcome = _outcome(served.running, unit, self._report)
            served.running = None
            if outcome.state is not CheckpointState.SKIPPED or served.last is None:
                served.last = outcome  # the status goes on telling of the last checkpoint when nothing is newer
            if outcome.manifest is not None:
                covered = served.logged.take(outcome.manifest.header.epoch)
                served.policy.succeeded(covered, outcome.manifest.own_page_bytes, outcome.write_s, now_s)
            elif outcome.state is CheckpointState.SKIPPED:
                served.policy.found_nothing(now_s)
            else:
                served.policy.failed(now_s)

    # ---- status

    def _show(self) -> None:
        """Write the status file if anything has changed. A file that cannot be written is no error."""
        refused = self._refused.errors
        failed = {unit: served.last.error for unit, served in self._units.items() if served.last and served.last.error}
        self._troubles.write({**failed, **refused})
        status = {
            "process": os.getpid(),
            "units": [_shown(*item) for item in self._units.items()],
            "refused": [{"query": unit.query, "partition": unit.partition, "error": refused[unit]} for unit in refused],
        }
        text = json.dumps(status)
        if text == self._written_status:
            return
        path = place_of(self._directory) / STATUS
        draft = path.with_suffix(".tmp")
        with suppress(OSError):
            draft.write_text(text, encoding="utf-8")
            draft.rename(path)
            self._written_status = text


def _outcome(running: "Future[Outcome]", unit: Unit, report: Report) -> Outcome:
    """The result of a checkpoint. What the manager does not expect is a failed checkpoint, not the service's end."""
    error = running.exception()
    if error is None:
        return running.result()
    report(UNIT_REFUSED, unit=unit.name, error=repr(error))
    return Outcome(CheckpointState.FAILED, error=repr(error))


def _shown(unit: Unit, served: _Served) -> dict[str, Any]:
    policy, last = served.policy, served.last
    shown: dict[str, Any] = {
        "query": unit.query,
        "partition": unit.partition,
        "epoch": served.epoch,
        "log_bytes": policy.log_bytes,
        "state_bytes": policy.state_bytes,
        "running": served.running is not None,
    }
    if last is not None:
        shown |= {"state": last.state.value, "error": last.error, "freeze_s": round(last.freeze_s, 6)}
        shown |= {"write_s": round(last.write_s, 6)}
    if last is not None and last.manifest is not None:
        manifest = last.manifest
        shown |= {"checkpoint": manifest.seq, "checkpoint_epoch": manifest.header.epoch}
        shown |= {"checkpoint_bytes": manifest.own_bytes, "planned": manifest.is_planned}
    return shown


def _owner_of(state_directory: Path) -> str:
    """The name of the services of a state directory, of which one lives at a time, for a coordinator: no other host has
    the name, and no other directory.
    """
    return f"io-service-{sha256(f'{host_name()}:{state_directory.resolve()}'.encode()).hexdigest()[:24]}"


def _is_there(path: Path, own: os.stat_result) -> bool:
    """Whether the service's socket still has its name."""
    try:
        return os.path.samestat(path.stat(), own)
    except OSError:
        return False


def read_status(state_directory: Path) -> dict[str, Any] | None:
    """What the service of a state directory last said of its units; None if it has said nothing."""
    try:
        status = json.loads((place_of(state_directory) / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) else None
