"""Produce and Fetch: what their callers may not do is refused topic by topic. Called only while anything can be
refused, so that the requests cost nothing otherwise.
"""

import uuid

from logstore.access.authorizer import refusal
from logstore.errors import TopicAuthorizationFailed
from logstore.kafka import fetch, produce
from logstore.kafka.api_types import Broker, Caller
from logstore.kafka.rights.table import RULES, allows
from logstore.kafka.rights.topics import DENIED


def produce_allowed(broker: Broker, request: produce.ProduceRequest, caller: Caller) -> produce.ProduceRequest:
    """The request, with TopicAuthorizationFailed as the problem of each partition that the caller may not write to."""
    topics = [
        (key, partitions)
        if _may(broker, produce.KEY, caller, key)
        else (key, [data._replace(problem=_refused(caller, key)) for data in partitions])
        for key, partitions in request.topics
    ]
    return request._replace(topics=topics)


def _refused(caller: Caller, topic: str | uuid.UUID) -> TopicAuthorizationFailed:
    """What is wrong with a partition; a topic that was named by its id is not named."""
    if isinstance(topic, uuid.UUID):
        return TopicAuthorizationFailed(DENIED)
    (needed,) = RULES[produce.KEY].rights
    return TopicAuthorizationFailed(refusal(caller, needed.operation, needed.resource_type, topic))


def fetch_allowed(broker: Broker, request: fetch.FetchRequest, caller: Caller) -> fetch.FetchRequest:
    """The request, with the topics that the caller may not read marked as refused."""
    refused = frozenset(key for key, _ in request.topics if not _may(broker, fetch.KEY, caller, key))
    return request._replace(refused=refused)


def _may(broker: Broker, request_key: int, caller: Caller, topic: str | uuid.UUID) -> bool:
    """Whether the caller may do this with a topic; an id that no topic has is for the handler to refuse."""
    if isinstance(topic, uuid.UUID):
        found = broker.engine.store.topic_by_id(topic)
        return found is None or allows(broker, request_key, caller, found.name)
    return allows(broker, request_key, caller, topic)
