"""`cairn verify` and `cairn dump` on what a real sidecar wrote: stopped, killed, damaged, or still running."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.format.epoch_api import EpochCommitRequest, Part, StageRequest, TaskOutput
from logstore.format.records import Record, encode_batch
from tests.support.cli import cairn
from tests.support.compressed import CODECS, compressed
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

FIRST_MS = 1_700_000_000_000
RECORDS = 40
FLAGS = ("--segment-bytes", "4096")


def batch(number: int) -> bytes:
    """A batch of one record."""
    return bytes(encode_batch([Record(0, FIRST_MS + number, b"key", b"value %d " % number + bytes(300))]))


def fill(client: Client) -> None:
    """Records over several chunks, and an epoch."""
    client.create_topic("t", 1)
    for number in range(RECORDS):
        client.produce(TopicPartition("t", 0), batch(number))
    staged = batch(0)
    client.stage(StageRequest("q", "run", 3, 0, "a", 0, (Part("t", 0, len(staged), 1, 1),), staged))
    client.commit(EpochCommitRequest("q", "run", 3, "error", (TaskOutput(0, "a", 1),), "positions of 3", forget=False))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that a sidecar left in order."""
    data_dir = tmp_path_factory.mktemp("directory") / "data"
    with Sidecar(data_dir, *FLAGS) as sidecar:
        with Client(parse_addresses(sidecar.address), limit_s=PATIENCE_S) as client:
            fill(client)
        assert sidecar.terminate() == 0
        shutil.copytree(data_dir, data_dir.with_name("left in order"))
        sidecar.start()  # the end of the block ends what runs
    return data_dir.with_name("left in order")


@pytest.fixture
def data_dir(stopped: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(stopped, tmp_path / "copy"))


def chunks(data_dir: Path) -> list[Path]:
    """The chunks of the topic, oldest first."""
    return sorted(data_dir.glob("streams/t.*/0/*.log"))


