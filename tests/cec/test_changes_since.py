"""What changed since a version, against the naive model."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spe_adapter.cec.changes_since import ChangesSince, EpochChanges
from tests.cec.histories import histories, pieces_of
from tests.cec.model import QUERY, Identity, Model, Window, identities_of, windows_of
from tests.support.examples import examples

A: Identity = (b"a", 0)
EXAMPLES = examples(40)


def attempt_of(model: Model, epoch: int) -> str:
    """Who won an epoch, as BEGIN has it."""
    mark = model.states[epoch].mark
    assert mark is not None
    return f"{mark.partition}:{mark.attempt}"


def scan(pieces: list[bytes], since: ChangesSince) -> tuple[EpochChanges, ...] | None:
    """What a whole scan finds."""
    for piece in pieces:
        if since.feed(piece):
            break
    return since.finish()


def apply(live: dict[Identity, Window], deltas: tuple[EpochChanges, ...]) -> dict[Identity, Window]:
    """A state with some deltas applied."""
    live = dict(live)
    for delta in deltas:
        for rows in delta.tombstones:
            for identity in identities_of(rows):
                del live[identity]
        for rows in delta.footprints:
            live.update(windows_of(rows))
    return live


def way(model: Model, known: int, wanted: int) -> tuple[int, ...] | None:
    """The epochs behind a known version up to the wanted one, or None if it is no ancestor or a rebase lies between."""
    lineage = model.states[wanted].lineage
    if known not in lineage:
        return None
    behind = lineage[lineage.index(known) + 1 :]
    for epoch in behind:
        mark = model.states[epoch].mark
        assert mark is not None
        if mark.rebase:
            return None
    return behind


@given(st.data())
@settings(max_examples=EXAMPLES)
def test_deltas_lead_from_any_version_to_any_later_one(data: st.DataObject) -> None:
    """Where the known version is an ancestor, its state and the deltas give the wanted state; elsewhere None."""
    model = data.draw(histories(footprint_changes=True))
    epochs = list(model.states)[1:]
    assume(epochs)
    wanted = data.draw(st.sampled_from(epochs))
    known = data.draw(st.sampled_from(epochs))
    attempt = attempt_of(model, known)
    if data.draw(st.booleans()):
        attempt = attempt.partition(":")[2]
    deltas = scan(pieces_of(model, data.draw), ChangesSince(QUERY, known, attempt, as_of=wanted))
    expected = way(model, known, wanted)
    if expected is None:
        assert deltas is None
    else:
        assert deltas is not None
        assert [delta.mark.epoch for delta in deltas] == list(expected)
        assert apply(model.states[known].live, deltas) == model.states[wanted].live


@given(st.data())
@settings(max_examples=EXAMPLES)
def test_another_attempt_is_no_ancestor(data: st.DataObject) -> None:
    """The same epoch from an execution that was not the one decided: its state is another."""
    model = data.draw(histories(footprint_changes=True))
    epochs = list(model.states)[1:]
    assume(epochs)
    known = data.draw(st.sampled_from(epochs))
    assert scan(pieces_of(model, data.draw), ChangesSince(QUERY, known, "3:lost")) is None
    assert scan(pieces_of(model, data.draw), ChangesSince(QUERY, known, "lost")) is None


@given(st.data())
@settings(max_examples=EXAMPLES)
def test_a_version_that_was_trimmed_away_is_no_ancestor(data: st.DataObject) -> None:
    """Deltas are whole or none."""
    model = data.draw(histories(footprint_changes=True))
    epochs = list(model.states)[1:]
    assume(epochs)
    known = data.draw(st.sampled_from(epochs))
    start = data.draw(st.integers(0, len(model.log)))
    deltas = scan(pieces_of(model, data.draw, start=start), ChangesSince(QUERY, known, attempt_of(model, known)))
    if deltas is not None:
        assert apply(model.states[known].live, deltas) == model.state.live or model.reset_to is not None


def three_epochs() -> Model:
    """One window, changed in three epochs."""
    model = Model(9, footprint_changes=True)
    for value in (1, 2, 3):
        model.epoch([(A, value)], attempt=f"t{value}")
    return model


def test_too_many_tuples_are_not_worth_it() -> None:
    """Above the limit the answer is None, at once."""
    model = three_epochs()
    pieces = [stored.data for stored in reversed(model.log)]
    since = ChangesSince(QUERY, 0, "3:t1", limit_tuples=1)
    assert scan(pieces, since) is None
    assert since.scanned.footprints == 2
    assert scan(pieces, ChangesSince(QUERY, 0, "3:t1", limit_tuples=2)) is not None


@pytest.mark.parametrize(("known", "epochs"), [(4, []), (2, [4]), (0, [2, 4])])
def test_the_newest_version_needs_nothing(known: int, epochs: list[int]) -> None:
    """The known version's own mark ends the scan: its footprints are not read."""
    model = three_epochs()
    since = ChangesSince(QUERY, known, f"t{known // 2 + 1}")
    deltas = scan([stored.data for stored in reversed(model.log)], since)
    assert deltas is not None
    assert [delta.mark.epoch for delta in deltas] == epochs
    assert since.scanned.footprints == len(epochs)


def test_feeding_what_is_done_changes_nothing() -> None:
    """A scan that is done looks at nothing more."""
    model = three_epochs()
    pieces = [stored.data for stored in reversed(model.log)]
    since = ChangesSince(QUERY, 4, "3:t3")
    assert [since.feed(piece) for piece in pieces][1:] == [True] * (len(pieces) - 1)
    assert since.done
    assert since.result == ()
