"""Scripts of what clients do, for the enumerator: each concentrates on one part of the store."""

from logstore.testing.world import SimulatedStore


def appends(world: SimulatedStore) -> None:
    """Several batches in one write, several writes, two streams, idempotent producers; chunks roll on the way."""
    world.create_topic("t", 2)
    world.run()
    world.append("t", 0)
    world.append("t", 1, producer=(7, 0, 0))
    world.run()
    for sequence in range(1, 4):
        world.append("t", 1, producer=(7, 0, sequence))
        world.append("t", 0, records=2)
    world.run()
    world.append("t", 0, value_bytes=300)
    world.append("t", 0, value_bytes=300)
    world.append("t", 1, producer=(7, 0, 4))
    world.run()
    world.append("t", 0)
    world.run()


def trims(world: SimulatedStore) -> None:
    """Delete records inside a chunk, whole chunks, everything; append behind it; retention."""
    world.create_topic("t", 1)
    world.run()
    for _ in range(4):
        world.append("t", value_bytes=200)
        world.run()
    world.trim("t", 0, 1)
    world.run()
    world.append("t", value_bytes=200)
    world.trim("t", 0, 3)
    world.run()
    world.trim("t", 0, world.store.stream("t", 0).high_watermark)
    world.run()
    world.append("t")
    world.run()
    world.clock.advance(8 * 24 * 3600 * 1000)
    world.retain()
    world.run()
    world.append("t")
    world.run()


def groups(world: SimulatedStore) -> None:
    """Append groups between ordinary appends, larger than a chunk, while others wait behind them."""
    world.create_topic("t", 1)
    world.run()
    world.append("t")
    world.append_group("t", 0, 0, batches=2)
    world.append("t")
    world.run()
    world.append_group("t", 0, 1, batches=3, value_bytes=200)
    world.append_group("t", 0, 2, batches=0)
    world.append("t")
    world.run()


def large_group(world: SimulatedStore) -> None:
    """A group whose batches fill a write, so that BEGIN and END need writes of their own."""
    world.create_topic("t", 1)
    world.run()
    world.append_group("t", 0, 0, batches=1, value_bytes=1900)
    world.run()


def ledgers(world: SimulatedStore) -> None:
    """Puts that share writes, a ledger that is rewritten, producer ids."""
    for number in range(6):
        world.put()
        if number % 2:
            world.run()
    world.allocate()
    world.put()
    world.run()


def topics(world: SimulatedStore) -> None:
    """Topics made, filled, deleted, and made again under the same name."""
    world.create_topic("a", 1)
    world.create_topic("b", 2)
    world.run()
    world.append("a")
    world.append("b", 1)
    world.run()
    world.delete_topic("a")
    world.run()
    world.create_topic("a", 2)
    world.run()
    world.append("a", 1)
    world.run()


def commits(world: SimulatedStore) -> None:
    """Epochs staged and committed over two streams; an execution thrown away; a new incarnation; a duplicate."""
    world.create_topic("t", 2)
    world.run()
    world.append("t", 0)
    world.stage("t", 0, "run-1")
    world.commit(0, "run-1")
    world.append("t", 1)
    world.stage("t", 1, "run-1")
    world.stage("t", 1, "run-2", tasks=2)
    world.commit(1, "run-2", tasks=2)
    world.commit(1, "run-2", tasks=2)
    world.append("t", 0)
    world.run()


def decisions(world: SimulatedStore) -> None:
    """Small epochs of two queries, decided in blocks of the journal: beside appends, twice, by a newer incarnation that
    takes over while a block is under way, one that is too large, behind a kill and behind a clean end.
    """
    world.create_topic("t", 2)
    world.run()
    world.append("t", 0)
    world.append("t", 1)
    world.run()
    world.take_over("run-1")
    world.stage("t", 0, "run-1")
    world.append("t", 0)
    world.commit(0, "run-1")
    world.stage("t", 0, "other", partitions=1, query="p")
    world.stage("t", 1, "run-1")
    world.begin_commit(0, "other", query="p")
    world.begin_commit(1, "run-1")
    world.take_over("run-2")
    world.run()
    world.stage("t", 1, "run-2")
    world.commit(1, "run-2")
    world.stage("t", 2, "run-2", value_bytes=500)
    world.commit(2, "run-2")
    world.restart(clean=False)
    world.stage("t", 3, "run-2", tasks=2)
    world.append("t", 1)
    world.commit(3, "run-2", tasks=2)
    world.commit(3, "run-2", tasks=2)
    world.restart(clean=True)
    world.stage("t", 4, "run-2")
    world.begin_commit(4, "run-2")
    world.run(steps=8)
    world.restart(clean=False)
    world.commit(4, "run-2")


