"""Which key makes a user's operator fail: halves of the failed call's windows are tried on scratch state.

Invariants: nothing that a trial writes is kept; at most two trials per halving; the original error is never hidden.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from spe_adapter.codec.kernels import Int64s
from spe_adapter.operators.base import State
from spe_adapter.operators.errors import OperatorFailed

Trial = Callable[[Int64s], object]
"""The call again, with these windows of it alone, on state that is thrown away."""

_SHOWN_CHARACTERS: Final = 200


def blamed(name: str, epoch: int, state: State, trial: Trial, error: Exception) -> OperatorFailed:
    """The error to raise: it names operator, epoch and the key that provokes it alone, if there is one."""
    said = f"{type(error).__name__}: {error}"
    guilty = _guilty(np.arange(state.size), trial)
    if guilty is None:
        return OperatorFailed(
            f"operator {name} failed in epoch {epoch}: {said} (no key alone provokes it; the call had {state.size})"
        )
    part = state.part(guilty)
    shown = ", ".join(repr(column[0].as_py()) for column in part.key_columns())
    number = f", window {int(part.numbers[0])}" if part.numbers[0] else ""
    return OperatorFailed(f"operator {name} failed in epoch {epoch} at key {shown[:_SHOWN_CHARACTERS]}{number}: {said}")


def _guilty(windows: Int64s, trial: Trial) -> Int64s | None:
    if not len(windows) or not _fails(windows, trial):
        return None
    while len(windows) > 1:
        halves = windows[: len(windows) // 2], windows[len(windows) // 2 :]
        failing = next((half for half in halves if _fails(half, trial)), None)
        if failing is None:
            return None
        windows = failing
    return windows


def _fails(windows: Int64s, trial: Trial) -> bool:
    try:
        trial(windows)
    except Exception:  # noqa: BLE001  whatever a user's code raises; the first error is the one reported
        return True
    return False
