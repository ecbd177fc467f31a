"""Records above 15 MiB, at settings that allow them: in, out, and over a crash, in bounded memory."""

import zlib
from pathlib import Path

from logstore.format.records import Record, decode_batch, encode_batch
from tests.kafka.front_driver import NOW_MS
from tests.kafka.wire_client import WireClient
from tests.support.sidecar import Sidecar

MIB = 1 << 20
RECORD_BYTES = 64 * MIB
FLAGS = ("--max-frame-bytes", str(100 * MIB), "--max-message-bytes", str(96 * MIB))


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def value_at(client: WireClient, offset: int) -> bytes:
    """The value of the one record at an offset."""
    (record,) = decode_batch(bytes(client.fetch("large", offset).records))
    return bytes(record.value or b"")


def test_records_of_64_mib_go_in_and_out(tmp_path: Path) -> None:
    """Records of 64 MiB, each in a batch of its own, are acknowledged, read, and read again after kill -9, small ones
    between them; what the sidecar takes for them is a few of them, not all.
    """
    values = [bytes([97 + number]) * (RECORD_BYTES if number % 2 else 100) for number in range(6)]
    sums = [zlib.crc32(value) for value in values]
    with Sidecar(tmp_path / "data", *FLAGS) as sidecar:
        with WireClient(sidecar.port) as client:
            assert client.create_topic("large") == 0
            for number, value in enumerate(values):
                answer = client.produce("large", bytes(encode_batch([Record(0, NOW_MS, None, value)])))
                assert (answer.error, answer.base_offset) == (0, number)
            assert [zlib.crc32(value_at(client, number)) for number in range(6)] == sums
            peak = peak_bytes(sidecar.pid)
        sidecar.kill()
        sidecar.restart()
        assert "durable data" not in sidecar.log()
        with WireClient(sidecar.port) as client:
            assert client.latest("large") == 6
            assert [zlib.crc32(value_at(client, number)) for number in range(6)] == sums
        assert max(peak, peak_bytes(sidecar.pid)) < 5 * RECORD_BYTES + 100 * MIB
