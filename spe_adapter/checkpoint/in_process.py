"""Checkpoints of state that is private to a process: the same manager, on a thread of the process.

The owner of the state calls `epoch` at the end of each epoch; only then the state is frozen, on the owner's own thread.

Invariants:
* `epoch` waits for nothing: it freezes if the manager has asked for a freeze, and goes on.
* A manager that asks waits for the next epoch's end, at most PATIENCE_S; then the checkpoint is skipped.
* An error of the owner's freeze fails the checkpoint, not the epoch.
"""

import threading
from collections.abc import Callable
from typing import Final

from logstore.base.clock import Clock
from logstore.base.events import Report, ignore
from logstore.base.system import SystemClock
from logstore.errors import CairnError
from spe_adapter.checkpoint.errors import SnapshotRefused
from spe_adapter.checkpoint.events import UNIT_REFUSED
from spe_adapter.checkpoint.manager import CheckpointManager, Outcome
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.policy import MeasuredRates, UnitPolicy
from spe_adapter.checkpoint.settings import CheckpointSettings
from spe_adapter.checkpoint.sites import open_site
from spe_adapter.checkpoint.snapshot import Freeze, Snapshot
from spe_adapter.checkpoint.steps import CheckpointState

PATIENCE_S: Final = 60.0
"""How long a checkpoint waits for the end of an epoch."""
_TICK_S: Final = 1.0
_END_S: Final = 30.0


class _FreezePoint:
    """Hands a freeze from the thread that wants it to the thread that owns the state."""

    def __init__(self, freeze: Freeze) -> None:
        self._freeze = freeze
        self._changed = threading.Condition()
        self._wanted: tuple[object] | None = None
        self._answer: Snapshot | CairnError | OSError | None = None
        self._closed = False

    def ask(self, since: object) -> Snapshot | None:
        """The freeze at the next epoch's end; None if there is none in time. Raises what the freeze raised."""
        with self._changed:
            self._answer = None
            self._wanted = (since,)
            self._changed.wait_for(lambda: self._wanted is None or self._closed, PATIENCE_S)
            self._wanted = None
            return self._answered()

    def _answered(self) -> Snapshot | None:
        if isinstance(self._answer, CairnError | OSError):
            raise SnapshotRefused(str(self._answer)) from self._answer
        return self._answer

    def serve(self) -> None:
        """Freeze if it is wanted. Called by the owner of the state."""
        if self._wanted is None:  # an epoch without a checkpoint pays no lock
            return
        with self._changed:
            wanted, self._wanted = self._wanted, None
            if wanted is not None:
                try:
                    self._answer = self._freeze(wanted[0])
                except (CairnError, OSError) as error:
                    self._answer = error
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class InProcessCheckpoints:
    """The checkpoints of one unit, until `close`. `freeze` is called on the thread that calls `epoch`; `acknowledge`
    on a thread of this object, with each checkpoint that is complete and registered.

    Raises CheckpointUrlRefused for settings that cannot be used.
    """

    def __init__(
        self,
        unit: Unit,
        freeze: Freeze,
        settings: CheckpointSettings,
        acknowledge: Callable[[Manifest], None],
        report: Report = ignore,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._report = report
        self._unit = unit
        self._closed = threading.Event()
        self._point = _FreezePoint(freeze)
        self._site = open_site(settings, self._clock, report, self._closed)
        self._manager = CheckpointManager(unit, self._point.ask, self._site.tools, acknowledge)
        self._costs = MeasuredRates()
        self._policy = UnitPolicy(settings.policy, self._costs)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self.last: Outcome | None = None
        """What became of the last checkpoint that was tried."""
        self._thread = threading.Thread(target=self._run, name=f"checkpoints of {unit.name}", daemon=True)
        self._thread.start()

    def epoch(self, log_bytes: int, state_bytes: int) -> None:
        """Note the end of an epoch that added so many control bytes to the log; the state is at its version now."""
        with self._lock:
            self._policy.epoch(log_bytes, state_bytes, self._clock.monotonic_s())
        self._wake.set()
        self._point.serve()

    def recovered(self, log_bytes: int, seconds: float) -> None:
        """Note what a recovery from the log cost."""
        with self._lock:
            self._costs.recovered(log_bytes, seconds)

    def close(self) -> None:
        """End; a checkpoint that is being written fails, unless it is nearly done."""
        self._closed.set()
        self._wake.set()
        self._point.close()
        self._site.close()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.wait(_TICK_S)
            self._wake.clear()
            now_s = self._clock.monotonic_s()
            with self._lock:
                if self._closed.is_set() or not self._policy.is_due(now_s):
                    continue
                covered = self._policy.started(now_s)
            outcome = self.last = self._checkpoint()
            now_s = self._clock.monotonic_s()
            with self._lock:
                if outcome.manifest is not None:
                    page_bytes, seconds = outcome.manifest.own_page_bytes, outcome.write_s
                    self._policy.succeeded(covered, page_bytes, seconds, now_s)
                elif outcome.state is CheckpointState.SKIPPED:
                    self._policy.found_nothing(now_s)
                else:
                    self._policy.failed(now_s)

    def _checkpoint(self) -> Outcome:
        try:
            return self._manager.checkpoint()
        except Exception as error:  # noqa: BLE001 - a bug here costs checkpoints, never the operator
            self._report(UNIT_REFUSED, unit=self._unit.name, error=repr(error))
            return Outcome(CheckpointState.FAILED, error=repr(error))
