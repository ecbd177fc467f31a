"""The process that writes frozen pages of another one, as the I/O service does: `-m benchmarks.paging.page_writer DIR`.

It reads pickled freezes from its standard input, and answers `complete` to each on its standard output.
"""

from __future__ import annotations

import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.paging.kinds import product_tools
from spe_adapter.checkpoint.__main__ import NICENESS
from spe_adapter.checkpoint.manager import CheckpointManager
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.service import CHUNKS_AT_ONCE
from spe_adapter.checkpoint.snapshot import Snapshot
from spe_adapter.pages.frozen import FrozenPages


def given(snapshot: Snapshot, _since: object) -> Snapshot:
    """What was frozen elsewhere, as a freeze."""
    return snapshot


def main() -> None:
    """Write until the input ends."""
    os.nice(NICENESS)
    tools = product_tools(Path(sys.argv[1]), ThreadPoolExecutor(CHUNKS_AT_ONCE))
    while True:
        try:
            number, handle, ids, header = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pages = FrozenPages.open(handle, ids)
        snapshot = Snapshot(header, pages, None, is_full=True)
        outcome = CheckpointManager(Unit("pages", number), partial(given, snapshot), tools).checkpoint()
        print("complete" if outcome.is_complete else f"failed: {outcome}", flush=True)


if __name__ == "__main__":
    main()
