"""Cairn's own requests on the Kafka port, which stage and commit epochs.

Invariants:
* Every answer is a body of `logstore.format.epoch_api`; a CairnError is an error inside it, and closes no
  connection.
* If `auto-create-topics` is on, a topic that a staged segment names is created on first use, before anything is staged.
* Rights are checked before anything is staged, created or committed (`logstore.kafka.rights.table`): those of a commit
  for the topics that it publishes in, when its turn has come.
* No request is served before `roll_forward` has returned.
"""

from collections.abc import Collection, Iterable
from functools import partial
from typing import Final

import trio

from logstore.engine import StoreEngine
from logstore.epochs.epochs import Epochs
from logstore.epochs.query import Search
from logstore.errors import CairnError, TopicAuthorizationFailed
from logstore.format.epoch_api import (
    ABORT,
    DESCRIBE,
    EPOCH_COMMIT,
    STAGE,
    AbortRequest,
    DescribeRequest,
    EpochCommitRequest,
    Reply,
    Request,
    ScanRequest,
    StageRequest,
    decode_request,
    encode_reply_body,
)
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker, Caller, PrivateApi
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.pace import LARGE_BYTES, Walkers
from logstore.kafka.rights import table

TICK_SECONDS: Final = 5.0
EPOCH_KEYS: Final = (STAGE, EPOCH_COMMIT, ABORT, DESCRIBE)


def epoch_apis(broker: Broker, epochs: Epochs) -> list[PrivateApi]:
    """The handlers of the epoch API."""
    requests = EpochRequests(broker, epochs)
    return [PrivateApi(key, partial(requests.handle, key)) for key in EPOCH_KEYS]


async def roll_forward(engine: StoreEngine, epochs: Epochs) -> None:
    """Publish the epochs that were committed before a restart but not published in full. Call it before serving.

    Raises CorruptChunk, CorruptBatch or OSError if the streams cannot show what was published.
    """
    for search in epochs.searches():
        stream = engine.store.stream(search.target.topic, search.target.partition)

        def take(offset: int, batch: bytes, search: Search = search) -> None:
            epochs.found(search, [(offset, batch)])

        await engine.find_ends(stream, search.from_offset, take=take)
    await engine.wait(epochs.roll_forward())


async def run_ticks(broker: Broker, epochs: Epochs) -> None:
    """Retry failed epochs and drop staged data that is too old, every TICK_SECONDS; runs until cancelled."""
    while True:
        await trio.sleep(TICK_SECONDS)
        epochs.tick(now_ms=broker.clock.wall_ms())
        broker.engine.kick()


class EpochRequests:
    """Decodes requests for `Epochs` and encodes its replies."""

    def __init__(self, broker: Broker, epochs: Epochs) -> None:
        self._broker = broker
        self._epochs = epochs

    async def handle(self, api_key: int, body: memoryview, _: AnswerBudget, caller: Caller) -> tuple[list[Buffer], int]:
        """Answer one request."""
        return encode_reply_body(await self.reply(api_key, body, caller)), 0

    async def reply(self, api_key: int, body: memoryview, caller: Caller) -> Reply | CairnError:
        """What to answer to one request."""
        try:
            if int.from_bytes(body[:4]) > LARGE_BYTES:  # the size of its JSON part, which comes before the data
                request = await Walkers.run(partial(decode_request, api_key, body))
            else:
                request = decode_request(api_key, body)
            return await self._answer(request, caller)
        except CairnError as error:
            return error

    async def _answer(self, request: Request, caller: Caller) -> Reply:
        engine, now_ms = self._broker.engine, self._broker.clock.wall_ms()
        if self._broker.authorizer.is_active:
            self._authorize(request, caller)
        match request:
            case StageRequest():
                await self._create_topics({part.topic for part in request.parts}, caller)
                return await engine.wait(self._epochs.stage(request, now_ms=now_ms))
            case EpochCommitRequest():
                may_publish = partial(self._check_outputs, request, caller)
                return await engine.wait(self._epochs.commit(request, now_ms=now_ms, may_publish=may_publish))
            case AbortRequest():
                return await engine.wait(self._epochs.abort(request))
            case DescribeRequest():
                return self._epochs.describe(request.query)
            case ScanRequest():
                raise AssertionError("scans have a handler of their own")

    def _authorize(self, request: Request, caller: Caller) -> None:
        """Raise NotAuthorized unless the caller may do this with the query, and write to all topics that it stages for.

        What a commit publishes is not settled yet: see `_check_outputs`.
        """
        match request:
            case StageRequest():
                table.require(self._broker, STAGE, caller, request.query)
                for topic in {part.topic for part in request.parts}:
                    table.require(self._broker, STAGE, caller, topic, 1)
            case EpochCommitRequest():
                table.require(self._broker, EPOCH_COMMIT, caller, request.query)
            case AbortRequest():
                table.require(self._broker, ABORT, caller, request.query)
            case DescribeRequest():
                table.require(self._broker, DESCRIBE, caller, request.query)
            case ScanRequest():
                raise AssertionError("scans have a handler of their own")

    def _check_outputs(self, request: EpochCommitRequest, caller: Caller, topics: Collection[str]) -> None:
        """Raise TopicAuthorizationFailed unless the caller may write to all topics that an epoch has output for."""
        if not self._broker.authorizer.is_active:
            return
        if not all(table.allows(self._broker, EPOCH_COMMIT, caller, topic, 1) for topic in topics):
            # Another caller may have staged: the topics are not this one's to know.
            raise TopicAuthorizationFailed(
                f"{caller.principal} may not WRITE to every topic that epoch {request.epoch} of query "
                f"{request.query!r} has output for; ask for ACLs that allow it"
            )

    async def _create_topics(self, names: Iterable[str], caller: Caller) -> None:
        """Create missing topics, if `auto-create-topics` is on; if not, `Epochs.stage` reports a missing topic. Raises
        TopicAuthorizationFailed before any is created.
        """
        store, settings = self._broker.engine.store, self._broker.settings
        if not settings.auto_create_topics:
            return
        missing = [name for name in names if name not in store.topics]
        for name in missing:
            if not self._broker.authorizer.allows_creation(caller, name):
                raise TopicAuthorizationFailed(f"{caller.principal} may not CREATE topic {name!r}, which is missing")
        for name in missing:
            if name not in store.topics:
                await self._broker.engine.wait(store.create_topic(name, settings.default_partitions, {}))
