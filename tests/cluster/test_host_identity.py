"""Who a host is: its disk is told apart from empty, foreign and old ones, whatever a crash or a lost answer leaves."""

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import trio

from logstore.base.metadata import schema
from logstore.base.metadata.interface import Delete, DeletePrefix, MetadataStore, Put
from logstore.cluster.members.host_identity import (
    HostIdentity,
    establish_identity,
    give_back_identity,
    write_label,
)
from logstore.cluster.members.own_files import LABEL_FILE
from logstore.errors import CorruptFile, DiskRefused, UnknownFormatVersion, WrongCluster
from logstore.replica.identity import DiskLabel
from logstore.testing.faults import EIO, FALSE_ALARM, FileCall
from logstore.testing.metadata_contract import changing, committed
from logstore.testing.reports import RecordedReports
from logstore.testing.simdisk import SimDisk
from logstore.testing.simulated_metadata import MetadataFaults, SimulatedMetadata
from tests.support.virtual_time import run_virtual

ROOT = Path(__file__).resolve().parents[2]


def with_metadata(test: Callable[[SimulatedMetadata], Awaitable[None]], seed: int = 0) -> None:
    """Run a test with a simulated metadata service, in virtual time."""

    async def main() -> None:
        service = SimulatedMetadata(Random(seed), MetadataFaults(max_delay_s=0.01))
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            await test(service)
            nursery.cancel_scope.cancel()

    run_virtual(main, seed=seed)


async def start(service: SimulatedMetadata, disk: SimDisk, host: str = "a", seed: int = 0) -> HostIdentity:
    """A start of a host; `seed` for its names."""
    return await establish_identity(service.store(host), disk, host, Random(seed), RecordedReports())


def content(disk: SimDisk) -> bytes:
    """The label file."""
    return bytes(disk.read(LABEL_FILE, 0, disk.size(LABEL_FILE)))


def write(disk: SimDisk, data: bytes) -> None:
    """Put a label file there."""
    disk.create(LABEL_FILE)
    disk.write(LABEL_FILE, 0, [data])


def test_starts_are_counted() -> None:
    """The same disk, the same cluster, another start each time; each counts twice. The register has the label
    of the last one.
    """

    async def test(service: SimulatedMetadata) -> None:
        disk = SimDisk()
        first = await start(service, disk, seed=1)
        second = await start(service, disk, seed=2)
        assert (first.label.starts, second.label.starts) == (2, 4)
        assert first.member == second.member
        assert first.owner_id != second.owner_id
        other = await start(service, SimDisk(), "b", seed=3)
        assert other.cluster_id == first.cluster_id == second.cluster_id
        assert other.member != first.member
        entry = (await service.store("a").get(schema.disk_key(second.label.disk))).entry
        assert entry is not None
        found = schema.decode(schema.StoredDisk, entry)
        assert (found.host, found.starts, found.start) == ("a", 4, second.label.start)

    with_metadata(test)


def test_golden_bytes_of_the_label_file() -> None:
    """The bytes are those of docs/format.md, with other names."""

    async def test(service: SimulatedMetadata) -> None:
        disk = SimDisk()
        identity = await start(service, disk)
        text = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
        (golden,) = re.findall(r'`(\{"v": 1, "cluster_id".*?\})`', text)
        names = {"c1": identity.cluster_id, "d1": identity.label.disk, "h1": "a", "s3": identity.label.start}
        for example, name in names.items():
            golden = golden.replace(f'"{example}"', f'"{name}"')
        assert content(disk).decode() == golden.replace("4,", "2,")

    with_metadata(test)


def test_a_refused_host_gives_its_identity_back() -> None:
    """An empty directory is empty again, and the metadata store knows nothing of it; a disk that had a label, as one of
    a former start or one that was adopted, keeps it, and both go on. Without an answer the directory is empty all the
    same.
    """

    async def test(service: SimulatedMetadata) -> None:
        disk, store = SimDisk(), service.store("a")
        first = await start(service, disk, seed=1)
        await give_back_identity(store, disk, first)
        assert not disk.exists(LABEL_FILE)
        assert (await store.get(schema.disk_key(first.label.disk))).entry is None
        second = await start(service, disk, "b", seed=2)
        again = await start(service, disk, "b", seed=3)
        assert second.label.disk == again.label.disk
        adopted = SimDisk()
        write_label(adopted, first.cluster_id, DiskLabel("adopted", "c"))
        for given, identity in ((disk, again), (adopted, await start(service, adopted, "c", seed=4))):
            await give_back_identity(store, given, identity)
            assert json.loads(content(given))["disk"] == identity.label.disk
            assert (await store.get(schema.disk_key(identity.label.disk))).entry is not None
        away = SimDisk()
        unheard = await start(service, away, "d", seed=5)
        service.cut_off("a")
        await give_back_identity(store, away, unheard)
        assert not away.exists(LABEL_FILE)

    with_metadata(test)


