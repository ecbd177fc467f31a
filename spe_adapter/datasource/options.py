"""The options of the `cairn` source and sink, parsed once into frozen objects.

The names and meanings are those of Spark's Kafka source and sink, so that a user changes one word. An option that is
not supported is refused with an error that names the option and the allowed values. No option is ignored, except for
Kafka client settings that tune something that this package does not have (`HARMLESS_*`, each with its reason).

Invariant: names are case-insensitive, as Spark's are; nothing here talks to a sidecar.

Source: Spark's Structured Streaming + Kafka Integration Guide.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from logstore.base.addresses import Address
from logstore.base.near_names import near_name
from logstore.client.blocking import parse_addresses
from logstore.client.security import PLAINTEXT, PROPERTIES, ClientSecurity, parse_security
from logstore.errors import InvalidConfig
from logstore.format.epoch_api import Rewind
from logstore.format.fields import MAX_NAME_CHARACTERS
from spe_adapter.codec.encode import DEFAULT_BATCH_BYTES
from spe_adapter.datasource.offsets import EARLIEST, LATEST, Offsets, TopicPartition, parse_assignment, parse_offsets

SOURCE_NAME: Final = "cairn"

DEFAULT_SOURCE_LIMIT_MS: Final = 60_000
DEFAULT_SINK_LIMIT_MS: Final = 120_000
DEFAULT_POLL_MS: Final = 120_000
DEFAULT_FETCH_BYTES: Final = 2 * 1024 * 1024
DEFAULT_TRIGGER_DELAY_MS: Final = 15 * 60_000

Strategy = Literal["error", "latest"]

SUBSCRIPTIONS: Final = ("assign", "subscribe", "subscribePattern")

KAFKA_PREFIX: Final = "kafka."
SECURITY_OPTIONS: Final = tuple(f"{KAFKA_PREFIX}{name}" for name in PROPERTIES)
"""TLS and logins: the properties of Kafka's client, as Spark's own Kafka source takes them."""

SOURCE_OPTIONS: Final = frozenset(
    (
        *SUBSCRIPTIONS,
        "kafka.bootstrap.servers",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "failOnDataLoss",
        "reader",
        "includeHeaders",
        "kafkaConsumer.pollTimeoutMs",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "kafka.client.id",
        "kafka.default.api.timeout.ms",
        "kafka.isolation.level",
        "kafka.max.partition.fetch.bytes",
        *SECURITY_OPTIONS,
    )
)
SINK_OPTIONS: Final = frozenset(
    (
        "topic",
        "includeHeaders",
        "includeTimestamp",
        "rewoundCheckpoint",
        "changedCheckpoint",
        "allowOtherQueries",
        "kafka.bootstrap.servers",
        "kafka.acks",
        "kafka.batch.size",
        "kafka.client.id",
        "kafka.compression.type",
        "kafka.delivery.timeout.ms",
        "kafka.enable.idempotence",
        *SECURITY_OPTIONS,
    )
)
# Spark hands its own options on to every source and sink.
SPARK_OPTIONS: Final = frozenset(("path", "checkpointLocation", "queryName"))

HARMLESS_SOURCE_OPTIONS: Final[Mapping[str, str]] = {
    "groupIdPrefix": "the source reads without a consumer group",
    "kafka.group.id": "the source reads without a consumer group",
    "kafka.session.timeout.ms": "the source reads without a consumer group",
    "kafka.heartbeat.interval.ms": "the source reads without a consumer group",
    "kafka.max.poll.records": "records come as Arrow batches",
    "kafka.max.poll.interval.ms": "the source reads without a consumer group",
    "fetchOffset.numRetries": "kafka.default.api.timeout.ms bounds all retries",
    "fetchOffset.retryIntervalMs": "kafka.default.api.timeout.ms bounds all retries",
    "kafka.retries": "kafka.default.api.timeout.ms bounds all retries",
    "kafka.retry.backoff.ms": "kafka.default.api.timeout.ms bounds all retries",
    "kafka.reconnect.backoff.ms": "kafka.default.api.timeout.ms bounds all retries",
    "kafka.reconnect.backoff.max.ms": "kafka.default.api.timeout.ms bounds all retries",
    "kafka.request.timeout.ms": "kafka.default.api.timeout.ms bounds all retries",
    "kafka.fetch.min.bytes": "only records known to be there are fetched",
    "kafka.fetch.max.wait.ms": "only records known to be there are fetched",
    "kafka.fetch.max.bytes": "one stream is fetched at a time: kafka.max.partition.fetch.bytes",
    "kafka.check.crcs": "checksums are always checked",
    "kafka.connections.max.idle.ms": "a task's connection ends with it",
    "kafka.metadata.max.age.ms": "topics are looked up at each trigger",
    "kafka.receive.buffer.bytes": "the operating system tunes its buffers",
    "kafka.send.buffer.bytes": "the operating system tunes its buffers",
    "kafkaConsumer.consumerCacheTimeout": "there is no cache of consumers",
}
HARMLESS_SINK_OPTIONS: Final[Mapping[str, str]] = {
    "kafka.linger.ms": "a task stages its output in large segments",
    "kafka.buffer.memory": "a task stages what it has, in large segments",
    "kafka.max.in.flight.requests.per.connection": "staging keeps its order",
    "kafka.max.request.size": "segments are cut to what the sidecar accepts",
    "kafka.max.block.ms": "kafka.delivery.timeout.ms bounds all retries",
    "kafka.request.timeout.ms": "kafka.delivery.timeout.ms bounds all retries",
    "kafka.retries": "kafka.delivery.timeout.ms bounds all retries",
    "kafka.retry.backoff.ms": "kafka.delivery.timeout.ms bounds all retries",
    "kafka.reconnect.backoff.ms": "kafka.delivery.timeout.ms bounds all retries",
    "kafka.reconnect.backoff.max.ms": "kafka.delivery.timeout.ms bounds all retries",
    "kafka.metadata.max.age.ms": "topics are looked up by each task",
    "kafka.connections.max.idle.ms": "a task's connection ends with it",
    "kafka.receive.buffer.bytes": "the operating system tunes its buffers",
    "kafka.send.buffer.bytes": "the operating system tunes its buffers",
}

_MS_PER_S: Final = 1000
_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.IGNORECASE)


# ---- what the options say


@dataclass(frozen=True, slots=True)
class Subscription:
    """The streams to read: exactly one of the three fields is set."""

    assign: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """Where to start or end: one offset or timestamp for all streams, or one for each."""

    option: str
    everywhere: int | None = None
    each: Offsets | None = None
    is_timestamp: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Admission control: offsets per trigger, and how long fewer than `min_offsets` may be held back."""

    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """A source's options."""

    servers: tuple[Address, ...]
    subscription: Subscription
    starting: SourcePosition
    ending: SourcePosition
    strategy: Strategy
    fail_on_data_loss: bool
    include_headers: bool
    limits: AdmissionLimits
    min_partitions: int | None
    max_records_per_partition: int | None
    limit_s: float
    poll_s: float
    fetch_bytes: int
    client_id: str
    security: ClientSecurity = PLAINTEXT
    reader: str | None = None
    """The name under which a streaming query is registered as a reader."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """A sink's options. `checkpoint` and `query_name` are Spark's own, if they were given as options."""

    servers: tuple[Address, ...]
    topic: str | None
    include_timestamp: bool
    rewind: Rewind
    batch_bytes: int
    codec: int
    limit_s: float
    client_id: str
    accept_changed_checkpoint: bool
    allow_other_queries: bool
    checkpoint: str | None
    query_name: str | None
    security: ClientSecurity = PLAINTEXT


class OptionReader:
    """Looks options up without regard to case. Every method raises InvalidConfig naming the option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._spelled = {name.lower(): name for name in options}

    def text(self, name: str) -> str | None:
        """An option, or None."""
        return self._options.get(name.lower())

    def number(self, name: str, minimum: int = 1) -> int | None:
        """A whole number of at least `minimum`, or None."""
        text = self.text(name)
        if text is None:
            return None
        if not text.strip().lstrip("+").isdigit() or int(text) < minimum:
            raise InvalidConfig(f"option {name!r} is {text!r}; a whole number of at least {minimum} is allowed")
        return int(text)

    def flag(self, name: str, default: bool) -> bool:
        """`true` or `false`."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """One of `allowed`, in lower case."""
        text = (self.text(name) or default).strip().lower()
        if text not in allowed:
            raise InvalidConfig(f"option {name!r} is {self.text(name)!r}; allowed: {', '.join(allowed)}")
        return text

    def duration_ms(self, name: str, default_ms: int) -> int:
        """A time such as `15m`, `30s`, `500ms` or a number of milliseconds."""
        text = self.text(name)
        if text is None:
            return default_ms
        match = _DURATION.fullmatch(text)
        unit = _UNITS_MS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise InvalidConfig(f"option {name!r} is {text!r}; allowed: a number and one of ms, s, m, h, d")
        return int(match[1]) * unit

    def seconds(self, name: str, default_s: float, least_s: float) -> float:
        """A time such as `15m`, `30s` or `1500ms`, with its unit, of at least `least_s`; in seconds."""
        text = self.text(name)
        if text is None:
            return default_s
        if text.strip().isdecimal():
            raise InvalidConfig(
                f"option {name!r} is {text!r}, without a unit; write {text}s for seconds, or ms, m, h, d"
            )
        seconds = self.duration_ms(name, 0) / _MS_PER_S
        if seconds < least_s:
            raise InvalidConfig(f"option {name!r} is {text!r}; allowed: at least {least_s:g}s")
        return seconds

    def servers(self) -> tuple[Address, ...]:
        """The sidecar's addresses."""
        text = self.text("kafka.bootstrap.servers")
        if text is None:
            raise InvalidConfig("option 'kafka.bootstrap.servers' is missing; set it to the sidecar's host:port")
        try:
            return tuple(parse_addresses(text))
        except InvalidConfig as error:
            raise InvalidConfig(f"option 'kafka.bootstrap.servers': {error}") from error

    def security(self) -> ClientSecurity:
        """TLS and the login of the connections to the sidecar."""
        return parse_security(self._options, KAFKA_PREFIX)

    def refuse_unknown(self, known: frozenset[str], harmless: Mapping[str, str], what: str) -> None:
        """Refuse every option that is neither known nor harmless."""
        allowed = {name.lower() for name in (*known, *harmless, *SPARK_OPTIONS)}
        for name in sorted(self._options):
            if name not in allowed:
                meant = {one.lower(): one for one in known}
                near = near_name(name, meant)
                hint = "" if near is None else f" (did you mean {meant[near]}?)"
                raise InvalidConfig(
                    f"option {self._spelled[name]!r} is not one of the {what}'s{hint}: {', '.join(sorted(known))}"
                )

    def refuse(self, names: tuple[str, ...], reason: str) -> None:
        """Refuse options that have no meaning here."""
        for name in names:
            if self.text(name) is not None:
                raise InvalidConfig(f"option {name!r} {reason}")


