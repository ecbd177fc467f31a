"""What is measured outside of a client: a server's CPU and memory, the disk's own speed, and the machine.

Invariants:
* Times are seconds or milliseconds as the names say; sizes are bytes, or MB of 1,000,000 bytes.
* Peak memory is the kernel's own high-water mark, not a sample.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psutil

NS_PER_MS = 1_000_000


class Latency(NamedTuple):
    """Percentiles in milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float


def latency(samples_ns: Sequence[int]) -> Latency:
    """Percentiles of samples in nanoseconds (nearest rank)."""
    ordered = sorted(samples_ns)

    def rank(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / NS_PER_MS if ordered else 0.0

    return Latency(rank(0.50), rank(0.99), rank(0.999))


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def peak_memory_mb(pid: int) -> float:
    """The largest resident size that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found.group(1)) * 1024 / 1e6 if found else 0.0


def fdatasync_floor(directory: Path, size_bytes: int, count: int) -> Latency:
    """Append `size_bytes` and fdatasync, `count` times, to a new file in `directory`: what no durable server can beat."""
    data = b"\x5a" * size_bytes
    samples = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        handle = file.fileno()
        for _ in range(count):
            begun = time.perf_counter_ns()
            os.write(handle, data)
            os.fdatasync(handle)
            samples.append(time.perf_counter_ns() - begun)
    return latency(samples)


def describe_machine(directory: Path) -> dict[str, Any]:
    """Processor, memory, kernel and the file system under `directory`."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    mounts = [part for part in psutil.disk_partitions(all=True) if directory.is_relative_to(part.mountpoint)]
    mount = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return {
        "processor": model.group(1) if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "kernel": platform.release(),
        "file_system": mount.fstype if mount else "unknown",
        "load_at_start": os.getloadavg()[0],
    }


def describe_versions(distributions: Sequence[str]) -> dict[str, str]:
    """Python's, Java's and these distributions' versions."""
    versions = {"python": platform.python_version()}
    for name in distributions:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    try:
        done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
        versions["java"] = done.stderr.splitlines()[0]
    except (OSError, IndexError):
        versions["java"] = "none"
    return versions
