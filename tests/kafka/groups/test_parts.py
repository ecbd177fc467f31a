"""The small parts: deadlines by key, and the topics in a subscription."""

from hypothesis import given
from hypothesis import strategies as st

from logstore.kafka.groups.subscription import subscribed_topics
from logstore.kafka.groups.timers import KeyedTimers
from tests.kafka.groups.driver import subscription

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("due"), st.just(0), st.integers(0, 50)),
    ),
    max_size=300,
)


@given(STEPS)
def test_timers_agree_with_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is set, moved and cancelled, what is due is what a naive search finds, in bounded memory."""
    timers: KeyedTimers[int] = KeyedTimers()
    model: dict[int, int] = {}
    for action, key, time in steps:
        if action == "set":
            timers.set(key, time)
            model[key] = time
        elif action == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            due = timers.due(time)
            assert (due is None) == (not model or min(model.values()) > time)
            if due is not None:
                assert model[due] == min(model.values())
                del model[due]
        assert len(timers) == len(model)
        assert timers.next_deadline() == (min(model.values()) if model else None)
        assert len(timers._heap) <= 2 * 6 + 64 + 1


@given(st.lists(st.text(alphabet="abc-._é", max_size=20), max_size=5), st.binary(max_size=30))
def test_topics_of_a_subscription(topics: list[str], more: bytes) -> None:
    """Names are read whatever follows them; cut short anywhere before their end, there is no answer."""
    whole = subscription(*topics)
    assert subscribed_topics(whole + more) == frozenset(topics)
    names_end = len(whole) - 4
    assert all(subscribed_topics(whole[:end]) is None for end in range(names_end))


@given(st.binary(max_size=100))
def test_any_bytes_are_survived(metadata: bytes) -> None:
    """Metadata is the client's own business: whatever it is, nothing is raised."""
    subscribed_topics(metadata)
