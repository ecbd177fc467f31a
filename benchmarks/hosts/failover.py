"""For how long a producer has no answer when the host that leads is killed, comes back, or is stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random

from benchmarks.harness.process import PeerFailed
from benchmarks.harness.silence import SteadyProducer
from benchmarks.harness.trios import Trio
from benchmarks.hosts.topics import FAILOVER, Measured, note_memory, wait_whole


def run(measured: Measured, trios: Sequence[Trio], chance: Random) -> None:
    """All rounds: a kill, the return, and a planned stop in each cluster."""
    for number in range(1, measured.plan.losses + 1):
        for trio in chance.sample(trios, len(trios)):
            row = {**_lose_leader(trio, measured.plan.around_s), **_stop_leader(trio, measured.plan.around_s)}
            measured.rows.add(part="failover", round=number, peer=trio.name, **row)
            note_memory(measured, trio, "failover")
            measured.console.print(f"  {trio.name}: {row}", markup=False)


def _lose_leader(trio: Trio, around_s: float) -> dict[str, float | int]:
    found = wait_whole(trio, FAILOVER)
    node = found.partitions[0].leader
    with SteadyProducer(trio.ports(), FAILOVER) as producer:
        _go_on(trio, producer, time.monotonic(), around_s / 2)
        killed_s = time.monotonic()
        trio.kill(node)
        gone_s = time.monotonic()
        _go_on(trio, producer, gone_s, around_s)
        without_s = producer.silence_s(killed_s, time.monotonic())
        begun_s = time.monotonic()
        trio.begin(node)
        trio.wait_ready(node)
        ready_s = time.monotonic()
        wait_whole(trio, FAILOVER)
        whole_s = time.monotonic()
        _go_on(trio, producer, whole_s, around_s)
        return_s = producer.silence_s(begun_s, time.monotonic())
    return {
        "node": node,
        "kill_silence_s": without_s,
        "return_silence_s": return_s,
        "ready_s": ready_s - begun_s,
        "whole_s": whole_s - begun_s,
        "failed_records": len(producer.errors),
    }


def _stop_leader(trio: Trio, around_s: float) -> dict[str, float | int]:
    """SIGTERM; the host is back when this returns."""
    node = wait_whole(trio, FAILOVER).partitions[0].leader
    with SteadyProducer(trio.ports(), FAILOVER) as producer:
        _go_on(trio, producer, time.monotonic(), around_s / 2)
        asked_s = time.monotonic()
        trio.stop(node)
        _go_on(trio, producer, time.monotonic(), around_s)
        silent_s = producer.silence_s(asked_s, time.monotonic())
    trio.begin(node)
    trio.wait_ready(node)
    wait_whole(trio, FAILOVER)
    return {"stop_silence_s": silent_s, "stop_failed_records": len(producer.errors)}


def _go_on(trio: Trio, producer: SteadyProducer, since_s: float, seconds: float) -> None:
    """Until a record was acknowledged after a moment, and then for some seconds more. Raises PeerFailed."""
    if not producer.wait_answered(since_s):
        raise PeerFailed(f"{trio.name}: no record is acknowledged; the last errors: {producer.errors[-3:]}")
    time.sleep(seconds)
