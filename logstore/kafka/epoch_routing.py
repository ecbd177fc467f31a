"""Requests about epochs and queries on a host of a cluster: answered here, or passed on to the home of epochs.

The host that owns the topic of epochs has them (`cluster.epochs.epochs_home`); a request is passed on with who asks.

Invariants:
* What is answered from memory alone, an error too, is confirmed first: a home that was replaced and does not know it
  says nothing that was true only before.
* Rights are checked by the home, for the caller whom the other host has let in.
"""

from functools import partial
from typing import Final, NamedTuple

import trio

from logstore.cluster.epochs.epochs_home import EpochsHome
from logstore.cluster.streams.owner_calls import FORWARD, CallServer, OwnerCalls
from logstore.epochs.epochs import Epochs
from logstore.errors import CairnError, MalformedRequest, TryAgain, UnknownTopicOrPartition
from logstore.format.epoch_api import EpochCommitReply, Reply, StageReply, encode_reply_body
from logstore.format.fields import MAX_FIELDS_BYTES, decode_fields, encode_fields, get_int, get_text
from logstore.format.operator_api import DESCRIBE_QUERIES, DescribeQueriesRequest, QueriesReply
from logstore.format.operator_api import decode_request as decode_operator_request
from logstore.format.operator_api import encode_reply_body as encode_operator_reply
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker, Caller, PrivateApi
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.epochs import EPOCH_KEYS, EpochRequests
from logstore.kafka.home_routing import TOPIC_WAIT_S, HomeRouting, PassedOn
from logstore.kafka.operators import queries_reply

_KEYS: Final = (*EPOCH_KEYS, DESCRIBE_QUERIES)
_PORT_MAX: Final = 65_535


class _AskedRequest(NamedTuple):
    """A request, and who asks."""

    api_key: int
    caller: Caller
    body: memoryview


class EpochRouting:
    """See the module."""

    def __init__(self, broker: Broker, home: EpochsHome, owners: OwnerCalls) -> None:
        self._broker = broker
        self._home = home
        form = PassedOn(FORWARD, "the epochs of queries", _encode, _decode)
        self._routing = HomeRouting(home, owners, form, self._answer_here)

    def apis(self) -> list[PrivateApi]:
        """The requests that are served."""
        return [PrivateApi(key, partial(self.handle, key)) for key in _KEYS]

    def serve(self, calls: CallServer) -> None:
        """Serve calls of kind FORWARD from now on."""
        calls.handle(FORWARD, self._routing.serve)

    async def handle(self, api_key: int, body: memoryview, _: AnswerBudget, caller: Caller) -> tuple[list[Buffer], int]:
        """Answer a client's request. Who only looks makes no topic of epochs."""
        try:
            if api_key == DESCRIBE_QUERIES and not await self._home.is_made():
                return encode_operator_reply(QueriesReply(())), 0
            return await self._routing.ask(_AskedRequest(api_key, caller, body)), 0
        except TryAgain as error:
            return encode_reply_body(error), 0

    async def _answer_here(self, asked: _AskedRequest) -> list[Buffer] | None:
        """The answer of the epochs here; None: they are not here, or no more."""
        api_key, caller, body = asked
        epochs = self._home.epochs
        if epochs is None:
            return None
        with self._home.entered():
            if api_key == DESCRIBE_QUERIES:
                queries = self._queries(epochs, body, caller)
                return encode_operator_reply(queries) if await self._home.confirm_seen(epochs) else None
            reply = await self._reply(EpochRequests(self._broker, epochs), api_key, body, caller)
            if _is_certain(reply) or await self._home.confirm(epochs):
                return encode_reply_body(reply)
        return None

    async def _reply(
        self, requests: EpochRequests, api_key: int, body: memoryview, caller: Caller
    ) -> Reply | CairnError:
        """The reply; a topic that is not known here may be new, and is waited for."""
        deadline = trio.current_time() + TOPIC_WAIT_S
        reply = await requests.reply(api_key, body, caller)
        while isinstance(reply, UnknownTopicOrPartition) and trio.current_time() < deadline:
            with trio.move_on_at(deadline):
                await self._home.topics_changed()
            reply = await requests.reply(api_key, body, caller)
        return reply

    def _queries(self, epochs: Epochs, body: memoryview, caller: Caller) -> QueriesReply | CairnError:
        try:
            request = decode_operator_request(DESCRIBE_QUERIES, body)
            after = request.after if isinstance(request, DescribeQueriesRequest) else ""
            return queries_reply(self._broker, epochs, after, caller)
        except CairnError as error:
            return error


def _is_certain(reply: Reply | CairnError) -> bool:
    """Whether a reply rests on something that was acknowledged for it."""
    return isinstance(reply, StageReply) or (isinstance(reply, EpochCommitReply) and reply.outcome == "committed")


def _encode(asked: _AskedRequest) -> list[Buffer]:
    return [encode_fields({"key": asked.api_key, **asked.caller._asdict()}), asked.body]


def _decode(payload: memoryview) -> _AskedRequest:
    """Raises MalformedRequest."""
    fields, body = decode_fields(payload)
    api_key = get_int(fields, "key", 0, 2**15 - 1)
    if api_key not in _KEYS:
        raise MalformedRequest(f"{api_key} is not a request about epochs")
    client_id, host, advertised_host, principal = (
        get_text(fields, name, MAX_FIELDS_BYTES) for name in ("client_id", "host", "advertised_host", "principal")
    )
    port = get_int(fields, "advertised_port", 0, _PORT_MAX)
    return _AskedRequest(api_key, Caller(client_id, host, advertised_host, port, principal), body)
