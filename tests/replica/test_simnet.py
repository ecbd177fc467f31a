"""The simulated network does what its model says."""

from __future__ import annotations

from typing import Any

from logstore.testing.simnet import NetRules, SimNet


class Recorder:
    """A host that notes what it gets."""

    def __init__(self, net: SimNet) -> None:
        self.net = net
        self.got: list[tuple[int, Any]] = []

    def receive(self, sender: str, message: Any) -> None:
        """A message."""
        self.got.append((self.net.now_us, message))

    def wake(self, reason: Any) -> None:
        """A timer."""
        self.got.append((self.net.now_us, reason))

    @property
    def contents(self) -> list[Any]:
        """What came, without the times."""
        return [content for _, content in self.got]


def network(seed: int = 1, rules: NetRules | None = None) -> tuple[SimNet, Recorder, Recorder]:
    """Hosts a and b."""
    net = SimNet(seed, rules)
    first, second = Recorder(net), Recorder(net)
    net.start("a", first)
    net.start("b", second)
    return net, first, second


def test_a_message_takes_time_and_may_overtake() -> None:
    """Delays are within the rules; with different delays the order is not that of sending."""
    net, _, b = network(rules=NetRules(min_delay_us=100, max_delay_us=900))
    for number in range(50):
        net.send("a", "b", number)
    net.run(1_000)
    assert sorted(b.contents) == list(range(50))
    assert b.contents != list(range(50))
    assert all(100 <= at_us <= 900 for at_us, _ in b.got)


def test_messages_are_lost_and_repeated_by_the_rules() -> None:
    """About as often as asked for; a message to oneself never."""
    net, a, b = network(rules=NetRules(loss=0.3, repetition=0.3))
    for number in range(1_000):
        net.send("a", "b", number)
        net.send("a", "a", number)
    net.run(10_000)
    assert 200 < net.lost < 400
    assert 100 < net.repeated < 300
    assert len(b.got) == 1_000 - net.lost + net.repeated
    assert a.contents == list(range(1_000))


def test_a_cut_is_one_way() -> None:
    """The other direction passes; healing ends all cuts, mending those of a host. What is under way is cut as well."""
    net, a, b = network()
    net.send("a", "b", "under way")
    net.cut("a", "b")
    net.send("b", "a", "back")
    net.run(2_000)
    assert (a.contents, b.contents) == (["back"], [])
    net.isolate("a")
    net.send("b", "a", "lost")
    net.run(2_000)
    net.mend("a")
    net.send("a", "b", "passes")
    net.run(2_000)
    assert (a.contents, b.contents) == (["back"], ["passes"])
    assert net.blocked == 2


def test_a_paused_host_gets_everything_later() -> None:
    """Messages and timers wait in their order until it resumes."""
    net, _, b = network(rules=NetRules(min_delay_us=100, max_delay_us=100))
    net.pause("b")
    net.after("b", 50, "timer")
    net.send("a", "b", "first")
    net.send("a", "b", "second")
    net.run(5_000)
    assert (b.got, net.is_paused("b")) == ([], True)
    net.resume("b")
    net.run(1)
    assert b.contents == ["timer", "first", "second"]


def test_a_crash_ends_timers_but_not_messages() -> None:
    """The next life gets no timer of the last one, and may get what was sent to it."""
    net, _, b = network()
    net.after("b", 500, "timer")
    net.send("a", "b", "late")
    net.crash("b")
    net.send("a", "b", "to nobody")
    reborn = Recorder(net)
    net.start("b", reborn)
    net.run(2_000)
    assert b.got == []
    assert sorted(reborn.contents) == ["late", "to nobody"]


def test_a_seed_repeats_a_run() -> None:
    """The trace is the same for the same seed and calls, and another one for another seed."""

    def trace(seed: int) -> str:
        net, _, _ = network(seed, NetRules(loss=0.2, repetition=0.2, slowness=0.2))
        for number in range(100):
            net.send("a", "b", number)
        net.run(100_000)
        return net.trace

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)
