"""Meters: a server's CPU time and memory, the disk's own speed, and order statistics.

Invariant: a meter only reads; it costs the server under measurement nothing.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

_SCHEDULER_CLOCK = 2
"""CPUCLOCK_SCHED of Linux's posix-timers.h: what the scheduler counts, rather than ticks."""
FLOOR_BYTES = 16 * 1024
"""What the floor appends and syncs each time: the batch size of Kafka's Java producer."""


class Percentiles(NamedTuple):
    """Latencies in milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float


def percentiles(latencies_s: Sequence[float]) -> Percentiles:
    """Order statistics of latencies in seconds. There must be at least one."""
    ordered = sorted(latencies_s)
    last = len(ordered) - 1
    at = [round(ordered[min(last, int(len(ordered) * share))] * 1000, 4) for share in (0.5, 0.99, 0.999)]
    return Percentiles(*at)


def cpu_seconds(pid: int) -> float:
    """CPU time that a process and all its threads have used."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def process_clock_s(pid: int) -> float:
    """The same, to the nanosecond: the CPU-time clock of another process (clock_getcpuclockid(3), Linux)."""
    return time.clock_gettime((~pid << 3) | _SCHEDULER_CLOCK)


def peak_memory_mb(pid: int) -> float:
    """The most memory that a process ever had resident, in MB (10^6 bytes): VmHWM of proc(5)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return resident_memory_mb(pid)


def resident_memory_mb(pid: int) -> float:
    """What a process has resident now, in MB (10^6 bytes)."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6


def sync_floor_s(directory: Path, seconds: float) -> list[float]:
    """Seconds of each append of FLOOR_BYTES with fdatasync, to a new file in `directory`, one after the other."""
    path = directory / "floor"
    block = os.urandom(FLOOR_BYTES)
    took_s: list[float] = []
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        deadline = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < deadline:
            os.write(handle, block)
            os.fdatasync(handle)
            took_s.append(time.perf_counter() - begin)
    finally:
        os.close(handle)
        path.unlink()
    return took_s


def median(values: Sequence[float]) -> float:
    """The middle value. There must be at least one."""
    return float(statistics.median(values))
