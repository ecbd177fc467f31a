"""A crash before every step that others could see, while a version is reached and while one is published."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spe_adapter.state.files import StateEnvironment
from spe_adapter.state.segment import Tag
from spe_adapter.state.versions import StateDirectory
from tests.state.conftest import OPERATOR, QUERY, SCHEMA, History, Step, Windows, check_marks, note_of, windows_of
from tests.state.history import big_history
from tests.support.examples import examples

LIMIT = 256 * 1024 * 1024
SMALL = 40
LARGE = 3000
"""More than a new base has room for."""


class Crash(BaseException):
    """The process dies here: nothing that only an error would undo is undone."""


class Countdown:
    """A `step` that crashes at the n-th one."""

    def __init__(self, crash_at: int | None) -> None:
        self.crash_at = crash_at
        self.told: list[str] = []

    def __call__(self, what: str) -> None:
        """Be told of a step."""
        if len(self.told) == self.crash_at:
            raise Crash(what)
        self.told.append(what)


class Scenario:
    """A partition of its own for each crash, brought to where the crash shall happen."""

    def __init__(self, root: Path, history: History) -> None:
        self.root = root
        self.history = history
        self.runs = 0

    def directory(self, step: Callable[[str], None] | None = None) -> StateDirectory:
        """The shared state, with a world that tells its steps."""
        world = StateEnvironment() if step is None else StateEnvironment(step=step)
        return StateDirectory(self.root, f"{QUERY} {self.runs}", LIMIT, seed=5, environment=world, lock_limit_s=0.05)

    def check(self, version: int, *, steps: bool = True, step: Callable[[str], None] | None = None) -> str:
        """Open a version, compare it with the model, and say where it came from."""
        tag = self.history.steps[version].tag
        loader = self.history.loader(tag, steps=steps)
        with self.directory(step).open(0, SCHEMA, OPERATOR, tag, loader) as state:
            assert windows_of(state.base) == self.history.at(tag)
            check_marks(state.base, self.history, tag)
            assert state.note == note_of(tag)
            return state.how

    def publish(self, version: int, step: Callable[[str], None] | None = None) -> None:
        """Open the version before and publish a delta to this one."""
        steps = self.history.steps
        wanted = steps[version - 1].tag if version else None
        with self.directory(step).open(0, SCHEMA, OPERATOR, wanted, self.history.loader(wanted)) as state:
            told = steps[version]
            state.publish(told.tag, told.changes(), told.mark(), note_of(told.tag))

    def files(self) -> list[str]:
        """The names of a partition's files."""
        return [path.name for path in self.directory()._storage.directory.path.glob("p0/*")]

    def crash_everywhere(self, prepare: Callable[[], object], crash: Callable[[Countdown], object]) -> list[list[str]]:
        """Run `crash` once for each of its steps, each time in a new place that `prepare` filled; what had been done
        in each run. The last one was let through.
        """
        runs = []
        while True:
            prepare()
            countdown = Countdown(self.runs)
            try:
                crash(countdown)
            except Crash:
                runs.append(countdown.told)
                yield_point(self)
                self.runs += 1
            else:
                return [*runs, countdown.told]


def yield_point(scenario: Scenario) -> None:
    """After a crash any version that may be asked for is right, and nothing piles up."""
    assert scenario.check(1) in ("current", "delta", "caught_up", "loaded")
    assert scenario.check(1) == "current"
    assert scenario.check(2) in ("delta", "caught_up")
    assert [name for name in scenario.files() if name != "base"] == []
    assert scenario.directory().remove()


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_crash_while_a_delta_is_applied(root: Path, count: int) -> None:
    """In place or in a copy: whatever was done of it, the next one who comes makes it whole or does it again, and never
    needs the log for it.
    """
    scenario = Scenario(root, big_history(count))

    def prepare() -> None:
        scenario.check(0)
        scenario.publish(1)

    def crash(countdown: Countdown) -> None:
        assert scenario.check(1, step=countdown) == "delta"

    runs = scenario.crash_everywhere(prepare, crash)
    assert len(runs) > 6
    assert ("publish" in runs[-1]) == (count == LARGE)


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_crash_while_a_delta_is_applied_needs_no_log(root: Path, count: int) -> None:
    """A change in place that was cut off is repaired and done again from the delta alone."""
    scenario = Scenario(root, big_history(count))
    for scenario.runs in range(100):
        scenario.check(0)
        scenario.publish(1)
        countdown = Countdown(scenario.runs)
        try:
            scenario.check(1, step=countdown)
        except Crash:
            assert scenario.check(1, steps=False) in ("delta", "current")
        else:
            break
    assert scenario.runs > 6