def restarts(world: SimulatedStore) -> None:
    """Clean shutdowns and kills between and during appends."""
    world.create_topic("t", 1)
    world.run()
    world.append("t", producer=(3, 0, 0))
    world.run()
    world.restart(clean=True)
    world.append("t", producer=(3, 0, 1))
    world.append("t", value_bytes=200)
    world.run(steps=3)
    world.restart(clean=False)
    world.append("t")
    world.append_group("t", 0, 0, batches=2)
    world.run(steps=3)
    world.restart(clean=False)
    world.append("t")
    world.run()


def large_batch(world: SimulatedStore) -> None:
    """One batch larger than the window that recovery reads with."""
    world.create_topic("t", 1)
    world.run()
    world.append("t", value_bytes=400)
    world.run()


def cleans(world: SimulatedStore) -> None:
    """Epochs with records of state over several chunks; the state's owner lets those of the oldest two go."""
    world.create_topic("t", 1)
    world.run()
    for epoch in range(3):
        world.append_group("t", 0, epoch, batches=1, states=2)
        world.run()
    bases = [chunk.base_offset for chunk in world.store.stream("t", 0).chunks[:3]]
    world.own_state("t", 0, max(bases, default=0))
    world.run()
    world.clean()
    world.append("t")
    world.run()


def quiets(world: SimulatedStore) -> None:
    """Streams come to rest, wake by an append, are disturbed before or while they rest, and start from the table."""
    world.create_topic("t", 2)
    world.run()
    world.append("t", 0, producer=(7, 0, 0))
    world.append("t", 1)
    world.run()
    world.rest()
    world.run()
    world.append("t", 0, producer=(7, 0, 1))
    world.append("t", 1)
    world.run()
    world.append("t", 0, records=2)
    world.run(steps=1)
    world.rest()  # while one of them is written to
    world.run(steps=1)
    world.append("t", 1)
    world.run()
    world.rest()
    world.run()
    world.restart(clean=False)
    world.append("t", 0, value_bytes=200)
    world.append("t", 1)
    world.run()
    world.restart(clean=True)
    world.append("t", 0, producer=(7, 0, 2))
    world.append_group("t", 1, 0, batches=1)
    world.run()


def quiet_trims(world: SimulatedStore) -> None:
    """Chunks of streams at rest are trimmed, in the life in which they came to rest and in the next one."""
    world.create_topic("t", 1)
    world.run()
    for _ in range(4):
        world.append("t", value_bytes=200)
        world.run()
    world.rest()
    world.run()
    world.trim("t", 0, 2)
    world.run()
    world.rest()
    world.run()
    world.restart(clean=False)
    world.trim("t", 0, 4)
    world.run()
    world.rest()
    world.run()
    world.append("t")
    world.run()


def trim_all(world: SimulatedStore) -> None:
    """Everything is trimmed, then an append opens the chunk behind it."""
    world.create_topic("t", 1)
    world.run()
    world.append("t")
    world.run()
    world.trim("t", 0, 1)
    world.run()
    world.append("t")
    world.run()


def journal(world: SimulatedStore) -> None:
    """Small appends of four streams through several files of the journal, large ones between them, and restarts."""
    world.create_topic("t", 4)
    world.run()
    for partition in range(4):
        world.append("t", partition)
    world.run()
    for turn in range(5):
        for partition in range(4):
            world.append("t", partition, producer=(5, 0, turn) if partition == 3 else None)
        world.run()
        if turn == 2:
            world.append("t", 1, value_bytes=500)
            world.append_group("t", 2, 0, batches=2)
            world.store.save_readers()
            world.run()
    world.restart(clean=False)
    world.append("t", 0)
    world.append("t", 2)
    world.run()
    world.restart(clean=True)
    world.append("t", 0)
    world.run()


def trim_chunk(world: SimulatedStore) -> None:
    """The first of two chunks is trimmed."""
    world.create_topic("t", 1)
    world.run()
    for _ in range(2):
        world.append("t", value_bytes=400)
        world.run()
    world.trim("t", 0, 1)
    world.run()


def expires(world: SimulatedStore) -> None:
    """Last chunks are sealed by age, beside an append and after a restart; then all records expire."""
    day_ms = 24 * 3600 * 1000
    world.create_topic("t", 1)
    world.run()
    world.append("t", producer=(3, 0, 0))
    world.run()
    world.clock.advance(8 * day_ms)
    world.append("t", producer=(3, 0, 1))
    world.run()
    world.retain()
    world.run(steps=6)
    world.append("t", producer=(3, 0, 2))
    world.run()
    world.restart(clean=False)
    world.clock.advance(8 * day_ms)
    world.retain()
    world.run()
    world.append("t", producer=(3, 0, 3))
    world.run()
    world.trim("t", 0, world.store.stream("t", 0).high_watermark)
    world.run()


WORKLOADS = (
    *(appends, trims, groups, large_group, ledgers, topics, commits, restarts, cleans, expires),
    *(quiets, quiet_trims),
)
