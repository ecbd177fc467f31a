"""When a sidecar gives memory back to the operating system: at once where the tail says so, and at a look now and then.

Invariants:
* A load that stays as it is causes no giving back on account of the tail: each asks for another HOLES_BYTES of small
  batches that larger ones have replaced (`log/tail.py`).
* Giving back on that account takes a share of SHARE of the time at most, however loads alternate.
* Behind the last byte that goes to or from the disk there is one more look: what a load leaves does not stay.
"""

from typing import Final

import trio

from logstore.base.heap import Heap
from logstore.disk.meter import DiskMeter
from logstore.log.tail import Tail

LOOK_S: Final = 2.0
SHARE: Final = 0.05


async def watch_heap(heap: Heap, tail: Tail, meter: DiskMeter) -> None:
    """Give back what loads have left free; never returns."""
    seen_bytes = 0
    wanted = trio.Event()
    tail.on_holes = wanted.set
    while True:
        with trio.move_on_after(LOOK_S):
            await wanted.wait()
        if wanted.is_set():
            # Before the work: what the tail says meanwhile is heard behind it.
            wanted = trio.Event()
            tail.on_holes = wanted.set
            from_s = trio.current_time()
            await trio.to_thread.run_sync(heap.give_back)
            await trio.sleep((trio.current_time() - from_s) / SHARE)
        else:
            moved_bytes = meter.written_bytes + meter.read_bytes
            if moved_bytes != seen_bytes:
                seen_bytes = moved_bytes
                await trio.to_thread.run_sync(heap.tidy)
