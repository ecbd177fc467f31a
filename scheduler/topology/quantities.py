"""Sizes, rates and durations as people write them ("64 MiB", "1 Gbit/s", "117 MB/s", "2.5 s"), and back.

Invariants: reading what was written gives the same number. A plain number is in bytes, bytes per second, seconds. What
cannot be read is a ValueError whose message says what was expected, without the place: the caller knows it.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

_SCALES: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_SIZES: Final = {f"{scale}B": float(factor) for scale, factor in (_SCALES | _BINARY).items()}
_BITS: Final = {
    f"{scale}{word}": factor / 8 for scale, factor in _SCALES.items() for word in ("bit/s", "b/s", "bps", "bits/s")
}
_RATES: Final = {f"{unit}/s": factor for unit, factor in _SIZES.items()} | _BITS
_TIMES: Final = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_USUAL_GBIT: Final = (1, 2, 2.5, 4, 5, 8, 10, 20, 25, 40, 50, 80, 100, 200, 400, 800)
_USUAL_MBIT: Final = (1, 10, 100)
_QUANTITY: Final = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*")


def parse_size(value: object) -> int:
    """Bytes: `"64 MiB"`, `"64 MB"`, `67108864`. A whole number above 0, else ValueError."""
    size = _parse(value, _SIZES, 'a size such as "64 MiB", or a number of bytes')
    if size != int(size):
        raise ValueError("must be a whole number of bytes")
    return int(size)


def parse_rate(value: object) -> float:
    """Bytes per second: `"1 Gbit/s"`, `"117 MB/s"`, `125000000`. Above 0, else ValueError."""
    return _parse(value, _RATES, 'a rate such as "1 Gbit/s" or "117 MB/s", or a number of bytes per second')


def parse_duration(value: object) -> float:
    """Seconds: `"2.5 s"`, `"300 ms"`, `2.5`. Above 0, else ValueError."""
    return _parse(value, _TIMES, 'a duration such as "2.5 s" or "300 ms", or a number of seconds')


def size_text(size_bytes: int) -> str:
    """A size, exactly: in the largest unit of which it is a whole number."""
    units = sorted(_SIZES.items(), key=lambda item: -item[1])
    fitting = (f"{size_bytes // int(factor)} {unit}" for unit, factor in units if size_bytes % int(factor) == 0)
    return next(fitting, f"{size_bytes} B")


def rate_text(bytes_s: float) -> str:
    """Format a rate so that parsing returns the same number."""
    if bytes_s / _RATES["Gbit/s"] in _USUAL_GBIT:
        return rate_for_people(bytes_s)
    for unit in ("GB/s", "MB/s", "kB/s"):
        text = f"{bytes_s / _RATES[unit]:.6g}"
        if "e" not in text and float(text) >= 1 and parse_rate(f"{text} {unit}") == bytes_s:
            return f"{text} {unit}"
    return f"{bytes_s!r} B/s"


def duration_text(seconds: float) -> str:
    """A duration, exactly: reading it gives the same number."""
    return f"{seconds!r} s"


def rate_for_people(bytes_s: float) -> str:
    """A rate with three digits: in bits where it is one that networks have (`1 Gbit/s`), else in bytes."""
    for unit, usual in (("Gbit/s", _USUAL_GBIT), ("Mbit/s", _USUAL_MBIT)):
        if (bits := bytes_s / _RATES[unit]) in usual:
            return f"{bits:g} {unit}"
    for unit in ("TB/s", "GB/s", "MB/s", "kB/s"):
        if bytes_s >= _RATES[unit]:
            return f"{bytes_s / _RATES[unit]:.3g} {unit}"
    return f"{bytes_s:.3g} B/s"


def duration_for_people(seconds: float) -> str:
    """A duration with three digits."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _parse(value: object, units: Mapping[str, float], expected: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is None or match[2] not in units:
            raise ValueError(f"must be {expected}")
        number = float(match[1].replace("_", "")) * units[match[2]]
    else:
        raise ValueError(f"must be {expected}")
    if not math.isfinite(number) or number <= 0:
        raise ValueError("must be above 0")
    return number
