"""Copy slots in the plan of a coordinator: no I/O, times come in."""

from __future__ import annotations

from random import Random

import pytest

from logstore.base.copy_slots import SLOT_MS
from scheduler.coordinator.copy_slots import FORGET_MS, LEAST_MS, UNTOLD_MS, CopySlots, Event, SlotCall
from scheduler.peace.online import OnlineScheduler, Settings, Submission
from scheduler.peace.online.records import EventOutcome
from scheduler.peace.paper import PaperPlanner
from scheduler.topology import Server, Topology

SURE_MS = 2_500


class Plan:
    """A plan with slots, and what of it is stored and told to others."""

    def __init__(self, max_waiting: int = 100) -> None:
        topology = Topology([Server(name, "rack", 2, 2, 1) for name in "abcd"])
        settings = Settings(max_waiting=max_waiting, max_remembered=0)
        self.scheduler = OnlineScheduler(topology, PaperPlanner(topology), settings, Random(1))
        self.now_ms = 1_000
        self.slots = CopySlots(self.change, lambda: self.now_ms)
        self.others: list[EventOutcome] = []
        self._numbers = {"": 0}

    def change(self, event: Event) -> EventOutcome:
        """See CopySlots."""
        outcome = event(self.scheduler)
        self.others.append(self.slots.apart(outcome))
        return outcome

    def ask(self, target: str, wanted: str, held: str = "", needy: str = "", life: str = "1") -> dict[str, int]:
        """A host asks, and is told."""
        number = self._numbers[target + life] = self._numbers.get(target + life, 0) + 1
        call = SlotCall(target, life, number, wanted, held, [(needy[0], needy[1])] if needy else [])
        assert self.slots.ask(call) == ()
        return self.slots.tell(call, SURE_MS)

    def used(self, name: str) -> int:
        """Tokens of a disk that are in use."""
        return sum(use.used for use in self.scheduler.status().uses if (use.resource, use.name) == ("disk", name))


def test_a_slot_holds_both_disks_until_it_ends() -> None:
    """It lasts for as long as was told, or until its host has it no more; then another one has its turn."""
    plan = Plan()
    assert plan.ask("b", "a") == {"a": SLOT_MS}
    assert (plan.used("a"), plan.used("b")) == (1, 1)
    assert plan.ask("c", "a") == {}
    plan.now_ms += 500
    assert plan.ask("b", "a", held="a") == {"a": SLOT_MS - 500}, "an answer that was lost is repeated, not extended"
    plan.now_ms += SLOT_MS - 501
    assert plan.ask("c", "a") == {}
    plan.now_ms += 1
    assert plan.ask("c", "a") == {"a": SLOT_MS}
    assert plan.ask("b", "a") == {}, "its turn is behind that of the other"
    assert plan.ask("c", "", held="") == {}
    assert plan.ask("b", "a") == {"a": SLOT_MS}
    assert all(outcome == EventOutcome() for outcome in plan.others), "nothing of it is stored or told to clients"
    assert plan.slots.told == 3


def test_a_slot_is_told_for_no_longer_than_is_sure() -> None:
    """And not at all where that is hardly anything."""
    plan = Plan()
    call = SlotCall("b", "1", 1, "a", "")
    plan.slots.ask(call)
    assert plan.slots.tell(call, LEAST_MS - 1) == {}
    assert plan.slots.tell(call, LEAST_MS) == {"a": LEAST_MS}
    assert plan.slots.left_ms == LEAST_MS
    plan.now_ms += LEAST_MS
    assert plan.slots.left_ms == 0


def test_what_is_not_fetched_ends_and_what_is_not_wanted_is_forgotten() -> None:
    """A host that is away holds tokens for UNTOLD_MS, and a place in the queue for FORGET_MS."""
    plan = Plan()
    assert plan.slots.ask(SlotCall("b", "0", 1, "a", "")) == ()
    plan.ask("c", "a")
    assert plan.used("b") == 1
    plan.now_ms += UNTOLD_MS
    plan.slots.end_over()
    assert (plan.used("b"), plan.used("c")) == (0, 1), "the next one has its turn"
    plan.now_ms += UNTOLD_MS
    plan.slots.end_over()
    assert plan.used("a") == 0
    plan.ask("b", "a")
    plan.ask("c", "a")
    assert plan.slots.counts == (1, 1)
    plan.now_ms += FORGET_MS
    plan.slots.end_over()
    assert plan.slots.counts == (0, 0)


