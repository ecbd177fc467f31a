"""Producer ids for idempotent producers: InitProducerId.

Invariants: an id is given out once, even across crashes; its epoch starts at 0. A request with a transactional id gets
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which every client takes as final.

Sources: KIP-98, KIP-360 (an idempotent producer that asks again gets a new id).
"""

from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.base.metadata.errors import MetadataUnavailable, OutcomeUnknown
from logstore.errors import CairnError, StorageFailed
from logstore.events import NO_PRODUCER_ID
from logstore.kafka.api_types import Api, Broker, Caller
from logstore.kafka.errors import error_code
from logstore.kafka.wire import respond

_NO_ID, _NO_EPOCH, _FIRST_EPOCH = -1, -1, 0


class ProducerIdHandlers:
    """Gives out producer ids."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def apis(self) -> list[Api]:
        """The requests served here."""
        return [Api(22, 0, 5, self.init_producer_id)]

    async def init_producer_id(self, request: Any, _: Caller) -> ResponsePayload:
        """InitProducerId 0 to 5."""
        no_producer = {"producer_id": _NO_ID, "producer_epoch": _NO_EPOCH}
        if request.transactional_id is not None:
            return await respond(
                request, {"error_code": ErrorCode.transactional_id_authorization_failed, **no_producer}
            )
        try:
            given = await self._broker.engine.wait(self._broker.engine.store.allocate_producer_id())
        except CairnError as error:
            self._broker.engine.store.report(NO_PRODUCER_ID, error=str(error))
            # Clients take KAFKA_STORAGE_ERROR as final for this request; behind COORDINATOR_NOT_AVAILABLE they look for
            # the coordinator of a transaction, which they do not have; behind this one they ask again, as Kafka's want.
            may_ask_again = isinstance(error, StorageFailed | MetadataUnavailable | OutcomeUnknown)
            code = ErrorCode.coordinator_load_in_progress if may_ask_again else error_code(error)
            return await respond(request, {"error_code": code, **no_producer})
        return await respond(
            request, {"error_code": ErrorCode.none, "producer_id": given, "producer_epoch": _FIRST_EPOCH}
        )
