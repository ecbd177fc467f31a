"""Processor time that `benchmarks.spark_throughput` counts: a worker's stays counted when the worker has ended."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.spark_throughput import ProcessorTime
from tests.support.limits import PATIENCE_S

WORKER_S = 0.5
DAEMON = f"""
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as pyspark.daemon does
read, write = os.pipe()
if os.fork() == 0:
    while time.process_time() < {WORKER_S}:
        pass
    print("worked", flush=True)
    os.read(read, 1)  # until the daemon is told to end it
    os._exit(0)
sys.stdin.readline()
os.write(write, b"x")
try:
    os.wait()
except ChildProcessError:
    pass
print("ended", flush=True)
sys.stdin.readline()
"""


def test_an_ended_workers_time_stays_counted() -> None:
    """Its parent ignores its end, so the kernel adds its time to nobody's; what was seen of it stays in the sum."""
    used = ProcessorTime(but=os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "worked\n"
        before = used.seconds()
        assert before > 0.8 * WORKER_S, "the kernel counts in ticks"
        daemon.stdin.write("\n")
        daemon.stdin.flush()
        assert daemon.stdout.readline() == "ended\n"
        assert used.seconds() >= before
        daemon.stdin.close()
        daemon.wait(PATIENCE_S)
