"""Topics: names that may be used, and settings that mean something here.

Invariants: a `TopicConfig` is complete and valid; whatever else Kafka knows is refused by name, so nobody believes in a
setting that does nothing. Names follow Kafka's rules.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from logstore.errors import InvalidConfig, InvalidTopic
from logstore.log.chunks import MAX_APPEND_BYTES

MAX_NAME_LENGTH = 249
MAX_PARTITIONS = 10_000
"""Over all of a topic; a bound on what one request can make the sidecar do."""
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_INT64_MAX = (1 << 63) - 1
_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of one topic. Times in ms, sizes in bytes; -1 is "no limit" where it is allowed."""

    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    segment_bytes: int = 64 << 20
    max_message_bytes: int = 1_048_588
    timestamp_after_max_ms: int = 3_600_000


class Setting(NamedTuple):
    """A topic setting by its Kafka name: the field it sets, and the values it may have."""

    field: str
    minimum: int
    maximum: int
    documentation: str


SETTINGS: Mapping[str, Setting] = {
    "retention.ms": Setting(
        "retention_ms", -1, _INT64_MAX, "Age in ms beyond which whole chunks are trimmed; -1: never."
    ),
    "retention.bytes": Setting(
        "retention_bytes", -1, _INT64_MAX, "Size in bytes beyond which whole chunks are trimmed; -1: no limit."
    ),
    "segment.bytes": Setting("segment_bytes", 1024, 1 << 30, "Size at which a chunk is sealed."),
    "max.message.bytes": Setting("max_message_bytes", 0, MAX_APPEND_BYTES, "Largest batch that is accepted."),
    "message.timestamp.after.max.ms": Setting(
        "timestamp_after_max_ms", 0, _INT64_MAX, "How far ahead of the clock a record's timestamp may be."
    ),
}

FIXED: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "compression.type": "producer",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
    "preallocate": "false",
    "remote.storage.enable": "false",
}
"""Settings that exist in Kafka and can have one value here."""


def check_name(name: str) -> None:
    """Raises InvalidTopic unless `name` may be a topic's."""
    if not name or name in (".", "..") or len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise InvalidTopic(
            f"topic name {name[:300]!r} is not allowed: 1 to {MAX_NAME_LENGTH} of the characters a-z A-Z 0-9 . _ -, "
            "and neither . nor .."
        )


def parse_config(changes: Mapping[str, str | None], base: TopicConfig = TopicConfig()) -> TopicConfig:
    """`base` with settings changed; None sets one back to its default. Raises InvalidConfig."""
    values: dict[str, int] = {}
    defaults = {field.name: field.default for field in fields(TopicConfig)}
    for name, text in changes.items():
        setting = SETTINGS.get(name)
        if setting is None:
            if name not in FIXED:
                raise InvalidConfig(
                    f"unknown topic setting {name!r}; known are {', '.join(sorted({*SETTINGS, *FIXED}))}"
                )
            if text is not None and text.strip().lower() != FIXED[name].lower():
                raise InvalidConfig(f"{name}={text!r} is not supported here; it can only be {FIXED[name]!r}")
            continue
        if text is None:
            values[setting.field] = int(str(defaults[setting.field]))
            continue
        try:
            value = int(text)
        except ValueError as error:
            raise InvalidConfig(f"{name}={text!r} is not a whole number") from error
        if not setting.minimum <= value <= setting.maximum:
            raise InvalidConfig(f"{name}={value} must be from {setting.minimum} to {setting.maximum}")
        values[setting.field] = value
    return replace(base, **values)


def describe_config(config: TopicConfig) -> dict[str, str]:
    """All settings of a topic by their Kafka names, fixed ones included."""
    known = {name: str(getattr(config, setting.field)) for name, setting in SETTINGS.items()}
    return {**known, **FIXED}