def test_an_old_call_changes_nothing() -> None:
    """A call that was given up, and comes late, does not end the slot that a later one was told of."""
    plan = Plan()
    late = SlotCall("b", "1", 1, "a", "")
    plan.ask("b", "a")
    assert plan.ask("b", "a") == {"a": SLOT_MS}
    assert plan.slots.ask(late) is None
    assert plan.used("a") == 1
    assert plan.ask("b", "a", held="a") == {"a": SLOT_MS}
    assert plan.ask("b", "a", life="2") == {"a": SLOT_MS}, "another life of the host begins anew"


def test_a_full_queue_makes_slots_wait_and_what_has_no_path_needs_none() -> None:
    """Copies wait at the least rate while the queue is full; those that the network never carries are not planned."""
    plan = Plan(max_waiting=1)
    assert plan.ask("b", "a") == {"a": SLOT_MS}
    assert plan.ask("c", "d") == {}
    plan.scheduler.host_lost("d", plan.now_ms)
    plan.now_ms += SLOT_MS
    assert plan.slots.ask(SlotCall("c", "9", 1, "d", "")) == ("d",)
    assert plan.slots.ask(SlotCall("c", "9", 2, "c", "")) == ("c",), "a host is no source of its own"


def test_a_lost_host_takes_its_slots_along() -> None:
    """As chunks; and a plan that is made anew begins without slots."""
    plan = Plan()
    plan.ask("b", "a")
    plan.ask("c", "d")
    plan.change(lambda scheduler: scheduler.host_lost("a", plan.now_ms))
    assert plan.slots.counts == (1, 0)
    plan.change(lambda scheduler: scheduler.host_lost("c", plan.now_ms))
    assert plan.slots.counts == (0, 0)
    plan.change(lambda scheduler: scheduler.host_back("a", plan.now_ms))
    assert plan.ask("b", "a") == {"a": SLOT_MS}
    plan.slots.forget()
    assert plan.slots.counts == (0, 0)


def test_a_pair_that_becomes_needy_gets_another_place() -> None:
    """A slot that waits goes in front of others when its pair has the last copy of a chunk, and only then."""
    plan = Plan()
    plan.ask("b", "a")
    assert plan.ask("c", "a") == plan.ask("d", "a") == {}
    assert plan.ask("d", "a", needy="ad") == {}
    plan.now_ms += SLOT_MS
    assert plan.ask("c", "a") == {}
    assert plan.ask("d", "a") == {"a": SLOT_MS}


@pytest.mark.parametrize("seed", range(20))
def test_slots_and_chunks_never_use_more_than_there_is(seed: int) -> None:
    """Whatever hosts ask, and lose: as hosts count it, no disk has two things at a time."""
    random, plan, waiting = Random(seed), Plan(), 0
    held: dict[tuple[str, str], int] = {}
    chunks: dict[str, tuple[int, tuple[str, ...]]] = {}
    for number in range(400):
        plan.now_ms += random.randrange(200)
        plan.slots.end_over()
        held = {pair: end_ms for pair, end_ms in held.items() if end_ms > plan.now_ms}
        if random.random() < 0.5:
            target = random.choice("abc")
            wanted = "".join(source for source in "abc" if source != target and random.random() < 0.8)
            has = "".join(source for source, aim in held if aim == target)
            told = plan.ask(target, wanted, has)
            if random.random() < 0.8:
                held = {pair: end_ms for pair, end_ms in held.items() if pair[1] != target}
                held |= {(source, target): plan.now_ms + left_ms * 9 // 10 for source, left_ms in told.items()}
        elif waiting < 4:
            waiting += 1
            submission = Submission(f"r{number}", random.choice("abcd"), 1, 2, ("anywhere", "anywhere"))
            plan.change(lambda scheduler, submission=submission: scheduler.submit(submission, plan.now_ms))  # type: ignore[misc]
        elif chunks:
            name, (attempt, _) = random.choice(sorted(chunks.items()))
            del chunks[name]
            waiting -= 1
            plan.change(lambda scheduler, n=name, a=attempt: scheduler.done(n, 0, a, plan.now_ms))  # type: ignore[misc]
        for outcome in plan.others:
            chunks.update({go.request: (go.attempt, go.hosts) for go in outcome.go})
        plan.others.clear()
        used = [host for pair in held for host in pair] + [host for _, hosts in chunks.values() for host in hosts[1:]]
        assert len(used) == len(set(used)), (held, chunks)
