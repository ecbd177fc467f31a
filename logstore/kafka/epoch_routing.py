"""Requests about epochs and queries on a host of a cluster: answered here, or passed on to the home of epochs.

A client may ask any host. The host that owns the topic of epochs has them (`logstore.cluster.epochs_home`); every other
one passes the request on, with who asks, and gives back the answer.

Invariants:
* A request that a lost host, or a home that is none any more, leaves without an answer is asked again, until PATIENCE_S
  are over: each of them may be asked twice without harm.
* What is answered from memory alone, an error too, is confirmed first: a home that was replaced and does not know it
  says nothing that was true only before.
* The home serves a request that is passed on no longer than PATIENCE_S: the other host has given it up by then.
* Rights are checked by the home, for the caller whom the other host has let in. Only members of the cluster pass on.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from logstore.cluster.epochs_home import EpochsHome
from logstore.cluster.owner_calls import FORWARD, OwnerCalls
from logstore.epochs.epochs import Epochs
from logstore.errors import CairnError, HostUnreachable, MalformedRequest, TryAgain, UnknownTopicOrPartition
from logstore.format.epoch_api import EpochCommitReply, Reply, StageReply, encode_reply_body
from logstore.format.fields import MAX_FIELDS_BYTES, decode_fields, encode_fields, get_int, get_text
from logstore.format.operator_api import DESCRIBE_QUERIES, DescribeQueriesRequest, QueriesReply
from logstore.format.operator_api import decode_request as decode_operator_request
from logstore.format.operator_api import encode_reply_body as encode_operator_reply
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker, Caller, PrivateApi
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.epochs import EPOCH_KEYS, EpochRequests
from logstore.kafka.operators import queries_reply

PATIENCE_S: Final = 25.0
"""Less than a client waits for an answer before it connects again."""
FIRST_PAUSE_S: Final = 0.02
MAX_PAUSE_S: Final = 0.5
"""Between two tries, unless the epochs come to this host before; each pause is twice as long as the one before."""
TOPIC_WAIT_S: Final = 2.0
"""How long this host may be behind another one in what topics there are."""
_KEYS: Final = (*EPOCH_KEYS, DESCRIBE_QUERIES)
_PORT_MAX: Final = 65_535


class EpochRouting:
    """See the module."""

    def __init__(self, broker: Broker, home: EpochsHome, owners: OwnerCalls) -> None:
        self._broker = broker
        self._home = home
        self._owners = owners

    def apis(self) -> list[PrivateApi]:
        """The requests that are served."""
        return [PrivateApi(key, partial(self.handle, key)) for key in _KEYS]

    async def handle(self, api_key: int, body: memoryview, _: AnswerBudget, caller: Caller) -> tuple[list[Buffer], int]:
        """Answer a client's request. Who only looks makes no topic of epochs."""
        if api_key == DESCRIBE_QUERIES and not self._home.is_made:
            return encode_operator_reply(QueriesReply(())), 0
        pause_s = FIRST_PAUSE_S
        with trio.move_on_after(PATIENCE_S):
            while True:
                answer = await self._try(api_key, body, caller)
                if answer is not None:
                    return answer, 0
                with trio.move_on_after(pause_s):
                    await self._home.changed()
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
        error = TryAgain(f"no host of the cluster had the epochs of queries for {PATIENCE_S:g} s; retry")
        return encode_reply_body(error), 0

    async def passed_on(self, host: str, payload: memoryview) -> Sequence[Buffer]:
        """Answer a request that another host passes on; nothing: this host is not the home."""
        try:
            api_key, caller, body = _decode(payload)
        except MalformedRequest as error:
            return encode_reply_body(error)
        answer = None
        with trio.move_on_after(PATIENCE_S):
            answer = await self._answer_here(api_key, body, caller)
        return [] if answer is None else answer

    async def _try(self, api_key: int, body: memoryview, caller: Caller) -> list[Buffer] | None:
        """The answer, or None: ask again."""
        stream = self._home.stream
        owner = None if stream is None else self._owners.owner_of(stream)
        if self._home.epochs is not None:
            return await self._answer_here(api_key, body, caller)
        if stream is None or owner is None:
            return None
        try:
            answer = await self._owners.call_host(owner, stream, FORWARD, _encode(api_key, caller, body))
        except HostUnreachable:
            return None
        return [answer] if len(answer) else None

    async def _answer_here(self, api_key: int, body: memoryview, caller: Caller) -> list[Buffer] | None:
        """The answer of the epochs here; None: they are here no more."""
        epochs = self._home.epochs
        if epochs is None:
            return None
        with self._home.entered():
            if api_key == DESCRIBE_QUERIES:
                return encode_operator_reply(self._queries(epochs, body, caller))
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


def _encode(api_key: int, caller: Caller, body: memoryview) -> list[Buffer]:
    return [encode_fields({"key": api_key, **caller._asdict()}), body]


def _decode(payload: memoryview) -> tuple[int, Caller, memoryview]:
    """Key, caller and body of a request that is passed on. Raises MalformedRequest."""
    fields, body = decode_fields(payload)
    api_key = get_int(fields, "key", 0, 2**15 - 1)
    if api_key not in _KEYS:
        raise MalformedRequest(f"{api_key} is no request about epochs")
    client_id, host, advertised_host, principal = (
        get_text(fields, name, MAX_FIELDS_BYTES) for name in ("client_id", "host", "advertised_host", "principal")
    )
    port = get_int(fields, "advertised_port", 0, _PORT_MAX)
    return api_key, Caller(client_id, host, advertised_host, port, principal), body
