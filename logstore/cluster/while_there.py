"""Changes of the metadata store that a client asks for: one that cannot be made now is answered with the reason.

Invariants: a store that is away for a moment costs nobody anything. What was begun when the store went away may be made
all the same, and the error says so; each change here may be asked for again.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from logstore.base.errors import CairnError
from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
from logstore.base.metadata.interface import MetadataStore

T = TypeVar("T")
AWAY_S: Final = 1.5
"""For which a store is away before a client hears of it: one of several endpoints may be, and the next one answers. A
command waits for 5 s, and is to hear the reason."""
LOOK_S: Final = 0.1


def require_there(store: MetadataStore) -> None:
    """Raise MetadataUnavailable if a metadata store does not answer: who waits for it would not learn why."""
    if store.statistics.away:
        raise MetadataUnavailable(f"{_said(store)}; records can still be written and read")


async def while_there(store: MetadataStore, change: Callable[[], Awaitable[T]]) -> T:
    """What a change gives. Raises OutcomeUnknown if the store is away for AWAY_S meanwhile; and what `change` raises,
    if that is a CairnError.
    """
    made: list[T] = []
    failures: list[CairnError] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_when_away, store, nursery.cancel_scope)
        try:
            made.append(await change())
        except CairnError as error:
            failures.append(error)
        nursery.cancel_scope.cancel()
    if made:
        return made[0]
    if failures:
        raise failures[0]
    raise OutcomeUnknown(
        f"{_said(store)}; records can still be written and read; the change was not made, or is made when the store "
        "is back: look, and ask again"
    )


async def _end_when_away(store: MetadataStore, scope: trio.CancelScope) -> None:
    since_s = trio.current_time()
    while trio.current_time() - since_s < AWAY_S:
        await trio.sleep(LOOK_S)
        if not store.statistics.away:
            since_s = trio.current_time()
    scope.cancel()


def _said(store: MetadataStore) -> str:
    return f"the metadata store is away ({store.statistics.away or 'it did not answer'})"