def test_a_crash_while_steps_of_the_log_are_applied(root: Path) -> None:
    """Between several steps, and in each of them."""
    scenario = Scenario(root, big_history(SMALL))

    def crash(countdown: Countdown) -> None:
        assert scenario.check(2, step=countdown) == "caught_up"

    runs = scenario.crash_everywhere(lambda: scenario.check(0), crash)
    assert len(runs) > 10


def test_a_crash_while_everything_is_loaded(root: Path) -> None:
    """A base takes its name when it is whole, or not at all."""
    scenario = Scenario(root, big_history(LARGE))
    runs = scenario.crash_everywhere(lambda: None, lambda countdown: scenario.check(1, step=countdown))
    assert "publish" in runs[-1]


def test_a_crash_while_a_delta_is_published(root: Path) -> None:
    """A delta is there whole or not at all, and a version that did not win changes nothing."""
    scenario = Scenario(root, big_history(SMALL))
    runs = scenario.crash_everywhere(lambda: scenario.check(1), lambda countdown: scenario.publish(2, countdown))
    assert "publish" in runs[-1]


def test_another_version_after_a_crash_is_loaded(root: Path) -> None:
    """A base that was cut off on its way to one version is of no use to whoever wants the version before it, or
    another.
    """
    scenario = Scenario(root, big_history(SMALL))
    for wanted in (0, 2):
        scenario.runs = wanted
        scenario.check(0)
        scenario.publish(1)
        with pytest.raises(Crash):
            scenario.check(1, step=lambda what: Countdown(0)(what) if what == "fill" else None)
        assert scenario.check(wanted, steps=False) == "loaded"


class Try(NamedTuple):
    """One attempt at an epoch: what it changes, and after how many steps its process dies (None: it does not)."""

    set: Windows
    closed: frozenset[tuple[bytes | None, int]]
    dies_after: int | None


class Epoch(NamedTuple):
    """Attempts at an epoch, which of them wins (if it gets so far), and what happens to memory before the next."""

    attempts: list[Try]
    winner: int
    forgets: str


identities = st.tuples(st.sampled_from([None, b"", b"a", b"a longer key"]), st.integers(0, 2))
values = st.tuples(st.none() | st.integers(0, 9), st.none() | st.text("xy", max_size=20))
epochs = st.builds(
    Epoch,
    st.lists(
        st.builds(
            Try,
            st.dictionaries(identities, values, max_size=6),
            st.frozensets(identities),
            st.none() | st.integers(0, 14),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 2),
    st.sampled_from(["nothing", "nothing", "nothing", "deltas", "base", "all"]),
)


class Course:
    """A query's epochs, run one after the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.history = History([])
        self.wanted: Tag | None = None

    def run(self, number: int, epoch: Epoch) -> None:
        """All attempts; the last one of those that lived wins if the winner did not live. None living: no epoch."""
        lived: list[Step] = []
        for attempt, tried in enumerate(epoch.attempts):
            step = Step(Tag(number, str(attempt)), tried.set, tuple(tried.closed - tried.set.keys()))
            try:
                self._attempt(step, Countdown(tried.dies_after))
            except Crash:
                continue
            lived.append(step)
        if lived:
            won = lived[min(epoch.winner, len(lived) - 1)]
            self.history.steps.append(won)
            self.wanted = won.tag
        self._forget(epoch.forgets)

    def _attempt(self, step: Step, world_step: Countdown) -> None:
        directory = StateDirectory(
            self.root, QUERY, LIMIT, environment=StateEnvironment(step=world_step), lock_limit_s=0.05
        )
        loader = self.history.loader(self.wanted)
        with directory.open(0, SCHEMA, OPERATOR, self.wanted, loader) as state:
            assert windows_of(state.base) == self.history.at(self.wanted)
            if self.wanted is not None:
                check_marks(state.base, self.history, self.wanted)
                assert state.note == note_of(self.wanted)
            state.publish(step.tag, step.changes(), step.mark(), note_of(step.tag))

    def _forget(self, what: str) -> None:
        for path in self.root.glob("*/p0/*"):
            if what == "all" or ((what == "base") == (path.name == "base") and what != "nothing"):
                path.unlink()


@given(course=st.lists(epochs, max_size=6))
@settings(max_examples=examples(40))
def test_any_course_of_epochs(course: list[Epoch]) -> None:
    """Whatever attempts die where, whichever wins, and whatever memory forgets: every attempt starts from the winner's
    state, and few files remain.
    """
    with TemporaryDirectory() as root:
        run = Course(Path(root))
        for number, epoch in enumerate(course):
            run.run(number, epoch)
            assert len(list(Path(root).glob("*/p0/*"))) <= 10