def test_disks_that_are_refused() -> None:
    """Another host's disk, an old copy, another cluster's, an emptied store and one that was set back: each by name."""

    async def test(service: SimulatedMetadata) -> None:
        store: MetadataStore = service.store("x")
        disk, copy = SimDisk(), SimDisk()
        await start(service, disk, seed=1)
        with pytest.raises(DiskRefused, match="belongs to host 'a', this is host 'b'"):
            await start(service, disk, "b", seed=2)
        write(copy, content(disk))
        identity = await start(service, disk, seed=3)
        with pytest.raises(DiskRefused, match="start number 4, and this is a copy from its start number 2"):
            await start(service, copy, seed=4)
        await start(service, disk, seed=5)
        key = schema.disk_key(identity.label.disk)
        early = schema.encode(schema.StoredDisk(host="a", starts=1, start="s"))
        await committed(store, changing(Put(key, early)))
        with pytest.raises(DiskRefused, match=r"start number 6, and the metadata store knows of number 1: an older"):
            await start(service, disk, seed=6)
        await committed(
            store, changing(Put(schema.CLUSTER_KEY, schema.encode(schema.StoredCluster(cluster_id="other"))))
        )
        with pytest.raises(WrongCluster, match="that of cluster other"):
            await start(service, disk, seed=7)
        await committed(store, changing(Delete(schema.CLUSTER_KEY)))
        with pytest.raises(WrongCluster, match="the metadata store is empty"):
            await start(service, disk, seed=8)

    with_metadata(test)


@pytest.mark.parametrize("starts", [1, 2, 5])
def test_a_store_that_was_set_back_is_refused(starts: int) -> None:
    """Also if the disk was started only once since: what that start has acknowledged is in chunks that the older store
    does not know, and would give to others.
    """

    async def test(service: SimulatedMetadata) -> None:
        disk = SimDisk()
        await start(service, disk, seed=1)
        identity = await start(service, disk, seed=2)
        key = schema.disk_key(identity.label.disk)
        before = (await service.store("x").get(key)).entry
        assert before is not None
        for number in range(starts):
            await start(service, disk, seed=3 + number)
        await committed(service.store("x"), changing(Put(key, before.value)))
        with pytest.raises(DiskRefused, match="restore the newest copy"):
            await start(service, disk, seed=100)

    with_metadata(test)


def test_damaged_labels() -> None:
    """Bytes that are no label are refused, and never taken for an empty disk."""

    async def test(service: SimulatedMetadata) -> None:
        disk = SimDisk()
        await start(service, disk)
        good = content(disk)
        for bad in (b"", b"[]", b"{}", good[:-1], good.replace(b'"starts": 2', b'"starts": "2"'), b'{"v": 1}'):
            write(disk, bad)
            with pytest.raises(CorruptFile, match=LABEL_FILE):
                await start(service, disk)
        write(disk, good.replace(b'"v": 1', b'"v": 2'))
        with pytest.raises(UnknownFormatVersion, match="version 2"):
            await start(service, disk)

    with_metadata(test)


def test_a_start_that_fails_at_any_call_of_the_disk() -> None:
    """However often starts end between their two writes, the next one succeeds with the same disk."""

    async def test(service: SimulatedMetadata) -> None:
        disk = SimDisk()
        first = await start(service, disk)
        before = disk.calls
        await start(service, disk, seed=1)
        calls = disk.calls - before
        for number in range(calls):
            disk.fail_at(disk.calls + number, EIO if number % 2 else FALSE_ALARM)
            with pytest.raises(OSError):
                await start(service, disk, seed=10 + number)
        last = await start(service, disk, seed=100)
        assert last.member == first.member

    with_metadata(test)


def test_power_cuts_at_every_call() -> None:
    """Every state that a power cut or a kill can leave during a start lets the next one succeed, with the same disk."""

    async def test(service: SimulatedMetadata) -> None:
        disk = SimDisk(unit_bytes=64)
        first = await start(service, disk)
        states: list[tuple[SimDisk, bytes]] = []
        key = schema.disk_key(first.label.disk)

        def before(call: FileCall) -> None:
            registered = service.state.get(key).entry
            if call.changes_disk and registered is not None:
                states.extend((state, registered.value) for state in (*disk.crash_states(), disk.kill_state()))

        disk.before_call = before
        await start(service, disk, seed=1)
        assert len(states) > 10
        assert len({registered for _, registered in states}) == 2
        for number, (state, registered) in enumerate(states):
            await committed(service.store("x"), changing(Put(key, registered)))
            assert (await start(service, state, seed=10 + number)).member == first.member

    with_metadata(test)


