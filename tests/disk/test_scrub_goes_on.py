"""What must not end the scrub, nor keep it at one chunk for ever."""

from __future__ import annotations

from crc32c import crc32c

from logstore.format.snapshot import BLOCK
from logstore.log.scrubbing import LONGEST_CHUNK_S, PIECE_BYTES, ScrubSettings
from tests.cluster.batches import STREAM
from tests.disk.test_scrub import PERIOD_DAYS, ScrubWorld, in_virtual_time, written_out

LENGTH_AT = 28
"""Of the length of the body, in the header of a snapshot of producers."""


def test_a_producers_state_of_a_newer_version_is_no_damage() -> None:
    """A newer Cairn has written the replica: it is reported, and the walk goes on."""

    async def test() -> None:
        world = ScrubWorld()
        for epoch in (1, 2):
            world.replica(epoch, base_offset=epoch * 100)
        log = world.store.replicas.log(STREAM, 1)
        assert log is not None
        path = log.chunks[0].producers_path
        head = bytearray(world.disk.read(path, 0, BLOCK.size))
        body = world.disk.read(path, BLOCK.size, int.from_bytes(head[LENGTH_AT : LENGTH_AT + 4], "big"))
        head[5] += 1
        head[-4:] = crc32c(body, crc32c(head[:-4])).to_bytes(4, "big")
        world.disk.write(path, 0, [head])
        await world.for_days(PERIOD_DAYS)
        assert not world.told
        assert world.scrub.figures.chunks > 0
        assert "scrub_could_not_read" in world.reports.names()

    in_virtual_time(test)


def test_a_host_that_is_restarted_every_day_gets_past_large_chunks() -> None:
    """A restart begins a chunk anew, so that takes an hour, however little there is to check. At the rate of the whole
    walk one of a GiB took nine days: whoever restarted more often than that checked nothing else for ever.
    """
    settings = ScrubSettings()
    assert settings.pause_s(PIECE_BYTES, 2 << 30, 1 << 30) * (1 << 30) / PIECE_BYTES == LONGEST_CHUNK_S
    assert settings._replace(max_bytes_per_s=1 << 16).pause_s(PIECE_BYTES, 2 << 30, 1 << 30) == 4

    async def test() -> None:
        world = ScrubWorld()
        for epoch in (1, 2):
            world.replica(epoch, base_offset=epoch * 100, entries=60)
        written_out(world, 1, 2)
        world.flip(2)
        for _ in range(4):
            await world.for_days(3 / 24)
            if world.told:
                break
            world = world.restarted()
        assert set(world.told) == {(STREAM, 2)}

    in_virtual_time(test)
