"""Who and what makes a user's operator fail: the key, found by halving the failed call's windows on scratch state, and
the line of the user's own code.

Invariants: nothing that a trial writes is kept; at most two trials per halving; the original error is never hidden; a
message is one line.
"""

import os
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb
from typing import Final

import numpy as np

from spe_adapter.codec.kernels import Int64s
from spe_adapter.operators.base import Operator, State
from spe_adapter.operators.errors import OperatorFailed

Trial = Callable[[State, Int64s], object]
"""The call again, with these windows of it alone, on their state, which is thrown away."""

_SHOWN_CHARACTERS: Final = 200
_SAID_CHARACTERS: Final = 500
_OURS: Final = tuple(f"{path.parents[1]}{os.sep}" for path in (Path(__file__), Path(__file__).resolve()))
_SPARK: Final = os.environ.get("SPARK_HOME")
_LIBRARIES: Final = tuple(
    f"{directory}{os.sep}"
    for directory in (
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *((str(Path(_SPARK, "python")),) if _SPARK else ()),
    )
)
_LIBRARY_PART: Final = re.compile(r"/(?:site-packages|dist-packages|pyspark\.zip|py4j-[^/]*\.zip)/")
"""Of a path, wherever it begins: a user's own libraries, Debian's, and Spark's, which clusters hand out as archives."""
_NO_FILES: Final = ("<frozen", "<__array_function__")
_CYTHON: Final = (".pyx", ".pxi", ".pxd")
"""Files of libraries that are named without their directory."""


def blamed(operator: Operator, when: str, method: str, state: State, trial: Trial, error: Exception) -> OperatorFailed:
    """The error to raise: it names operator, epoch (`when`), the key that provokes it alone, if there is one, and the
    line in the user's code.
    """
    guilty = _guilty(state, np.arange(state.size), trial)
    if guilty is None:
        return failed(operator, when, method, error, note=f"no key alone provokes it; the call had {state.size}")
    part = state.part(guilty)
    shown = ", ".join(repr(column[0].as_py()) for column in part.key_columns())
    number = f", window {int(part.numbers[0])}" if part.numbers[0] else ""
    return failed(operator, when, method, error, key=f" at key {shown[:_SHOWN_CHARACTERS]}{number}")


def failed(
    operator: Operator, when: str, method: str, error: Exception, *, key: str = "", note: str = ""
) -> OperatorFailed:
    """The error to raise where the key is known already, or not to be known."""
    said = " ".join(f"{type(error).__name__}: {error}".split())[:_SAID_CHARACTERS]
    notes = "; ".join(part for part in (note, _line(operator, method, error)) if part)
    return OperatorFailed(f"operator {operator.name} failed in {when}{key}: {said}" + (f" ({notes})" if notes else ""))


def _line(operator: Operator, method: str, error: Exception) -> str:
    """The innermost line of the user's code that led to the error; where only what it gave is wrong, the method."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [place for place in frames if not place[0].startswith(_OURS) and not _is_a_librarys(place[0])]
    function = getattr(type(operator.inner), method, None)
    code = getattr(function, "__code__", None)
    if not own and code is not None:
        # An operator may well be installed as a library.
        own = [place for place in frames if place[0] == code.co_filename and not place[0].startswith(_OURS)]
    if own:
        return f"{own[-1][0]}, line {own[-1][1]}"
    return (
        ""
        if code is None or code.co_filename.startswith(_OURS)
        else f"{method}: {code.co_filename}, line " + str(code.co_firstlineno)
    )


def _is_a_librarys(file: str) -> bool:
    if file.startswith((*_LIBRARIES, *_NO_FILES)) or file.endswith(_CYTHON):
        return True
    return _LIBRARY_PART.search(file) is not None


def _guilty(state: State, windows: Int64s, trial: Trial) -> Int64s | None:
    if not len(windows) or not _fails(state, windows, trial):
        return None
    while len(windows) > 1:
        halves = windows[: len(windows) // 2], windows[len(windows) // 2 :]
        failing = next((half for half in halves if _fails(state, half, trial)), None)
        if failing is None:
            return None
        windows = failing
    return windows


def _fails(state: State, windows: Int64s, trial: Trial) -> bool:
    try:
        trial(state.part(windows), windows)
    except Exception:  # noqa: BLE001  whatever a user's code raises; the first error is the one reported
        return True
    return False
