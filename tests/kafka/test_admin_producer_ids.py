"""Producer ids are given out once, over restarts and crashes; transactions are refused by name."""

from pathlib import Path

import trio
from kio.schema.errors import ErrorCode

from tests.kafka.node import running

INIT_PRODUCER_ID = 22


def test_ids_are_new_every_time(tmp_path: Path) -> None:
    """Every request of every version gets another id, with epoch 0; after a restart too, and if it has one already."""

    async def story() -> None:
        seen: list[int] = []
        for _ in range(3):
            async with running(tmp_path) as node:
                for version in node.versions(INIT_PRODUCER_ID):
                    known = {"producer_id": seen[-1], "producer_epoch": 4} if seen else {"producer_id": -1}
                    answer = await node.ask(INIT_PRODUCER_ID, version, transactional_id=None, **known)
                    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, 0)
                    seen.append(answer.producer_id)
        assert len(set(seen)) == len(seen)
        assert min(seen) >= 0

    trio.run(story)


def test_many_at_the_same_time(tmp_path: Path) -> None:
    """More clients than a reserved block has ids, all at once, still get one each."""

    async def story() -> None:
        seen: list[int] = []
        async with running(tmp_path) as node:

            async def ask() -> None:
                seen.append((await node.ask(INIT_PRODUCER_ID, 4, transactional_id=None)).producer_id)

            async with trio.open_nursery() as nursery:
                for _ in range(2500):
                    nursery.start_soon(ask)
        assert len(set(seen)) == 2500

    trio.run(story)


def test_transactions_are_refused(tmp_path: Path) -> None:
    """A transactional id is TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which clients do not try again."""

    async def story() -> None:
        async with running(tmp_path) as node:
            for version in node.versions(INIT_PRODUCER_ID):
                answer = await node.ask(INIT_PRODUCER_ID, version, transactional_id="bank")
                assert answer.error_code is ErrorCode.transactional_id_authorization_failed
                assert (answer.producer_id, answer.producer_epoch) == (-1, -1)

    trio.run(story)
