"""Faults and kills at every call of a sink and at every step of a directory: a recovery never gives wrong content, and
an old checkpoint never vanishes before a newer one is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from spe_adapter.checkpoint.directory_sink import DirectorySink
from spe_adapter.checkpoint.errors import SinkFailed
from spe_adapter.checkpoint.manager import CheckpointManager, ManagerTools
from spe_adapter.checkpoint.manifest import Manifest
from spe_adapter.checkpoint.names import MANIFEST, CheckpointName, Unit
from spe_adapter.checkpoint.recovery import Finder
from spe_adapter.checkpoint.sinks import FileContent
from spe_adapter.checkpoint.steps import CheckpointState
from tests.checkpoint.state import UNIT, PagedState, manager_of, recovered

SEED = 41
EPOCHS = 3


class Killed(BaseException):
    """The process ends here: nothing of it runs any more."""


class Counter:
    """Counts steps, and raises at one of them."""

    def __init__(self, at: int, error: Callable[[], BaseException]) -> None:
        self.at, self.error = at, error
        self.count = 0
        self.happened = ""

    def __call__(self, what: str) -> None:
        """A step is about to be taken."""
        self.count += 1
        if self.count == self.at:
            self.happened = what
            raise self.error()


class FaultySink:
    """A sink whose calls can fail before, or after, they are carried out."""

    def __init__(self, inner: DirectorySink, before: Counter, after: Counter) -> None:
        self.inner, self.before, self.after = inner, before, after
        self.url = inner.url

    def claim(self, name: CheckpointName) -> None:
        """As the sink does."""
        self.before("claim")
        self.inner.claim(name)
        self.after("claim")

    def write(self, name: CheckpointName, file: str, content: FileContent) -> tuple[str, ...]:
        """As the sink does."""
        self.before("write")
        hosts = self.inner.write(name, file, content)
        self.after("write")
        return hosts

    def seal(self, name: CheckpointName, manifest: bytes) -> None:
        """As the sink does."""
        self.before("seal")
        self.inner.seal(name, manifest)
        self.after("seal")

    def manifest(self, name: CheckpointName) -> bytes | None:
        """As the sink does."""
        self.before("manifest")
        return self.inner.manifest(name)

    def read(self, name: CheckpointName, file: str) -> Iterator[bytes]:
        """As the sink does."""
        self.before("read")
        return self.inner.read(name, file)

    def is_there(self) -> bool:
        """As the sink does."""
        return self.inner.is_there()

    def names(self) -> list[CheckpointName]:
        """As the sink does."""
        self.before("names")
        return self.inner.names()

    def files(self, name: CheckpointName) -> Mapping[str, int]:
        """As the sink does."""
        return self.inner.files(name)

    def remove(self, name: CheckpointName) -> None:
        """As the sink does."""
        self.before("remove")
        self.inner.remove(name)
        self.after("remove")

    def close(self) -> None:
        """Nothing is open."""


def never() -> Counter:
    """Nothing happens."""
    return Counter(0, lambda: AssertionError())


def run(state: PagedState, manager: CheckpointManager, root: Path, newest: int) -> int:
    """Some epochs with a checkpoint each; the newest epoch that was acknowledged. Recoveries are exact meanwhile."""
    for _ in range(EPOCHS):
        outcome = manager.checkpoint()
        assert all(frozen.released for frozen in state.frozen)
        if outcome.is_complete:
            newest = state.epoch
        check(state, root, newest)
        state.change(2)
    return newest


def check(state: PagedState, root: Path, newest: int) -> None:
    """A recovery gives exactly a version that is at least as new as the newest acknowledged one."""
    found = recovered(root)
    if newest:
        assert found is not None
        assert found[0] >= newest
    if found is not None:
        assert found[1] == state.versions[found[0]]


def test_each_call_of_the_sink_may_fail(tmp_path: Path) -> None:
    """A call that fails, carried out or not, costs at most the checkpoint; the next ones are written."""
    at = 1
    for when in ("before", "after"):
        at = 1
        while True:
            root = tmp_path / f"{when}{at}"
            state = PagedState(9, Random(SEED))
            counter = Counter(at, lambda: SinkFailed("the sink failed"))
            sink = DirectorySink(root)
            faulty = FaultySink(sink, *((counter, never()) if when == "before" else (never(), counter)))
            manager = CheckpointManager(UNIT, state.freeze, ManagerTools(faulty))
            newest = run(state, manager, root, 0)
            newest = run(state, manager, root, newest)
            assert newest >= 2 * EPOCHS - 1  # the last call of all may be the one that fails
            if not counter.happened:
                break
            at += 1
        assert at > 10, f"only {at} calls {when}"


@pytest.mark.crash
def test_a_kill_at_every_step_of_a_directory(tmp_path: Path) -> None:
    """After a kill at any step a new manager goes on, and what was acknowledged before is recovered exactly."""
    at = 1
    while True:
        root = tmp_path / str(at)
        state = PagedState(9, Random(SEED))
        counter = Counter(at, Killed)
        manager = manager_of(state, root, counter)
        newest = 0
        try:
            while state.epoch <= EPOCHS:
                if manager.checkpoint().is_complete:
                    newest = state.epoch
                state.change(2)
        except Killed:
            check(state, root, newest)
            state.change(2)
            newest = run(state, manager_of(state, root), root, newest)
            assert newest == state.epoch - 1
        if not counter.happened:
            break
        at += 1
    print(f"{at - 1} steps")
    assert at > 25


def damages(random: Random, path: Path) -> str:
    """Change a file in one of the ways that disks and people have."""
    data = path.read_bytes()
    kind = random.choice(("missing", "torn", "flipped", "longer", "empty", "swapped"))
    if kind == "missing":
        path.unlink()
    elif kind == "torn":
        path.write_bytes(data[: random.randrange(len(data))])
    elif kind == "flipped":
        place = random.randrange(len(data))
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << random.randrange(8))]) + data[place + 1 :])
    elif kind == "longer":
        path.write_bytes(data + b"x")
    elif kind == "empty":
        path.write_bytes(b"")
    else:
        others = [other for other in path.parents[1].rglob(path.name) if other != path]
        if not others:
            path.unlink()
        else:
            shutil.copy(random.choice(sorted(others)), path)
    return f"{path.parent.name}/{path.name} {kind}"


@pytest.mark.parametrize("seed", range(8))
def test_damaged_files_never_give_wrong_content(tmp_path: Path, seed: int) -> None:
    """Whatever files are damaged, a recovery gives an exact version, or none; undamaged newest ones are found."""
    random = Random(seed)
    print(f"seed {seed}")
    refused: list[object] = []

    def report(event: object, /, **fields: object) -> None:
        refused.append((event, fields))

    state = PagedState(30, random)
    manager = manager_of(state, tmp_path / "whole")
    for _ in range(random.randrange(2, 6)):
        manager.checkpoint()
        state.change(random.randrange(1, 4))
    for attempt in range(15):
        root = tmp_path / str(attempt)
        shutil.copytree(tmp_path / "whole", root)
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "CLAIM")
        what = [damages(random, random.choice(files)) for _ in range(1) if files]
        found = recovered(root, finder=Finder(DirectorySink(root), report=report))
        print(what, found and found[0])
        if found is not None:
            assert found[1] == state.versions[found[0]]
        # A recovery that passes over a damaged checkpoint says so; one without its manifest is not complete.
        newest = max(state.versions) - 1
        if found is None or found[0] < newest:
            assert refused or not [*root.glob(f"*/{MANIFEST}")] or "missing" in what[0] or "MANIFEST" in what[0]
        refused.clear()


def test_the_line_about_damage_names_the_file_and_the_reason(tmp_path: Path) -> None:
    """One line for each checkpoint that is passed over; the one before is used."""
    state = PagedState(30, Random(SEED))
    manager = manager_of(state, tmp_path)
    manager.checkpoint()
    state.change()
    manifest = manager.checkpoint().manifest
    assert manifest is not None
    path = tmp_path / str(manifest.name) / "000"
    path.write_bytes(path.read_bytes()[:-1])
    lines: list[tuple[str, Mapping[str, object]]] = []
    finder = Finder(DirectorySink(tmp_path), report=lambda event, /, **fields: lines.append((event.name, fields)))
    assert recovered(tmp_path, finder=finder) == (1, state.versions[1])
    (refusal, loaded) = lines
    assert refusal[0] == "checkpoint_refused"
    assert f"{manifest.name}/000" in str(refusal[1]["error"])
    assert "ends after" in str(refusal[1]["error"])
    assert loaded[0] == "checkpoint_loaded"


class LostRegistry:
    """A registry that has forgotten everything, or lists what is not there."""

    def __init__(self, seqs: list[int]) -> None:
        self.seqs = seqs

    def register(self, manifest: Manifest, sink_url: str) -> None:
        """Forget."""

    def complete(self, unit: Unit) -> list[int]:
        """What it believes."""
        return self.seqs

    def remove(self, unit: Unit, seq: int) -> None:
        """Forget."""


@pytest.mark.parametrize("seqs", [[], [1], [99, 98], [0, -5, 10**12]])
def test_a_registry_that_is_wrong_is_no_harm(tmp_path: Path, seqs: list[int]) -> None:
    """The newest checkpoint is found by listing, whatever the registry says."""
    state = PagedState(10, Random(SEED))
    manager = manager_of(state, tmp_path)
    manager.checkpoint()
    state.change()
    manager.checkpoint()
    finder = Finder(DirectorySink(tmp_path), LostRegistry(seqs))
    assert recovered(tmp_path, finder=finder) == (2, state.versions[2])


def test_a_cancelled_freeze_fails_the_checkpoint_alone(tmp_path: Path) -> None:
    """If the frozen pages are gone while they are read, the checkpoint fails, and the next one is written."""
    state = PagedState(10, Random(SEED))
    cancelled = True

    def freeze(since: object) -> object:
        snapshot = state.freeze(since)
        if cancelled:
            state.frozen[-1].read = gone  # type: ignore[method-assign,assignment]
        return snapshot

    def gone(ids: object) -> object:
        raise SinkFailed("the freeze was cancelled")

    manager = CheckpointManager(UNIT, freeze, ManagerTools(DirectorySink(tmp_path)))  # type: ignore[arg-type]
    assert manager.checkpoint().state is CheckpointState.FAILED
    assert recovered(tmp_path) is None
    cancelled = False
    assert manager.checkpoint().is_complete
    assert recovered(tmp_path) == (1, state.versions[1])


def test_a_full_directory_is_said_so(tmp_path: Path) -> None:
    """A bound on the size of files stands for a full disk: the error names the file, and nothing is left half done."""
    import resource
    import signal

    state = PagedState(2000, Random(SEED))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        outcome = manager_of(state, tmp_path).checkpoint()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert outcome.state is CheckpointState.FAILED
    assert "free some space" in outcome.error
    assert recovered(tmp_path) is None
    assert not os.listdir(tmp_path)


def test_what_is_no_file_is_damaged_and_not_waited_for(tmp_path: Path) -> None:
    """A pipe, a link, a file that is longer than its manifest says, in place of files: the checkpoint before counts,
    and no more is read than the manifest says.
    """
    state = PagedState(20, Random(SEED))
    manager = manager_of(state, tmp_path)
    first = manager.checkpoint().manifest
    state.change(20)
    second = manager.checkpoint().manifest
    assert first is not None
    assert second is not None
    wanted = state.versions[1]
    chunk, sealed = tmp_path / str(second.name) / "000", tmp_path / str(second.name) / "MANIFEST"
    content = chunk.read_bytes()
    for file in (chunk, sealed):
        kept = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        assert recovered(tmp_path) == (1, wanted)
        file.unlink()
        file.symlink_to("/dev/zero")
        assert recovered(tmp_path) == (1, wanted)
        file.unlink()
        file.write_bytes(kept)
    with chunk.open("ab") as longer:
        longer.truncate(1 << 40)
    assert recovered(tmp_path) == (1, wanted)
    chunk.write_bytes(content)
    with sealed.open("ab") as longer:
        longer.truncate(1 << 40)
    assert recovered(tmp_path) == (1, wanted)
