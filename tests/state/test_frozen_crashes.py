"""A crash before every step of a freeze, of a change below a freeze, of a reader, and of a load: no wrong state is ever
used, and nothing stays frozen.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from spe_adapter.pages import page_memory
from spe_adapter.pages.errors import FreezeCancelled
from spe_adapter.state.files import StateEnvironment
from spe_adapter.state.frozen import freeze_base
from spe_adapter.state.storage import BaseCheckpoint
from spe_adapter.state.versions import StateDirectory
from tests.state.conftest import OPERATOR, QUERY, SCHEMA, note_of, windows_of
from tests.state.test_crashes import Countdown, Crash
from tests.state.test_frozen import HISTORY, LIMIT, TAGS, Written, advance, check_table, frozen_of, written
from tests.support.limits import PATIENCE_S


def go(
    root: Path,
    version: int,
    step: Callable[[str], None],
    checkpoints: Iterable[BaseCheckpoint] = (),
    memory_bytes: int | None = None,
) -> str:
    """Open a version in a world that tells its steps; its origin."""
    environment = StateEnvironment(step=step)
    directory = StateDirectory(
        root, QUERY, LIMIT, seed=3, lock_limit_s=0.05, environment=environment, memory_bytes=memory_bytes
    )
    log = HISTORY.loader(TAGS[version])
    with directory.open(0, SCHEMA, OPERATOR, TAGS[version], log, lambda: checkpoints) as state:
        assert windows_of(state.base) == HISTORY.at(TAGS[version])
        assert state.note == note_of(TAGS[version])
        return state.how


def crash_everywhere(tmp_path: Path, run: Callable[[Path, Countdown], None]) -> list[str]:
    """Run something once for each of its steps, each time in a new place, with a crash before the step; `run` checks
    what the crash leaves. The steps of the run that is let through.
    """
    for number in range(1000):
        countdown = Countdown(number)
        run(tmp_path / str(number), countdown)
        if len(countdown.told) < number:
            return countdown.told
    raise AssertionError("it never ends")


def test_a_crash_of_the_process_that_freezes_and_reads(tmp_path: Path) -> None:
    """Tasks go on, and the next checkpoint is right."""

    def run(root: Path, countdown: Countdown) -> None:
        advance(root, 2)
        frozen = None
        with suppress(Crash):
            frozen = freeze_base(root, QUERY, 0, environment=StateEnvironment(step=countdown))
            assert frozen is not None
            checkpoint = written(frozen)
            check_table(checkpoint, 2)
        if frozen is not None:
            frozen.pages.close()  # as the end of its process would
        if len(countdown.told) % 2:
            assert advance(root, 3) == "caught_up"
        check_table(written(frozen_of(root)), 2 + len(countdown.told) % 2)

    told = crash_everywhere(tmp_path, run)
    assert {"freeze", "held", "frozen", "read live pages", "look for copies", "written", "release"} <= set(told)


@pytest.mark.parametrize(
    ("is_dense", "steps"),
    [(True, {"copy aside", "copied aside", "marked"}), (False, {"note words", "noted words", "published words"})],
    ids=["pages", "words"],
)
def test_a_crash_of_a_task_that_changes_what_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dense: bool, steps: set[str]
) -> None:
    """Whoever reads the frozen pages gets the version at the freeze or is told that the freeze is over; the base is
    made whole by the next task. So for changes of whole pages, and for changes of some words.
    """
    seen: set[str] = set()
    if is_dense:
        monkeypatch.setattr(page_memory, "_DENSE", 1_000_000)

    def run(root: Path, countdown: Countdown) -> None:
        advance(root, 2)
        frozen = frozen_of(root)
        with suppress(Crash):
            go(root, 3, countdown)
        seen.update(countdown.told)
        with suppress(FreezeCancelled):
            check_table(written(frozen), 2)
        assert advance(root, 3) in ("caught_up", "current")
        check_table(written(frozen_of(root)), 3)

    crash_everywhere(tmp_path, run)
    assert steps <= seen


def test_a_crash_of_a_task_below_a_freeze_that_is_cancelled(tmp_path: Path) -> None:
    """The task that needs more copies than there is room for cancels the freeze before it changes a page."""
    seen: set[str] = set()

    def run(root: Path, countdown: Countdown) -> None:
        advance(root, 2)
        frozen = frozen_of(root, copies=2)
        with suppress(Crash):
            go(root, 3, countdown)
        seen.update(countdown.told)
        with suppress(FreezeCancelled):
            check_table(written(frozen), 2)
        frozen.pages.release()
        assert advance(root, 3) in ("caught_up", "current")
        check_table(written(frozen_of(root)), 3)

    crash_everywhere(tmp_path, run)
    assert "cancel" in seen


def test_a_crash_while_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    """A base takes its name when it is whole, or not at all."""
    advance(tmp_path / "source", 2)
    checkpoint: Written = written(frozen_of(tmp_path / "source"))

    def run(root: Path, countdown: Countdown) -> None:
        with suppress(Crash):
            assert go(root, 3, countdown, [checkpoint]) == "checkpoint"
        assert advance(root, 3, [checkpoint]) in ("checkpoint", "current")
        assert [path.name for path in root.glob("*/p0/*")] == ["base"]

    told = crash_everywhere(tmp_path / "loads", run)
    assert {"reserve", "load pages", "ensure", "header clean", "publish"} <= set(told)


def test_a_crash_while_pages_are_written_out(tmp_path: Path) -> None:
    """Nothing is lost: the file and the memory say the same."""
    seen: set[str] = set()

    def run(root: Path, countdown: Countdown) -> None:
        advance(root, 2)
        with suppress(Crash):
            go(root, 3, countdown, memory_bytes=100_000)
        seen.update(countdown.told)
        assert go(root, 3, lambda what: None, memory_bytes=100_000) in ("caught_up", "current")
        check_table(written(frozen_of(root)), 3)

    crash_everywhere(tmp_path, run)
    assert "write out" in seen


FREEZER = """
import json, sys, time
from pathlib import Path
from spe_adapter.state.frozen import freeze_base
from tests.state.conftest import QUERY
frozen = freeze_base(Path(sys.argv[1]), QUERY, 0, copies=1000)
print(json.dumps([frozen.pages.number, frozen.pages.pages]), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("advances", [True, False])
def test_a_killed_reader_leaves_nothing_frozen(root: Path, *, advances: bool) -> None:
    """A process that freezes a base and is killed: the next task, or the next checkpoint, takes the base as it is."""
    advance(root, 2)
    with subprocess.Popen(
        [sys.executable, "-c", FREEZER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        number, pages = json.loads(process.stdout.readline())
        assert number > 0
        assert pages > 3
        assert freeze_base(root, QUERY, 0) is None
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
    version = 3 if advances else 2
    size_bytes = next(root.glob("*/*/base")).stat().st_size
    assert advance(root, version) == ("caught_up" if advances else "current")
    assert next(root.glob("*/*/base")).stat().st_size == size_bytes, "pages were copied aside for a dead process"
    check_table(written(frozen_of(root)), version)
