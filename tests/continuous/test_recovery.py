"""Whatever dies, and whenever: what the recovered runner writes, and its state, equal the uninterrupted run's, exactly.

Random operators, data, policies and epoch sizes on a simulated disk; the runner is killed at port calls, power is cut
at disk calls, or both; upstream trims its streams as far as it is told that it may.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from spe_adapter.continuous.loop import Recovered
from tests.continuous.fragments import OPERATORS, POLICIES
from tests.continuous.stories import Story, tell
from tests.continuous.world import Faults
from tests.support.examples import examples

EXAMPLES = examples(6, long=333)
"""A story takes about a tenth of a second, three of them make an example."""

seeds = st.integers(0, 2**32 - 1)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """What is run, on which input."""
    operator = draw(st.sampled_from(sorted(OPERATORS)))
    two = ("left", "right")
    return Story(
        seed=draw(seeds),
        operator=operator,
        policy=draw(st.sampled_from(sorted(POLICIES))),
        sources=two if operator == "join" else draw(st.sampled_from([("in",), two])),
        filtered=draw(st.booleans()),
        batches=draw(st.integers(1, 40)),
        keys=draw(st.sampled_from([1, 5, 40, 1000])),
        epoch_records=draw(st.integers(5, 120)),
        in_flight=draw(st.integers(1, 2)),
    )


def check(story: Story, faults: Faults) -> None:
    """The promise."""
    whole = tell(story)
    broken = tell(story, faults)
    assert broken.results == whole.results
    assert broken.state == whole.state
    assert broken.recovered == whole.state


@settings(max_examples=EXAMPLES)
@given(stories(), seeds)
def test_a_runner_that_is_killed_goes_on_exactly(story: Story, seed: int) -> None:
    """kill −9 of the runner before or behind any call of its port, many times in one story."""
    random = Random(seed)
    calls = tell(story).counts.port_calls
    numbers = random.sample(range(1, 2 * calls), min(random.randint(1, 12), 2 * calls - 1))
    check(story, Faults(kill_before=frozenset(numbers[::2]), kill_behind=frozenset(numbers[1::2])))


@settings(max_examples=EXAMPLES)
@given(stories(), seeds, st.booleans())
def test_a_power_cut_anywhere_changes_nothing(story: Story, seed: int, survives: bool) -> None:
    """The store loses power at any of its disk calls, recoveries included; the runner dies with it, or waits for it."""
    random = Random(seed)
    calls = tell(story).counts.disk_calls
    power = random.sample(range(1, 2 * calls), min(random.randint(1, 12), 2 * calls - 1))
    check(story, Faults(power=frozenset(power), survives=survives))


@settings(max_examples=EXAMPLES)
@given(stories(), seeds)
def test_disk_errors_end_runners_and_change_nothing(story: Story, seed: int) -> None:
    """Writes and syncs fail: an epoch that cannot be committed ends the runner, and the next one repeats it."""
    random = Random(seed)
    calls = tell(story).counts.disk_calls
    failing = frozenset(random.choices(range(1, calls + 1), k=random.randint(1, 6)))
    check(story, Faults(failing=failing))


@settings(max_examples=EXAMPLES // 2)
@given(seeds)
def test_windows_that_never_change_need_no_replay(seed: int) -> None:
    """A join recovers from its footprints alone, and upstream may trim all that was read."""
    story = Story(seed, "join", "no checks", ("left", "right"), batches=15)
    calls = tell(story).counts.port_calls
    kills = Random(seed).sample(range(1, calls), min(8, calls - 1))
    broken = tell(story, Faults(kill_before=frozenset(kills)))
    assert not any(event.replayed_records for event in broken.counts.events if isinstance(event, Recovered))
    check(story, Faults(kill_before=frozenset(kills)))


@settings(max_examples=EXAMPLES)
@given(stories(), seeds)
def test_everything_at_once(story: Story, seed: int) -> None:
    """Runner and store die independently of each other, again and again."""
    random = Random(seed)
    counts = tell(story).counts
    kills = random.choices(range(1, 2 * counts.port_calls), k=8)
    power = random.choices(range(1, 2 * counts.disk_calls), k=8)
    check(
        story,
        Faults(frozenset(kills[:4]), frozenset(kills[4:]), frozenset(power), survives=random.random() < 0.5),
    )
