"""What a frame keeps alive: itself, and nothing that arrived with it."""

from __future__ import annotations

from pathlib import Path

from tests.kafka.front_driver import batch, produce_frame, serving


async def test_a_batch_in_the_tail_keeps_no_other_frame_alive(tmp_path: Path) -> None:
    """Of requests that arrive together, each batch that the tail keeps has a buffer of about its own size."""
    count = 20
    frames = [produce_frame([batch(1, 500)], correlation_id=number) for number in range(count)]
    async with serving(tmp_path) as server, await server.connect() as peer:
        for _ in range(3):
            await peer.send(*frames)
            for _ in range(count):
                await peer.answer()
        entries = server.stream.tail.read(0, 1 << 20)
        assert len(entries) == 3 * count
        for entry in entries:
            kept = entry.buffer.obj
            assert isinstance(kept, bytearray)
            assert len(kept) <= len(frames[0])
