"""The properties that Kafka's own clients know: a name in a `--command-config` file that is none of these is a mistake.

The file may be shared with Kafka's tools, so it may hold what only these understand. No I/O.

Invariant: no warning holds a value, nor a line of the file that lost the backslash in front of it, which may be a part
of a key or a password, and is read as a name: what is shown has words with dots between them, and is near a known name.

Source: the configuration classes of Apache Kafka 4.2 (admin, producer, consumer), and names that versions before had.
"""

import re
from collections.abc import Iterable
from typing import Final

from logstore.base.fields import nearest

MAX_WARNINGS: Final = 5
_MAX_CHARACTERS: Final = 80
_LIKE_A_NAME: Final = re.compile(r"[A-Za-z0-9-]+(?:[._][A-Za-z0-9-]+)+")
"""Words with dots or underscores between them, as all names but `acks` and `retries` have."""
_FAMILIES: Final = ("config.providers.", "internal.", "metrics.context.", "sasl.oauthbearer.")
"""Beginnings of names whose ends are the user's own, or too many."""
_COMMON: Final = """
bootstrap.servers bootstrap.controllers client.dns.lookup client.id client.rack config.providers
connections.max.idle.ms default.api.timeout.ms metadata.max.age.ms metadata.recovery.strategy
metadata.recovery.rebootstrap.trigger.ms receive.buffer.bytes send.buffer.bytes reconnect.backoff.ms
reconnect.backoff.max.ms request.timeout.ms retries retry.backoff.ms retry.backoff.max.ms
socket.connection.setup.timeout.ms socket.connection.setup.timeout.max.ms auto.include.jmx.reporter
enable.metrics.push metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
security.protocol security.providers
"""
_SSL: Final = """
ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
ssl.truststore.type
"""
_SASL: Final = """
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
"""
_PRODUCER: Final = """
acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type compression.zstd.level
delivery.timeout.ms enable.idempotence interceptor.classes key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
partitioner.ignore.keys transaction.timeout.ms transaction.two.phase.commit.enable transactional.id
value.serializer
"""
_CONSUMER: Final = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs enable.auto.commit
exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id
group.protocol group.remote.assignor heartbeat.interval.ms isolation.level key.deserializer
max.partition.fetch.bytes max.poll.interval.ms max.poll.records partition.assignment.strategy
session.timeout.ms share.acknowledgement.mode share.acquire.mode value.deserializer
"""
KAFKA_PROPERTIES: Final = frozenset(" ".join((_COMMON, _SSL, _SASL, _PRODUCER, _CONSUMER)).split())


def stranger_warnings(names: Iterable[str]) -> list[str]:
    """What to say of the names that no client of Kafka's knows, the first MAX_WARNINGS of them; letters' case is no
    difference, as in `logstore.client.security`.
    """
    strangers = [
        name for name in names if name.lower() not in KAFKA_PROPERTIES and not name.lower().startswith(_FAMILIES)
    ]
    first, more = strangers[:MAX_WARNINGS], len(strangers) - MAX_WARNINGS
    said = [f"{_shown(name)} is not a property of Kafka's clients and is ignored" + _hint(name) for name in first]
    return said + ([f"{more} more names are unknown as well"] if more > 0 else [])


def _hint(name: str) -> str:
    return nearest(name.lower(), sorted(KAFKA_PROPERTIES))


def _shown(name: str) -> str:
    if len(name) <= _MAX_CHARACTERS and _LIKE_A_NAME.fullmatch(name) and _hint(name):
        return repr(name)
    return f"a name of {len(name)} characters (not shown, as it may be a part of a secret)"