def test_a_disk_whose_host_was_removed() -> None:
    """It is refused from its first start on, and is never taken for a new one; a start that ended before the disk was
    in use leaves a new one.
    """

    async def test(service: SimulatedMetadata) -> None:
        disk = SimDisk()
        for seed in (1, 2):
            identity = await start(service, disk, seed=seed)
        key = schema.disk_key(identity.label.disk)
        await committed(service.store("x"), changing(Delete(key)))
        with pytest.raises(DiskRefused, match="if the host was removed from the cluster, give it an empty directory"):
            await start(service, disk, seed=3)
        disk = SimDisk()
        once = await start(service, disk, seed=4)
        await committed(service.store("x"), changing(Delete(schema.disk_key(once.label.disk))))
        with pytest.raises(DiskRefused, match="has been in use, but the metadata store does not know it"):
            await start(service, disk, seed=5)

    with_metadata(test)


class Forgetting:
    """A metadata store that forgets all disks before the n-th request."""

    def __init__(self, store: MetadataStore, at: int) -> None:
        self._store = store
        self._left = at

    @property
    def has_forgotten(self) -> bool:
        """Whether there were so many requests."""
        return self._left < 0

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._store, name)

        async def ask(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                await self._store.commit(changing(DeletePrefix(schema.DISKS)))
            return await asked(*arguments, **options)

        return ask


def test_a_disk_that_is_forgotten_during_its_first_start() -> None:
    """The host's last life is removed at the same time, whatever the start has asked for by then: the disk is a new
    one, and known in the end; in a later start it is refused.
    """

    async def test(service: SimulatedMetadata) -> None:
        store = service.store("a")
        for at in range(100):
            disk, forgetting = SimDisk(), Forgetting(store, at)
            metadata = cast(MetadataStore, forgetting)
            identity = await establish_identity(metadata, disk, "a", Random(2 * at), RecordedReports())
            entry = (await store.get(schema.disk_key(identity.label.disk))).entry
            assert entry is not None
            assert schema.decode(schema.StoredDisk, entry) == schema.StoredDisk(
                host="a", starts=2, start=identity.label.start
            )
            if not forgetting.has_forgotten:
                break
            again = cast(MetadataStore, Forgetting(store, 1))
            with pytest.raises(DiskRefused, match="has been in use"):
                await establish_identity(again, disk, "a", Random(2 * at + 1), RecordedReports())
        assert 4 <= at < 100

    with_metadata(test)


def test_a_first_start_that_fails_at_any_call_of_the_disk() -> None:
    """The next one succeeds, with the disk that has a label by then, also if that was removed meanwhile: it was never
    in use.
    """

    async def test(service: SimulatedMetadata) -> None:
        disk = SimDisk()
        await start(service, disk)
        kept = 0
        for number in range(disk.calls):
            disk = SimDisk()
            disk.fail_at(number, EIO)
            with pytest.raises(OSError):
                await start(service, disk, seed=2 * number + 1)
            label = json.loads(content(disk)) if disk.exists(LABEL_FILE) else {}
            if label.get("starts") == 1:
                await committed(service.store("x"), changing(Delete(schema.disk_key(label["disk"]))))
            again = await start(service, disk, seed=2 * number + 2)
            assert again.is_first_life
            assert label.get("disk") in (None, again.label.disk)
            kept += bool(label)
        assert kept

    with_metadata(test)


@pytest.mark.parametrize("seed", range(20))
def test_lost_answers_and_starts_that_are_killed(seed: int) -> None:
    """Starts that are cancelled anywhere, with requests and answers lost: later ones succeed with the same disk, and
    the register is never behind what a start has returned.
    """

    async def test(service: SimulatedMetadata) -> None:
        random, disk = Random(seed), SimDisk()
        first = await start(service, disk)
        service.faults.lost_answers = service.faults.lost_requests = 0.3
        for number in range(15):
            with trio.move_on_after(random.uniform(0, 3)):
                assert (await start(service, disk, seed=number + 1)).member == first.member
        service.faults.lost_answers = service.faults.lost_requests = 0.0
        last = await start(service, disk, seed=100)
        assert last.member == first.member
        entry = (await service.store("a").get(schema.disk_key(last.label.disk))).entry
        assert entry is not None
        assert schema.decode(schema.StoredDisk, entry).start == last.label.start

    with_metadata(test, seed)


def test_two_new_hosts_make_one_cluster() -> None:
    """Who comes second has the id of who came first, at the same moment too."""

    async def test(service: SimulatedMetadata) -> None:
        found: list[HostIdentity] = []

        async def begin(host: str, seed: int) -> None:
            found.append(await start(service, SimDisk(), host, seed))

        async with trio.open_nursery() as nursery:
            for number, host in enumerate("abc"):
                nursery.start_soon(begin, host, number)
        assert len({identity.cluster_id for identity in found}) == 1
        assert len({identity.label.disk for identity in found}) == 3

    with_metadata(test)
