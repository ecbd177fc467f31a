"""A cluster of hosts on a real etcd, with links and disks in memory."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import trio

from tests.cluster.memory import LIMITS, MemoryCluster
from tests.metadata.support import etcd_members, etcd_store, needs_etcd
from tests.support.limits import PATIENCE_S

LEASE_S: Final = 60
MEMBER_TIMEOUT_MS: Final = 60_000
"""Time is real here. Hosts learn of an end by a refusal, and by a lease that is given back: neither limit has to pass,
and neither passes where the machine stands still for a moment.
"""


@needs_etcd
async def test_a_cluster_on_etcd(tmp_path: Path) -> None:
    """Three hosts agree through a real etcd: one is killed, another one stops, etcd is killed and started again."""
    with etcd_members(tmp_path) as members, trio.fail_after(PATIENCE_S):
        async with (
            etcd_store(members) as first,
            etcd_store(members) as second,
            etcd_store(members) as third,
            trio.open_nursery() as nursery,
        ):
            stores = {"a": first, "b": second, "c": third}
            limits = replace(LIMITS, member_timeout_ms=MEMBER_TIMEOUT_MS, busy_timeout_ms=MEMBER_TIMEOUT_MS)
            cluster = MemoryCluster(nursery, dict(stores), Random(0), limits)
            cluster.lease_s = LEASE_S
            for name in stores:
                await cluster.start(name)
            (stream,) = await cluster.create_topic()
            name, _ = await cluster.append(stream, b"0")
            begin_s = trio.current_time()
            await cluster.kill(name)
            other, offset = await cluster.append(stream, b"1")
            print(f"without service after a kill: {trio.current_time() - begin_s:.3f} s")
            assert (other != name, offset) == (True, 1)
            await cluster.start(name)
            await cluster.stop(other)
            last, offset = await cluster.append(stream, b"2")
            assert (last != other, offset) == (True, 2)
            await cluster.at_rest()  # nothing that has begun needs etcd
            members[0].kill()
            assert (await cluster.append(stream, b"3"))[1] == 3
            members[0].start()
            await cluster.start(other)
            assert (await cluster.append(stream, b"4"))[1] == 4
            while await cluster.read_all(last, stream) != [b"%d" % number for number in range(5)]:
                await trio.lowlevel.checkpoint()  # every member is told what is acknowledged
            nursery.cancel_scope.cancel()