def flip(path: Path, at: int) -> None:
    """Turn over one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def test_a_clean_directory(data_dir: Path) -> None:
    """Status 0, and every byte of the chunks was read; nothing in the directory has changed."""
    before = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}
    found = cairn("verify", str(data_dir), "--json")
    assert found.status == 0
    assert found.json["damaged"] is False
    assert found.json["chunks"] == len(chunks(data_dir)) > 2
    assert found.json["bytes"] >= sum(path.stat().st_size for path in chunks(data_dir))
    assert {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()} == before
    assert "no damage" in cairn("verify", str(data_dir)).out


def test_a_damaged_batch_is_named(data_dir: Path) -> None:
    """Status 1; the file, the byte and the offset of a batch with a flipped bit, and no other."""
    damaged = chunks(data_dir)[1]
    flip(damaged, 100)
    finished = cairn("verify", str(data_dir), "--json")
    assert finished.status == 1
    (finding,) = finished.json["findings"]
    base = int(damaged.stem)
    assert finding == {
        "severity": "damage",
        "kind": "batch-damaged",
        "path": str(damaged.relative_to(data_dir)),
        "message": finding["message"],
        "position": 0,
        "first_offset": base,
        "last_offset": base,
    }
    text = cairn("verify", str(data_dir), "--quiet")
    assert text.status == 1
    assert text.out.startswith("DAMAGE: ")
    assert f"offsets {base} to {base} are lost" in text.out


def test_a_lost_chunk_is_named(data_dir: Path) -> None:
    """A chunk that is gone between two others: the offsets that are in no file."""
    _, lost, following, *_ = chunks(data_dir)
    lost.unlink()
    (finding,) = [f for f in cairn("verify", str(data_dir), "--json").json["findings"] if f["severity"] == "damage"]
    assert (finding["kind"], finding["first_offset"]) == ("offsets-missing", int(lost.stem))
    assert finding["last_offset"] == int(following.stem) - 1


@pytest.mark.parametrize("words", [("verify", "/nowhere"), ("verify", "/dev"), ("verify", ".", "--processes", "0")])
def test_what_cannot_be_checked_is_status_2(words: tuple[str, ...]) -> None:
    """No such directory, none of a sidecar, no such number of processes."""
    finished = cairn(*words)
    assert (finished.status, finished.out) == (2, "")


def test_a_newer_format_is_status_2(data_dir: Path) -> None:
    """What a newer Cairn wrote is not called damaged."""
    identity = json.loads((data_dir / "cairn.json").read_text())
    (data_dir / "cairn.json").write_text(json.dumps({**identity, "format": 99}))
    finished = cairn("verify", str(data_dir))
    assert finished.status == 2
    assert "format version 99" in finished.err


def test_after_a_kill_and_beside_a_running_sidecar(tmp_path: Path) -> None:
    """While a sidecar takes records and rolls chunks, and after kill -9: no false alarm, and the state is told."""
    with Sidecar(tmp_path / "data", *FLAGS) as sidecar:
        client = Client(parse_addresses(sidecar.address), limit_s=PATIENCE_S)
        fill(client)
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                client.produce(TopicPartition("t", 0), batch(number))
                number += 1
                if not number % 50:
                    client.delete_records(TopicPartition("t", 0), number)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(15):
                found = cairn("verify", str(tmp_path / "data"), "--json")
                assert (found.status, found.json["sidecar_running"]) == (0, True), found.out
        finally:
            stop.set()
            writer.join(PATIENCE_S)
        client.close()
        sidecar.kill()
        found = cairn("verify", str(tmp_path / "data"), "--json")
        assert (found.status, found.json["sidecar_running"]) == (0, False), found.out
        sidecar.start()


# ---- dump


def dumped(*words: str) -> list[dict[str, object]]:
    """What a dump shows."""
    finished = cairn("dump", *words, "--json", "--limit", "0")
    assert finished.status == 0, finished.err
    return [json.loads(line) for line in finished.out.splitlines()]


def test_a_topic_is_shown_record_by_record(data_dir: Path) -> None:
    """Every batch, every record, and the epoch's BEGIN and END with what they say."""
    entries = dumped(str(data_dir), "t", "--records")
    records = [entry for entry in entries if "record" in entry]
    assert len(records) == RECORDS + 1
    assert [entry["time_ms"] for entry in records[:RECORDS]] == [FIRST_MS + number for number in range(RECORDS)]
    assert str(records[7]["value"]).startswith("value 7 ")
    begin, end = (entry for entry in entries if "control" in entry)
    assert (begin["control"], end["control"], end["positions"]) == ("BEGIN", "END", "positions of 3")
    assert next(entry["batch"] for entry in dumped(str(data_dir), "t", "--from", "39") if "batch" in entry) == 39


def test_the_other_files_are_shown(data_dir: Path) -> None:
    """Indexes, producer snapshots, ledgers and the identity."""
    chunk = chunks(data_dir)[0]
    index = dumped(str(chunk.with_suffix(".index")))
    assert [entry["block"] for entry in index if "block" in entry][-1] == "seal"
    assert any("snapshot" in entry for entry in dumped(str(chunk.with_suffix(".producers"))))
    (ledger,) = sorted((data_dir / "ledger").glob("catalogue.*"))
    assert {"topic/t"} <= {entry.get("key") for entry in dumped(str(ledger))}
    identity = json.loads((data_dir / "cairn.json").read_text())
    key = identity.pop("journal_key")
    assert dumped(str(data_dir / "cairn.json"))[1] == identity
    for arguments in (("dump", str(data_dir / "cairn.json")), ("verify", "--json", str(data_dir))):
        finished = cairn(*arguments)
        assert key not in finished.out + finished.err


