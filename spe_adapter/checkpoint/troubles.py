"""Which units of a state directory get no checkpoints, and why: the I/O service writes it, tasks read it.

    STATE_DIRECTORY/.io-service/troubles.json   a JSON object: a unit's name to a sentence; missing without troubles

Invariants:
* A task that finds no file reads nothing else: that is the usual case.
* Bounded: MAX_TROUBLES units, MAX_CHARACTERS of each sentence. Neither writing nor reading raises for what the
  directory may be like.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.service_place import place_of

TROUBLES: Final = "troubles.json"
MAX_TROUBLES: Final = 64
MAX_CHARACTERS: Final = 500
_MAX_FILE_BYTES: Final = 1 << 20


class RefusedUnits:
    """The units that a service cannot serve, the newest MAX_TROUBLES of them."""

    def __init__(self) -> None:
        self._errors: OrderedDict[Unit, str] = OrderedDict()

    def refuse(self, unit: Unit, error: Exception) -> None:
        """Note why a unit is not served."""
        self._errors[unit] = _short(f"{type(error).__name__}: {error}")
        self._errors.move_to_end(unit)
        if len(self._errors) > MAX_TROUBLES:
            self._errors.popitem(last=False)

    def served(self, unit: Unit) -> None:
        """The unit is served now."""
        self._errors.pop(unit, None)

    @property
    def errors(self) -> Mapping[Unit, str]:
        """Why each of them is not served."""
        return self._errors


class TroublesFile:
    """The file of a state directory. One that an earlier service left is removed by the first `write`."""

    def __init__(self, state_directory: Path) -> None:
        self._path = place_of(state_directory) / TROUBLES
        self._written: Mapping[str, str] | None = None

    def write(self, troubles: Mapping[Unit, str]) -> None:
        """Have the file say why these units have no checkpoints, if it says another thing."""
        wanted = {unit.name: _short(error) for unit, error in list(troubles.items())[:MAX_TROUBLES]}
        if wanted == self._written:
            return
        with suppress(OSError):
            if wanted:
                draft = self._path.with_suffix(".tmp")
                draft.write_text(json.dumps(wanted), encoding="utf-8")
                draft.rename(self._path)
            else:
                self._path.unlink(missing_ok=True)
            self._written = wanted


def trouble_of(state_directory: Path, unit: Unit) -> str:
    """Why a unit had no checkpoint when the service last tried, empty if there is nothing to say."""
    path = place_of(state_directory) / TROUBLES
    try:
        with open(path, encoding="utf-8") as source:
            troubles = json.loads(source.read(_MAX_FILE_BYTES))
    except (OSError, ValueError):
        return ""
    return str(troubles.get(unit.name, "")) if isinstance(troubles, dict) else ""


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
