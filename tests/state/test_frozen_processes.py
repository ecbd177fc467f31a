"""Checkpoints taken by one process of a base that another process changes without a pause."""

import subprocess
import sys
from pathlib import Path

from spe_adapter.pages.errors import FreezeCancelled
from spe_adapter.state.frozen import freeze_base
from spe_adapter.state.paged import FreezePoint
from tests.state.conftest import QUERY
from tests.state.history import long_history
from tests.state.taskrunner import VERSIONS, WINDOWS
from tests.state.test_frozen import Written, check_table, written
from tests.support.limits import PATIENCE_S

CHECKPOINTS = 12
AHEAD = 2
"""Versions before each freeze, and during it: few, as a base that was replaced by another is frozen whole."""


def test_each_checkpoint_is_a_version(root: Path) -> None:
    """Full ones and increments: what is read is the version that the tag names, or the freeze was cancelled."""
    history = long_history(WINDOWS, VERSIONS)
    numbers = {step.tag: number for number, step in enumerate(history.steps)}
    command = [sys.executable, "-m", "tests.state.taskrunner", str(root)]
    kinds = {"full": 0, "increment": 0}
    copied = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            point: FreezePoint | None = None
            newest: Written | None = None
            behind = 0
            while sum(kinds.values()) < CHECKPOINTS:
                process.stdout.read(behind)
                process.stdin.write(b"." * AHEAD)
                process.stdin.flush()
                assert process.stdout.read(1) == b"."  # the bases stay in motion
                behind = AHEAD - 1
                frozen = freeze_base(root, QUERY, 0, point, copies=1000)
                if frozen is None:
                    continue
                process.stdin.write(b"." * AHEAD)
                process.stdin.flush()
                process.stdout.read(AHEAD)  # tasks go on below the freeze, and while its pages are read
                behind = AHEAD - 1
                copied += frozen.pages.copied
                try:
                    newest = written(frozen, None if frozen.is_full else newest)
                except FreezeCancelled:
                    frozen.pages.release()
                    point = None
                    continue
                kinds["full" if frozen.is_full else "increment"] += 1
                assert newest.described.tag in numbers
                check_table(newest, numbers[newest.described.tag], history)
                point = frozen.point
        finally:
            process.stdin.close()
            process.stdout.close()
            process.wait(PATIENCE_S)
    assert all(kinds.values()), kinds
    assert copied, "nothing was changed below a freeze: the test proves nothing"
