"""A watch to which etcd tells much in pieces: what it keeps of them is bounded."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
import trio
import trio.testing

from logstore.base.metadata.errors import Compacted
from logstore.base.metadata.etcd import watching
from tests.metadata.slow_etcd import HEADER, SlowEtcd, store_on

CREATED: dict[str, Any] = {"result": {"header": HEADER, "created": True}}
PATIENCE_S = 10.0


def message(*revisions: int, unfinished: bool, value: bytes = b"") -> dict[str, Any]:
    """A message of a watch with an event of each of these revisions."""
    events = [
        {"kv": {"key": encoded(b"/cairn/%d" % number), "value": encoded(value), "mod_revision": str(revision)}}
        for number, revision in enumerate(revisions)
    ]
    header = {"cluster_id": "1", "revision": "9"}
    return {"result": {"header": header, "events": events, **({"fragment": True} if unfinished else {})}}


def encoded(data: bytes) -> str:
    """As etcd's JSON has it."""
    return b64encode(data).decode()


async def test_whole_revisions_are_told_before_the_last_piece(autojump_clock: trio.testing.MockClock) -> None:
    """A watch that catches up is told of up to a thousand revisions in pieces: those that are whole are delivered, and
    only the last one, which may go on in the next piece, is kept. Each is delivered once, with all its events.
    """
    etcd = SlowEtcd()
    etcd.is_quiet = True
    etcd.answers["watch"] = [CREATED, message(2, 3, 3, unfinished=True), message(3, 4, unfinished=True)]
    with trio.fail_after(PATIENCE_S):
        async with store_on(etcd).watch("", 1) as watch:
            found = [await watch.receive() for _ in range(2)]
            assert [(changes.revision, len(changes.events)) for changes in found] == [(2, 1), (3, 3)]
            with trio.move_on_after(0.5) as scope:
                await watch.receive()  # 4 may go on
            assert scope.cancelled_caught


async def test_a_revision_that_is_too_large_is_read_anew(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept is bounded: the watch ends as if the revision had been compacted. What came before is delivered."""
    monkeypatch.setattr(watching, "MAX_UNFINISHED_BYTES", 10_000)
    etcd = SlowEtcd()
    etcd.is_quiet = True
    pieces = [message(3, unfinished=True, value=bytes(1_000)) for _ in range(20)]
    etcd.answers["watch"] = [CREATED, message(2, 3, unfinished=True), *pieces]
    with trio.fail_after(PATIENCE_S):
        async with store_on(etcd).watch("", 1) as watch:
            assert (await watch.receive()).revision == 2
            with pytest.raises(Compacted) as caught:
                await watch.receive()
    assert caught.value.revision == 9
    assert not etcd.open


async def test_a_large_revision_that_was_read_is_not_read_again(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd tells again what is at the revision that a watch begins from. Where that is the one which was too large, the
    watch goes on behind it: it would end, and all would be read again, until something else is written.
    """
    monkeypatch.setattr(watching, "MAX_UNFINISHED_BYTES", 10_000)
    etcd = SlowEtcd()
    etcd.is_quiet = True
    pieces = [message(3, unfinished=True, value=bytes(1_000)) for _ in range(20)]
    created = {"result": {"header": {"cluster_id": "1", "revision": "9"}, "created": True}}
    etcd.answers["watch"] = [created, *pieces, message(3, unfinished=False), message(4, unfinished=False)]
    with trio.fail_after(PATIENCE_S):
        async with store_on(etcd).watch("", 3) as watch:
            assert (await watch.receive()).revision == 4
