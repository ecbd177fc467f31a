"""Reconstruction against a naive model, over random histories; and its errors, one by one."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import CorruptBatch, UnsupportedBatchFormat
from logstore.format.batch import CRC_START, patch_base
from logstore.format.control import encode_control
from spe_adapter.cec.control import End, Mark, encode_footprints, encode_mark
from spe_adapter.cec.reconstruct import EventualCheckpoint, Reconstruction
from spe_adapter.errors import StateInconsistent, StateTrimmed
from tests.cec.histories import histories, pieces_of
from tests.cec.model import QUERY, Footprint, Identity, Model, Window, footprint_rows, windows_of
from tests.support.examples import examples

A: Identity = (b"a", 0)
B: Identity = (b"b", 0)
EXAMPLES = examples(40)


def scan(pieces: list[bytes], as_of: int | None = None, log_start_offset: int = 0) -> EventualCheckpoint:
    """What a whole scan finds."""
    reconstruction = Reconstruction(QUERY, as_of, seed=1)
    for piece in pieces:
        if reconstruction.feed(piece):
            break
    return reconstruction.finish(log_start_offset)


def footprints_of(eventual: EventualCheckpoint) -> dict[Identity, Footprint]:
    """Windows with their epochs, as the model has them; no window comes twice."""
    found: dict[Identity, Footprint] = {}
    for windows in eventual.windows:
        for rows in windows.batches:
            for identity, state in windows_of(rows).items():
                assert identity not in found
                found[identity] = Footprint(windows.mark.epoch, state)
    return found


def skips_of(eventual: EventualCheckpoint) -> dict[Identity, int]:
    """Skips as the model has them; no identity comes twice."""
    skips = eventual.skips
    identities = list(zip(skips.keys.to_pylist(), skips.numbers.tolist(), strict=True))
    assert len(set(identities)) == len(identities)
    return dict(zip(identities, skips.epochs.tolist(), strict=True))


def check(model: Model, eventual: EventualCheckpoint, epoch: int) -> None:
    """Everything in a result is as the model says."""
    state = model.states[epoch]
    assert eventual.found
    assert eventual.end is not None
    assert eventual.end.epoch == epoch
    assert eventual.mark == state.mark
    assert footprints_of(eventual) == state.footprints
    assert eventual.oldest_epoch == model.oldest_epoch(epoch)
    assert skips_of(eventual) == model.skips(epoch)
    wanted = [epoch for epoch in state.lineage if epoch >= eventual.oldest_epoch]
    assert [mark.epoch for mark in eventual.marks] == wanted
    assert eventual.marks == tuple(model.states[epoch].mark for epoch in wanted)
    assert eventual.scanned.oldest_offset == model.needed_offset(epoch)


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_the_newest_state_is_found(data: st.DataObject) -> None:
    """Windows, skips, T, marks and the end of the scan are the model's, whatever happened and however it is fed."""
    model = data.draw(histories())
    eventual = scan(pieces_of(model, data.draw))
    assert eventual.newest_epoch == (model.newest_epoch if len(model.states) > 1 else None)
    if len(model.states) == 1:
        assert not eventual.found
        assert eventual.mark is None
        assert not eventual.windows
    else:
        check(model, eventual, model.newest_epoch)


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_the_state_of_every_epoch_is_found(data: st.DataObject) -> None:
    """As of any epoch in the log, undone ones included, the state is the one of that moment."""
    model = data.draw(histories())
    for epoch in list(model.states)[1:]:
        check(model, scan(pieces_of(model, data.draw), as_of=epoch), epoch)


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_an_epoch_that_is_not_there_is_not_found(data: st.DataObject) -> None:
    """Another epoch is never taken for the one that was asked for."""
    model = data.draw(histories())
    asked = data.draw(st.integers(0, 2**42))
    if asked not in model.states:
        eventual = scan(pieces_of(model, data.draw), as_of=asked)
        assert not eventual.found
        assert not eventual.windows
        assert eventual.newest_epoch == (model.newest_epoch if len(model.states) > 1 else None)


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_replay_gives_the_state_of_the_uninterrupted_run(data: st.DataObject) -> None:
    """An eventual checkpoint and the input behind T give the exact state, and no result comes twice."""
    model = data.draw(histories(footprint_changes=False))
    for epoch in list(model.states)[1:]:
        eventual = scan(pieces_of(model, data.draw), as_of=epoch)
        assert model.replay(footprints_of(eventual), skips_of(eventual), epoch) == model.states[epoch].live


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_a_trimmed_log_gives_the_state_or_says_what_is_missing(data: st.DataObject) -> None:
    """If everything needed is still there, trimming changes nothing; otherwise it is an error, never a part of it."""
    model = data.draw(histories())
    if len(model.states) == 1:
        return
    epoch = data.draw(st.sampled_from(list(model.states)[1:]))
    start = data.draw(st.integers(1, len(model.log)))
    pieces = pieces_of(model, data.draw, start=start)
    log_start_offset = model.log[start - 1].offset + 1
    if model.needed_offset(epoch) >= log_start_offset:
        check(model, scan(pieces, epoch, log_start_offset), epoch)
    else:
        with pytest.raises(StateTrimmed):
            scan(pieces, epoch, log_start_offset)


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_windows_can_be_drained_on_the_way(data: st.DataObject) -> None:
    """What is drained between pieces and what the result still has are the whole, each window once."""
    model = data.draw(histories())
    if len(model.states) == 1:
        return
    reconstruction = Reconstruction(QUERY, seed=1)
    drained = []
    for piece in pieces_of(model, data.draw):
        done = reconstruction.feed(piece)
        if data.draw(st.booleans()):
            drained += reconstruction.drain()
        if done:
            break
    eventual = reconstruction.finish(0)
    check(model, replace(eventual, windows=(*drained, *reconstruction.drain())), model.newest_epoch)


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_a_torn_group_is_left_out_whatever_is_wrong_with_it(data: st.DataObject) -> None:
    """Damage in front of the newest END costs what was damaged, and is counted."""
    model = data.draw(histories())
    if len(model.states) == 1:
        return
    model.epoch(data.draw(st.just([(A, 1), (B, 1)])), torn=True)
    tail = 1 + max(index for index, stored in enumerate(model.log) if stored.kind == "end")
    victims = data.draw(st.sets(st.sampled_from(range(tail, len(model.log)))))
    for index in victims:
        stored = model.log[index]
        bit = data.draw(st.integers(8 * CRC_START, 8 * len(stored.data) - 1))
        damaged = bytearray(stored.data)
        damaged[bit // 8] ^= 1 << bit % 8
        model.log[index] = stored._replace(data=bytes(damaged))
    eventual = scan(pieces_of(model, data.draw))
    check(model, eventual, model.newest_epoch)
    assert eventual.scanned.discarded == len(victims)


def two_epochs() -> Model:
    """Two windows, opened in two epochs."""
    model = Model(9, footprint_changes=False)
    model.epoch([(A, 1)])
    model.epoch([(B, 2)])
    return model


def backwards(model: Model) -> bytes:
    """The whole log in one piece."""
    return b"".join(stored.data for stored in reversed(model.log))


@pytest.mark.parametrize("back", [-1, 0, 2])
def test_a_reset_behind_a_reset(back: int) -> None:
    """What the older of two resets undid stays undone, whatever the newer one does."""
    model = two_epochs()
    model.epoch([(A, 7), (B, 7)], checks=2)
    model.reset(back)
    model.epoch([(B, 1)])
    kept = model.newest_epoch
    model.epoch([(A, 5)], checks=2)
    model.reset(kept)
    model.epoch([(A, 3)])
    for epoch in list(model.states)[1:]:
        check(model, scan([backwards(model)], as_of=epoch), epoch)
    check(model, scan([backwards(model)]), model.newest_epoch)


def test_every_flipped_bit_inside_a_finished_group_is_found() -> None:
    """Damage behind an END is an error; of the bytes that no checksum covers only the leader epoch may differ, and
    offsets that still fall.
    """
    model = two_epochs()
    expected = scan([backwards(model)])
    for victim in range(2, len(model.log) - 1):
        pieces = [stored.data for stored in reversed(model.log)]
        place = len(model.log) - 1 - victim
        for bit in range(8 * len(pieces[place])):
            damaged = bytearray(pieces[place])
            damaged[bit // 8] ^= 1 << bit % 8
            changed = [*pieces[:place], bytes(damaged), *pieces[place + 1 :]]
            if bit // 8 < 8 or 12 <= bit // 8 < 16:
                with contextlib.suppress(CorruptBatch):
                    assert footprints_of(scan(changed)) == footprints_of(expected)
            else:
                with pytest.raises((CorruptBatch, UnsupportedBatchFormat)):
                    scan(changed)


def test_a_length_that_hides_what_follows_is_an_error_even_in_the_tail() -> None:
    """A torn batch whose length is wrong is not left out together with the finished groups behind it."""
    model = two_epochs()
    model.epoch([(A, 1)], torn=True)
    damaged = bytearray(backwards(model))
    damaged[10] ^= 1
    with pytest.raises(CorruptBatch):
        scan([bytes(damaged)])


def test_no_open_windows_need_nothing_but_the_mark() -> None:
    """N = 0: the scan ends at the mark, T is the last epoch and nothing is to be replayed."""
    model = Model(1, footprint_changes=False)
    model.epoch([(A, 1), (B, 1)])
    reconstruction = Reconstruction(QUERY, seed=1)
    assert reconstruction.feed(model.log[-1].data) is False
    assert reconstruction.feed(model.log[-2].data) is True
    eventual = reconstruction.result
    assert eventual.oldest_epoch == 0
    assert not eventual.windows
    assert not skips_of(eventual)


def test_forwards_is_refused() -> None:
    """A log that is fed from its beginning is an error: an older state would be taken for the newest."""
    model = two_epochs()
    with pytest.raises(CorruptBatch, match="backwards"):
        scan([stored.data for stored in model.log])


def test_a_result_before_its_time_is_refused() -> None:
    """A scan that is not done has no result."""
    with pytest.raises(StateInconsistent):
        _ = Reconstruction(QUERY, seed=1).result


def rewritten(model: Model, kind: str, data: bytes) -> bytes:
    """The log backwards, with the newest batch of that kind replaced."""
    index = max(index for index, stored in enumerate(model.log) if stored.kind == kind and stored.query == QUERY)
    whole = bytearray(data)
    patch_base(whole, 0, model.log[index].offset, 0)
    model.log[index] = model.log[index]._replace(data=bytes(whole))
    return backwards(model)


def newest_mark(model: Model) -> Mark:
    """The mark of the newest epoch."""
    mark = model.states[model.newest_epoch].mark
    assert mark is not None
    return mark


def test_more_windows_than_the_mark_says_is_an_error() -> None:
    """Five footprints in one batch where the mark says two: the log contradicts itself."""
    model = Model(9, footprint_changes=False)
    model.epoch([((b"%d" % index, 0), 1) for index in range(5)])
    log = rewritten(model, "mark", encode_mark(replace(newest_mark(model), open_windows=2), 1))
    with pytest.raises(StateInconsistent, match="says 2 open windows"):
        scan([log])


def test_fewer_windows_than_the_mark_says_is_an_error() -> None:
    """A log that is whole and lacks a window is wrong; one that was trimmed was trimmed too far."""
    model = two_epochs()
    log = rewritten(model, "mark", encode_mark(replace(newest_mark(model), open_windows=3), 1))
    with pytest.raises(StateInconsistent, match="1 of the 3 windows"):
        scan([log])
    with pytest.raises(StateTrimmed, match="1 of the 3 windows"):
        scan([log], log_start_offset=1)


def test_a_rebase_that_lacks_a_window_is_an_error() -> None:
    """What stands in front of a rebase is never looked at: it may be of another layout."""
    model = two_epochs()
    log = rewritten(model, "mark", encode_mark(replace(newest_mark(model), rebase=True), 1))
    with pytest.raises(StateInconsistent, match="holds all windows"):
        scan([log])


def test_records_of_another_epoch_in_a_group_are_an_error() -> None:
    """A group is of one query and one epoch."""
    model = two_epochs()
    rows = footprint_rows([(B, Window(1, 2))])
    log = rewritten(model, "footprints", next(encode_footprints(QUERY, 0, rows, np.ones(1, np.bool_), 1)))
    with pytest.raises(CorruptBatch, match="epoch 0 in the group"):
        scan([log])


def test_state_without_a_mark_is_an_error() -> None:
    """Without N nobody knows how far to go back."""
    model = two_epochs()
    model.log = [stored for stored in model.log if stored.kind != "mark"]
    with pytest.raises(StateInconsistent, match="no mark"):
        scan([backwards(model)])


def test_two_marks_are_an_error() -> None:
    """One partition, one task, one mark."""
    model = two_epochs()
    newest = model.log[-2]
    model.log.insert(len(model.log) - 2, newest._replace(data=_moved(newest.data, newest.offset - 1)))
    model.log.pop(-4)  # whose offset that was
    with pytest.raises(StateInconsistent, match="two marks"):
        scan([backwards(model)])


def test_a_group_without_begin_is_an_error() -> None:
    """Two ENDs with nothing between that opens the newer group."""
    model = two_epochs()
    model.log = [stored for stored in model.log if stored.kind != "begin" or stored.epoch == 0]
    with pytest.raises(CorruptBatch, match="no BEGIN"):
        scan([backwards(model)])


def test_epochs_that_do_not_fall_are_an_error() -> None:
    """An older group with a newer epoch is not this query's history."""
    model = two_epochs()
    index = next(index for index, stored in enumerate(model.log) if stored.kind == "end")
    end = encode_control(End(QUERY, 7, 1, b""), timestamp_ms=1)
    model.log[index] = model.log[index]._replace(data=_moved(end, model.log[index].offset))
    with pytest.raises(StateInconsistent, match="in front of"):
        scan([backwards(model)])


def _moved(data: bytes | bytearray, offset: int) -> bytes:
    whole = bytearray(data)
    patch_base(whole, 0, offset, 0)
    return bytes(whole)
