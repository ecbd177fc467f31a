"""What a write that was given up has left in a chunk never comes back as something else."""

from __future__ import annotations

import pytest

from logstore.errors import StorageFailed
from logstore.format.control import Begin, encode_control
from logstore.log.ticket import Ticket
from logstore.testing.faults import FileCall
from logstore.testing.history import History
from logstore.testing.simdisk import CrashBounds, SimDisk
from logstore.testing.world import ListGroup, Setup, World

pytestmark = pytest.mark.crash


UNIT_BYTES = 64
SIZES = range(10, 200)


def batch_bytes(world: World, value_bytes: int) -> int:
    """How long a batch with such a value is."""
    return len(world.make_batch(world.history.stream("t", 0), 1, value_bytes)[0])


def send(world: World, value_bytes: int) -> None:
    """Append one batch and run to the end."""
    world.append("t", value_bytes=value_bytes)
    world.run()


class GivenUp(ListGroup):
    """A group whose last piece cannot be had."""

    def next_piece(self) -> Ticket[bytearray | None]:
        """The next piece; at the end an error."""
        piece = super().next_piece()
        return Ticket.failed(StorageFailed("its staged data cannot be read")) if piece.result() is None else piece


def test_a_group_given_up_does_not_come_back_behind_its_successor() -> None:
    """The next batch takes exactly BEGIN's place and the power goes before its sync: the group's batches stay gone."""
    disk = SimDisk(unit_bytes=UNIT_BYTES)
    history = History()
    world = World(disk, history, Setup())
    world.create_topic("t", 1)
    world.run()
    known = history.stream("t", 0)
    pieces = [world.make_batch(known, 1, 40)[0] for _ in range(3)]
    begin = Begin("group", 0, 1, ("a",), sum(map(len, pieces)), len(pieces))
    begin_bytes = len(encode_control(begin, timestamp_ms=world.clock.wall_ms()))
    # BEGIN ends where a unit ends, so that a later unit may survive on its own.
    send(world, next(size for size in SIZES if (batch_bytes(world, size) + begin_bytes) % UNIT_BYTES == 0))
    ticket = world.store.stream("t", 0).append_group(GivenUp("group", 0, pieces))
    world.run()
    assert ticket.error is not None
    tried = 0

    def before(call: FileCall) -> None:
        nonlocal tried
        for state in disk.crash_states(CrashBounds(states=1 << 14, file_states=1 << 14)):
            World(state, history.fork(), Setup()).check()
            tried += 1

    disk.before_call = before
    send(world, next(size for size in SIZES if batch_bytes(world, size) == begin_bytes))
    disk.before_call = None
    assert tried
    world.check()
