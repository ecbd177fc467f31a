"""What is left in the page cache is written before a measurement.

Invariant: benchmarks sync file systems here and nowhere else, so that who tests that they work can leave it out.
"""

from __future__ import annotations

import os
from typing import Final

UNSETTLED: Final = "CAIRN_BENCH_UNSETTLED"
"""Set in the environment: file systems are not synced. A sync waits for all that the machine writes, whoever writes it:
beside other work two dozen of them take minutes, and a tiny run has figures that nobody reads.
"""


def settle_disks() -> None:
    """Sync all file systems: nobody is to pay for what another has left in the page cache."""
    if UNSETTLED not in os.environ:
        os.sync()
