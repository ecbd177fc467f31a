"""Pages frozen by one process, and read by another while the first changes them."""

import json
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from spe_adapter.pages.errors import FreezeCancelled
from spe_adapter.pages.frozen import FrozenHandle, FrozenPages
from spe_adapter.pages.page_table import RECORD_PAGES
from tests.pages.writer import PAGES
from tests.support.limits import PATIENCE_S

ROUNDS = 25
SEED = 20261123


@contextmanager
def writing() -> Iterator[subprocess.Popen[bytes]]:
    """A process that changes pages."""
    command = [sys.executable, "-m", "tests.pages.writer", str(SEED)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE_S)


def frozen_by(process: subprocess.Popen[bytes]) -> tuple[FrozenPages, np.ndarray]:
    """The pages that the process freezes now, and what they hold."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    told = json.loads(process.stdout.readline())
    path, table_at, pages, number, shifts = told["handle"]
    handle = FrozenHandle(path, table_at, pages, number, tuple((int(a), int(b)) for a, b in shifts))
    return FrozenPages.open(handle, np.array(told["ids"], np.int64)), np.array(told["values"])


def test_another_process_reads_what_was_frozen() -> None:
    """To the byte, however fast its owner changes the pages; then the owner may freeze again."""
    print(f"seed {SEED}")
    changed = noted = 0
    with writing() as process:
        for _ in range(ROUNDS):
            pages, values = frozen_by(process)
            assert pages.pages == PAGES
            for start in range(0, PAGES, 8):
                ids = pages.ids[start : start + 8]
                assert [zlib.crc32(page.data) for page in pages.read(ids)] == values[start : start + 8].tolist()
                pages.written(ids[::2])
            changed += int(np.count_nonzero(pages._table.mark >> 24 == pages.number))
            noted += int(pages._table.head[RECORD_PAGES])
            pages.release()
    assert changed, "nothing was copied aside: the test proves nothing"
    assert noted, "no words were noted: the test proves nothing"


def test_pages_of_a_process_that_was_killed_are_read_to_the_end() -> None:
    """By whoever opened them before; nobody opens them any more."""
    with writing() as process:
        pages, values = frozen_by(process)
        handle = pages.handle._replace(path=f"/proc/{process.pid}/fd/99")
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
        assert [zlib.crc32(page.data) for page in pages.read(pages.ids)] == values.tolist()
        pages.release()
        with pytest.raises(FreezeCancelled):
            FrozenPages.open(handle, pages.ids)
