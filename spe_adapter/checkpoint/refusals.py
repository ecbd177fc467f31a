"""Why a recovery used no checkpoint, and what follows if the log alone does not have the state.

Invariants:
* A sink that cannot be read is never taken for state that is gone: the recovery waits for it within a bound, then the
  error is StateAway, with the cause.
* Bounded: MAX_REASONS are kept, and said, of each look at the checkpoints.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from logstore.base.events import LogEvent, Report, ignore
from logstore.client.network import Network
from spe_adapter.checkpoint.errors import CheckpointFailed, CheckpointUrlRefused, SinkFailed
from spe_adapter.checkpoint.events import CHECKPOINT_REFUSED
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.settings import CheckpointSettings, parse_sink_url
from spe_adapter.errors import StateAway, StateTrimmed

MAX_REASONS: Final = 4
_FIRST_WAIT_S: Final = 0.2
_MAX_WAIT_S: Final = 5.0


class Refusals:
    """The reasons of one unit's recovery. It is a `Report`: events go on to `report`, and their errors are noted."""

    def __init__(self, settings: CheckpointSettings, unit: Unit, report: Report = ignore) -> None:
        self._settings = settings
        self._unit = unit
        self._report = report
        self._reasons: list[str] = []
        self._unread = False
        self._deadline_s: float | None = None
        self._wait_s = _FIRST_WAIT_S

    def __call__(self, event: LogEvent, /, **fields: object) -> None:
        """Report an event; note the error that it has."""
        if "error" in fields:
            self.note(fields.get("checkpoint", event.name), fields["error"])
        self._report(event, **fields)

    def note(self, what: object, why: object) -> None:
        """Note why a checkpoint, or the whole sink, was not used: an error or a sentence."""
        reason = f"{what}: {why}"
        if isinstance(why, SinkFailed | CheckpointUrlRefused | OSError) and not self._unread:
            self._unread = True
            self._reasons.insert(0, reason)  # the cause of the error is among those that are kept
        else:
            self._reasons.append(reason)
        del self._reasons[MAX_REASONS:]

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Forget what was noted before; within the context the checkpoints are looked for. An error of the sink is
        reported and raised again. A directory that is missing before or after is noted, as one that was not mounted:
        it has no checkpoints, as a new one has none.
        """
        self._reasons.clear()
        self._unread = False
        missing = self._is_missing()
        try:
            yield
        except (CheckpointFailed, OSError) as error:
            self(CHECKPOINT_REFUSED, checkpoint=self._unit.name, error=error)
            raise
        if not self._reasons and (missing or self._is_missing()):
            why = "there is no such directory: it is not mounted, or nothing was ever written"
            self.note(self._settings.sink, SinkFailed(why))

    @property
    def count(self) -> int:
        """The number of reasons that are kept."""
        return len(self._reasons)

    def explained(self, lost: StateTrimmed) -> StateTrimmed | StateAway:
        """The error of a recovery for which the log alone does not suffice: StateAway if the sink was not read, else of
        the type of `lost`.
        """
        reasons = "; ".join(self._reasons)
        if self._unread:
            # What trimmed the log is no cause here: checkpoints cover what is gone.
            short = lost.__cause__ if isinstance(lost.__cause__, StateTrimmed) else lost
            return StateAway(
                f"{short}. The checkpoints at {self._settings.sink}, which may have the rest, cannot be read: "
                f"{reasons}. Nothing is lost as long as they exist: restore access to the sink, or correct the option "
                "that names it, and start again"
            )
        return type(lost)(
            f"{lost}; and no checkpoint at {self._settings.sink} has the rest: "
            + (
                reasons
                or f"there is none of {self._unit.name}; check that the sink is mounted, complete and the right one"
            )
        )

    def wait_for_sink(self, lost: StateTrimmed, network: Network, patience_s: float) -> None:
        """Wait a moment before another look, if the sink was not read; at most `patience_s` in all, from the first
        call on. Raises `explained` if the sink was read, or the time is over.
        """
        now_s = network.monotonic_s()
        if self._deadline_s is None:
            self._deadline_s = now_s + patience_s
        left_s = self._deadline_s - now_s
        if not self._unread or left_s <= 0:
            raise self.explained(lost) from lost
        network.sleep(min(self._wait_s, left_s))
        self._wait_s = min(2 * self._wait_s, _MAX_WAIT_S)

    def _is_missing(self) -> bool:
        address, path = parse_sink_url(self._settings.sink)
        return not address and not Path(path).is_dir()


def newer_than_log(epoch: int, wanted: int | None) -> str:
    """Why a checkpoint of an epoch that the log does not have yet is not used."""
    return f"is of epoch {epoch}, newer than epoch {wanted}, where the log ends: it belongs to a longer log"


def unrelated(manifest: Manifest) -> str:
    """Why a checkpoint that could be read is not used."""
    return (
        f"is of epoch {manifest.header.epoch}, and of another operator's state, or the log does not lead on from there"
    )
