"""A sidecar starts without the modules that its packages only name, and that are not missing to anybody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.limits import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
UNUSED = ("asn1crypto", "asyncio", "email", "hypothesis", "importlib.metadata", "pytest", "scramp", "zipfile")
SERVES = f"""
import sys
from logstore.base.lean_imports import import_lean, leave_test_tools_out
leave_test_tools_out()
import_lean()
import logstore.sidecar
print([name for name in {UNUSED} if sys.modules.get(name)])
import asyncio, importlib.metadata
print(asyncio.StreamReader.__module__, importlib.metadata.version("crc32c") != "unknown")
"""
ALONE = (
    "cluster",
    "cluster.copies",
    "cluster.copies.copy_pace",
    "cluster.figures",
    "cluster.members",
    "cluster.members.own_files",
    "cluster.members.places",
    "cluster.settings",
    "tier",
    "tier.interface",
    "tier.range_cache",
    "tier.reads",
    "tier.settings",
    "tier.starting",
)
"""Settings and their defaults, names of files, types of figures, and what asks a tier that may be there."""
SERVES_ALONE = """
import sys
import logstore.sidecar
import logstore.monitoring.running
rooms = ("logstore.cluster", "logstore.cluster_front", "logstore.replica", "logstore.tier")
print(sorted(name.removeprefix("logstore.") for name in sys.modules if name.startswith(rooms)))
import logstore.cluster_front
print("logstore.cluster.part" in sys.modules)
"""
HAS_IT = """
import asyncio, sys
from logstore.base.lean_imports import import_lean
import_lean()
import kio.serial.writers
print(kio.serial.writers.Writable.__args__[0] is asyncio.StreamWriter, sys.modules["asyncio"] is asyncio)
"""

OPENS_ETCD = """
import sys
from logstore.commands.metadata_store import cluster_room
cluster_room()
print([name for name in ("anyio", "httpcore", "httpx", "numpy") if name in sys.modules], "h11" in sys.modules)
"""


def printed(program: str) -> list[str]:
    """What a Python program prints."""
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return finished.stdout.splitlines()


def test_what_no_sidecar_needs_is_not_loaded() -> None:
    """A sidecar without TLS and users loads none of these, and a program that wants them afterwards has them."""
    assert printed(SERVES) == ["[]", "asyncio.streams True"]


def test_a_sidecar_alone_loads_nothing_of_a_cluster() -> None:
    """Without --cluster and --tier-url, only the listed modules of cluster, replica and tier are loaded, also with the
    status page; what a host of a cluster needs beside them comes with its front.
    """
    assert printed(SERVES_ALONE) == [str(list(ALONE)), "True"]


def test_what_is_there_stays() -> None:
    """A program that has imported asyncio before keeps it, and kio has the real class."""
    assert printed(HAS_IT) == ["True True"]


def test_what_opens_etcd_needs_no_extra() -> None:
    """A host of a cluster speaks with etcd by what every sidecar has: no other client of HTTP is loaded."""
    assert printed(OPENS_ETCD) == ["[] True"]