def test_the_journal_is_shown(tmp_path: Path) -> None:
    """Of a killed sidecar: each part with its stream and place, its batches, and with --records their records; never
    the key that tells its blocks from others.
    """
    with Sidecar(tmp_path / "data") as sidecar:
        with Client(parse_addresses(sidecar.address), limit_s=PATIENCE_S) as client:
            client.create_topic("t", 1)
            for number in range(3):
                client.produce(TopicPartition("t", 0), batch(number))
        sidecar.kill()
        (journal,) = (tmp_path / "data" / "journal").iterdir()
        shown = dumped(str(journal), "--records", "--from", "1")
        key = json.loads((tmp_path / "data/cairn.json").read_text())["journal_key"]
        assert key not in json.dumps(shown)
        found = json.loads(cairn("verify", str(tmp_path / "data"), "--json").out)
        sidecar.start()  # the end of the block ends what runs
    assert {entry["part"] for entry in shown if "part" in entry} == {
        str(path.relative_to(tmp_path / "data")) for path in (tmp_path / "data" / "streams").glob("t.*/0")
    }
    assert [entry["batch"] for entry in shown if "batch" in entry] == [1, 2]
    assert [entry["time_ms"] for entry in shown if "record" in entry] == [FIRST_MS + 1, FIRST_MS + 2]
    assert (found["damaged"], found["findings"], found["batches"]) == (False, [], 3)


def test_a_decision_in_the_journal_is_shown(tmp_path: Path) -> None:
    """Of a killed sidecar: the part for the ledger, with the entries that decide the epoch; a check finds no fault."""
    with Sidecar(tmp_path / "data") as sidecar:
        with Client(parse_addresses(sidecar.address), limit_s=PATIENCE_S) as client:
            fill(client)
            staged = batch(0)
            client.stage(StageRequest("q", "run", 4, 0, "a", 0, (Part("t", 0, len(staged), 1, 1),), staged))
            client.commit(EpochCommitRequest("q", "run", 4, "error", (TaskOutput(0, "a", 1),), "at 4", forget=False))
        sidecar.kill()
        (journal,) = (tmp_path / "data" / "journal").iterdir()
        shown = dumped(str(journal))
        found = json.loads(cairn("verify", str(tmp_path / "data"), "--json").out)
        sidecar.start()  # the end of the block ends what runs
    assert "ledger/epochs" in {entry.get("part") for entry in shown}
    decided = {entry["key"]: json.loads(str(entry["value"])) for entry in shown if "key" in entry}
    assert (decided["decision/q"]["epoch"], decided["last/q"]["positions"]) == (4, "at 4")
    assert (found["damaged"], found["findings"]) == (False, [])


def test_a_dump_is_cut_at_its_limit_and_says_so(data_dir: Path) -> None:
    """A few entries, and the way to see more."""
    out = cairn("dump", str(data_dir), "t", "--limit", "5").out.splitlines()
    assert len(out) == 6
    assert "--limit 0" in out[-1]


def test_a_dump_names_damage(data_dir: Path) -> None:
    """Up to the damage it shows what is there, then it names the file and the byte, with status 1."""
    flip(chunks(data_dir)[0], 400)
    finished = cairn("dump", str(chunks(data_dir)[0]), "--limit", "0")
    assert finished.status == 1
    assert "byte " in finished.err
    assert "cairn verify" in finished.err


@pytest.mark.parametrize("words", [(), ("none",)])
def test_what_a_dump_cannot_show_is_status_2(data_dir: Path, words: tuple[str, ...]) -> None:
    """A directory without a topic, and a topic that is not in it."""
    finished = cairn("dump", str(data_dir), *words)
    assert (finished.status, finished.out) == (2, "")


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_records_are_shown(tmp_path: Path, codec: str) -> None:
    """A dump opens batches of every codec."""
    chunk = tmp_path / f"{0:020d}.log"
    chunk.write_bytes(compressed(batch(5), codec))
    shown = dumped(str(chunk), "--records")
    assert [entry["time_ms"] for entry in shown if "record" in entry] == [FIRST_MS + 5]