# ---- the source


def parse_source(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a source. Raises InvalidConfig, which names the option and what is allowed."""
    reader = OptionReader(options)
    reader.refuse_unknown(SOURCE_OPTIONS, HARMLESS_SOURCE_OPTIONS, "cairn source")
    reader.choice("kafka.isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted")
    if streaming:
        reader.refuse(
            ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
            "is for batch queries; a stream does not end",
        )
    else:
        reader.refuse(
            ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
            "is for streaming queries; a batch query has no triggers",
        )
    limits = _limits(reader)
    strategy = reader.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return SourceOptions(
        servers=reader.servers(),
        subscription=_subscription(reader),
        starting=_starting(reader, streaming=streaming),
        ending=_ending(reader),
        strategy="latest" if strategy == "latest" else "error",
        fail_on_data_loss=reader.flag("failOnDataLoss", True),
        include_headers=reader.flag("includeHeaders", False),
        limits=limits,
        min_partitions=reader.number("minPartitions"),
        max_records_per_partition=reader.number("maxRecordsPerPartition"),
        limit_s=(reader.number("kafka.default.api.timeout.ms") or DEFAULT_SOURCE_LIMIT_MS) / 1000,
        poll_s=(reader.number("kafkaConsumer.pollTimeoutMs") or DEFAULT_POLL_MS) / 1000,
        fetch_bytes=reader.number("kafka.max.partition.fetch.bytes") or DEFAULT_FETCH_BYTES,
        client_id=reader.text("kafka.client.id") or SOURCE_NAME,
        reader=_reader_name(reader, streaming=streaming),
        security=reader.security(),
    )


def _reader_name(reader: OptionReader, *, streaming: bool) -> str | None:
    name = reader.text("reader")
    if name is None:
        return None
    if not streaming:
        raise InvalidConfig(f"option 'reader' is {name!r} in a batch query, which has no position; allowed: readStream")
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise InvalidConfig(f"option 'reader' has {len(name)} characters; allowed: 1 to {MAX_NAME_CHARACTERS}")
    if not name.isprintable():
        raise InvalidConfig(f"option 'reader' is {name!r}; allowed: characters that can be printed")
    return name


def include_headers(options: Mapping[str, str]) -> bool:
    """Whether the schema has headers; Spark asks for the schema before it says whether the query is streaming."""
    return OptionReader(options).flag("includeHeaders", False)


def _limits(reader: OptionReader) -> AdmissionLimits:
    maximum, minimum = reader.number("maxOffsetsPerTrigger"), reader.number("minOffsetsPerTrigger")
    if maximum is not None and minimum is not None and minimum > maximum:
        raise InvalidConfig(
            f"option 'minOffsetsPerTrigger' is {minimum}, above 'maxOffsetsPerTrigger' {maximum}; at most as much is "
            "allowed"
        )
    return AdmissionLimits(maximum, minimum, reader.duration_ms("maxTriggerDelay", DEFAULT_TRIGGER_DELAY_MS))


def _subscription(reader: OptionReader) -> Subscription:
    given = [name for name in SUBSCRIPTIONS if reader.text(name) is not None]
    if len(given) != 1:
        raise InvalidConfig(
            f"exactly one of the options {', '.join(SUBSCRIPTIONS)} is needed; there are {', '.join(given) or 'none'}"
        )
    option, text = given[0], (reader.text(given[0]) or "").strip()
    if option == "assign":
        return Subscription(assign=parse_assignment(text, option))
    if option == "subscribe":
        topics = tuple(sorted({topic.strip() for topic in text.split(",") if topic.strip()}))
        if not topics:
            raise InvalidConfig("option 'subscribe' names no topic; write topics with commas between them")
        return Subscription(topics=topics)
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidConfig(f"option 'subscribePattern' is {text!r}, no regular expression: {error}") from error
    if not text:
        raise InvalidConfig("option 'subscribePattern' is empty; write a regular expression")
    return Subscription(pattern=text)


def _starting(reader: OptionReader, *, streaming: bool) -> SourcePosition:
    found = _by_timestamp(reader, "startingTimestamp", "startingOffsetsByTimestamp")
    if found is not None:
        return found
    option = "startingOffsets"
    text = reader.text(option)
    if text is None:
        return SourcePosition(option, everywhere=LATEST if streaming else EARLIEST)
    word = text.strip().lower()
    if word == "earliest":
        return SourcePosition(option, everywhere=EARLIEST)
    if word == "latest":
        if not streaming:
            raise InvalidConfig("option 'startingOffsets' is 'latest'; allowed in a batch query: earliest, or JSON")
        return SourcePosition(option, everywhere=LATEST)
    offsets = _offsets(text, option, "earliest, latest, or JSON")
    if not streaming and LATEST in offsets.values():
        raise InvalidConfig("option 'startingOffsets' holds -1 (latest); allowed in a batch query: -2, or an offset")
    return SourcePosition(option, each=offsets)


def _ending(reader: OptionReader) -> SourcePosition:
    found = _by_timestamp(reader, "endingTimestamp", "endingOffsetsByTimestamp")
    if found is not None:
        return found
    option = "endingOffsets"
    text = reader.text(option)
    if text is None or text.strip().lower() == "latest":
        return SourcePosition(option, everywhere=LATEST)
    if text.strip().lower() == "earliest":
        raise InvalidConfig("option 'endingOffsets' is 'earliest'; allowed: latest, or JSON")
    offsets = _offsets(text, option, "latest, or JSON")
    if EARLIEST in offsets.values():
        raise InvalidConfig("option 'endingOffsets' holds -2 (earliest); allowed: -1, or an offset")
    return SourcePosition(option, each=offsets)


def _offsets(text: str, option: str, allowed: str) -> Offsets:
    if not text.lstrip().startswith("{"):
        raise InvalidConfig(f"option {option!r} is {text!r}; allowed: {allowed}")
    offsets = parse_offsets(text, option)
    for stream, offset in offsets.items():
        if offset < EARLIEST:
            raise InvalidConfig(f"option {option!r}: {stream} has {offset}; allowed: -2, -1, or an offset from 0")
    return offsets


def _by_timestamp(reader: OptionReader, everywhere: str, each: str) -> SourcePosition | None:
    """Spark's order of precedence: one timestamp for all, then one for each, then offsets."""
    timestamp = reader.number(everywhere, minimum=0)
    if timestamp is not None:
        return SourcePosition(everywhere, everywhere=timestamp, is_timestamp=True)
    text = reader.text(each)
    if text is None:
        return None
    timestamps = parse_offsets(text, each)
    for stream, value in timestamps.items():
        if value < 0:
            raise InvalidConfig(f"option {each!r}: {stream} has {value}; allowed: milliseconds from 0")
    return SourcePosition(each, each=timestamps, is_timestamp=True)


# ---- the sink

_CODECS: Final = {"none": 0, "gzip": 1, "lz4": 3, "zstd": 4}
MAX_BATCH_BYTES: Final = 1024 * 1024 - 64 * 1024
"""A topic's max.message.bytes is 1 MiB unless set; one record may still push a batch past this."""


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """The options of a sink. Raises InvalidConfig, which names the option and what is allowed."""
    reader = OptionReader(options)
    reader.refuse_unknown(SINK_OPTIONS, HARMLESS_SINK_OPTIONS, "cairn sink")
    acks = reader.choice("kafka.acks", ("all", "-1", "0", "1"), "all")
    if acks == "0":
        raise InvalidConfig("option 'kafka.acks' is '0'; allowed: all, -1, 1 (what is committed is always durable)")
    idempotence = reader.choice("kafka.enable.idempotence", ("true", "false"), "true")
    if idempotence == "false":
        raise InvalidConfig("option 'kafka.enable.idempotence' is 'false'; allowed: true (the sink is exactly once)")
    reader.flag("includeHeaders", False)  # the sink writes headers whenever there is such a column, as Spark's does
    batch_bytes = reader.number("kafka.batch.size") or DEFAULT_BATCH_BYTES
    if batch_bytes > MAX_BATCH_BYTES:
        raise InvalidConfig(f"option 'kafka.batch.size' is {batch_bytes}; allowed: 1 to {MAX_BATCH_BYTES}")
    topic = reader.text("topic")
    if topic is not None and not topic.strip():
        raise InvalidConfig("option 'topic' is empty; write a topic's name")
    rewind = reader.choice("rewoundCheckpoint", ("error", "skip"), "error")
    return SinkOptions(
        servers=reader.servers(),
        topic=topic.strip() if topic is not None else None,
        include_timestamp=reader.flag("includeTimestamp", False),
        rewind="skip" if rewind == "skip" else "error",
        accept_changed_checkpoint=reader.choice("changedCheckpoint", ("error", "accept"), "error") == "accept",
        allow_other_queries=reader.flag("allowOtherQueries", False),
        checkpoint=reader.text("checkpointLocation"),
        query_name=reader.text("queryName"),
        batch_bytes=batch_bytes,
        codec=_CODECS[reader.choice("kafka.compression.type", tuple(_CODECS), "none")],
        limit_s=(reader.number("kafka.delivery.timeout.ms") or DEFAULT_SINK_LIMIT_MS) / 1000,
        client_id=reader.text("kafka.client.id") or SOURCE_NAME,
        security=reader.security(),
    )
