"""What operators' commands ask of a cluster: its hosts, where the partitions of a topic are, that hosts leave, and that
a stream goes on without what nobody can read.

Invariant: answers are bounded (`logstore.cluster.survey`). Any host may be asked, and asked again: what is changed is
an entry that all hosts act on (`logstore.cluster.members.departures`).

Source: docs/format.md, "Private requests".
"""

from functools import partial

from logstore.access.acls import CLUSTER_NAME
from logstore.cluster.members.departures import Departures
from logstore.cluster.survey import Survey, wait_summary
from logstore.errors import CairnError
from logstore.format.host_summaries import DRAIN, UNDRAIN, HostChanged
from logstore.format.operator_api import (
    CHANGE_HOST,
    CLUSTER_API_KEYS,
    DESCRIBE_HOSTS,
    DESCRIBE_PLACES,
    FORGET_PRODUCERS,
    ChangeHostRequest,
    DescribePlacesRequest,
    ForgetProducersRequest,
    OperatorReply,
    ProducersForgotten,
    decode_request,
    encode_reply_body,
)
from logstore.interfaces import Buffer
from logstore.kafka.api_types import Broker, Caller, PrivateApi
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.rights import table


def cluster_apis(broker: Broker, survey: Survey) -> list[PrivateApi]:
    """The handlers of a host of a cluster."""
    return [PrivateApi(key, partial(_handle, broker, survey, key)) for key in sorted(CLUSTER_API_KEYS)]


async def _handle(
    broker: Broker, survey: Survey, api_key: int, body: memoryview, _: AnswerBudget, caller: Caller
) -> tuple[list[Buffer], int]:
    """Answer one request."""
    try:
        request = decode_request(api_key, body)
        if isinstance(request, DescribePlacesRequest):
            table.require(broker, DESCRIBE_PLACES, caller, request.topic)
            survey.require_metadata()
            placement = broker.placement
            nodes = () if placement is None else placement.nodes(caller.advertised_host, caller.advertised_port)
            addresses = {node.node_id: f"{node.host}:{node.port}" for node in nodes}
            reply: OperatorReply | CairnError = await survey.places(request.topic, request.first, addresses)
        elif isinstance(request, ChangeHostRequest):
            table.require(broker, CHANGE_HOST, caller, CLUSTER_NAME)
            survey.require_metadata()
            reply = await _changed(survey.departures, request)
        elif isinstance(request, ForgetProducersRequest):
            table.require(broker, FORGET_PRODUCERS, caller, CLUSTER_NAME)
            survey.require_metadata()
            forgotten = await survey.waits.forget(
                request.topic,
                request.partition,
                request.chunk,
                even_if_away=request.even_if_away,
                repeat_epochs=request.repeat_epochs,
            )
            reply = ProducersForgotten(wait_summary(forgotten))
        else:
            table.require(broker, DESCRIBE_HOSTS, caller, CLUSTER_NAME)
            survey.require_metadata()
            reply = await survey.hosts()
    except CairnError as error:
        reply = error
    return encode_reply_body(reply), 0


async def _changed(departures: Departures, request: ChangeHostRequest) -> HostChanged:
    """Carry out an action. Raises UnknownHost, HostStays, MetadataError."""
    chunks = 0
    if request.action == DRAIN:
        await departures.drain(request.host)
    elif request.action == UNDRAIN:
        await departures.undrain(request.host)
    else:
        chunks = await departures.remove(request.host)
    return HostChanged(request.host, chunks)
