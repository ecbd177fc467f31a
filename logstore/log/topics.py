"""Topics: the names that are allowed, and the settings that have an effect here.

Invariants: a `TopicConfig` is complete and valid. Kafka's other settings are refused by name, so that no client relies
on a setting without effect. Names follow Kafka's rules.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from logstore.errors import InvalidConfig, InvalidTopic
from logstore.log.chunks import MAX_APPEND_BYTES

MAX_NAME_LENGTH = 249
MAX_PARTITIONS = 10_000
"""Of one topic; bounds the work that one request can cause."""
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_INT64_MAX = (1 << 63) - 1
_DAY_MS = 24 * 3600 * 1000
NO_LIMIT_MS = _INT64_MAX
LIKE_RETENTION = -2
"""A local retention that is the topic's retention."""
CREATE_TIME, LOG_APPEND_TIME = "CreateTime", "LogAppendTime"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of one topic. Times in ms, sizes in bytes; -1 is "no limit" where it is allowed."""

    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    segment_bytes: int = 64 << 20
    segment_ms: int = 7 * _DAY_MS
    max_message_bytes: int = 1_048_588
    timestamp_before_max_ms: int = NO_LIMIT_MS
    timestamp_after_max_ms: int = 3_600_000
    timestamp_type: str = CREATE_TIME
    min_insync_replicas: int = 1
    remote_storage: str = "false"
    local_retention_ms: int = -2
    local_retention_bytes: int = -2

    @property
    def is_tiered(self) -> bool:
        """Whether sealed chunks go to the tier."""
        return self.remote_storage == "true"

    @property
    def kept_local_ms(self) -> int:
        """How long the local copy of a chunk in the tier stays; -1: no limit."""
        return self.retention_ms if self.local_retention_ms == LIKE_RETENTION else self.local_retention_ms

    @property
    def kept_local_bytes(self) -> int:
        """Size of local copies beyond which those that are in the tier go; -1: no limit."""
        return self.retention_bytes if self.local_retention_bytes == LIKE_RETENTION else self.local_retention_bytes

    @property
    def stamps_appends(self) -> bool:
        """Whether records get the time of their append instead of their producer's."""
        return self.timestamp_type == LOG_APPEND_TIME


class TopicSetting(NamedTuple):
    """A topic setting: the `TopicConfig` field that it sets, and its allowed values (one of `choices`, if any)."""

    field: str
    minimum: int
    maximum: int
    documentation: str
    choices: tuple[str, ...] = ()


SETTINGS: Mapping[str, TopicSetting] = {
    "retention.ms": TopicSetting(
        "retention_ms", -1, _INT64_MAX, "How long in ms records stay at least, from their append; -1: no limit."
    ),
    "retention.bytes": TopicSetting(
        "retention_bytes", -1, _INT64_MAX, "Size in bytes beyond which whole chunks are trimmed; -1: no limit."
    ),
    "segment.bytes": TopicSetting("segment_bytes", 1024, 1 << 30, "Size at which a chunk is sealed."),
    "segment.ms": TopicSetting(
        "segment_ms", 1, _INT64_MAX, "Age in ms of a chunk's first append at which the chunk is sealed."
    ),
    "max.message.bytes": TopicSetting("max_message_bytes", 0, MAX_APPEND_BYTES, "Largest batch that is accepted."),
    "message.timestamp.before.max.ms": TopicSetting(
        "timestamp_before_max_ms", 0, _INT64_MAX, "How far behind the clock a record's timestamp may be."
    ),
    "message.timestamp.after.max.ms": TopicSetting(
        "timestamp_after_max_ms", 0, _INT64_MAX, "How far ahead of the clock a record's timestamp may be."
    ),
    "message.timestamp.type": TopicSetting(
        "timestamp_type",
        0,
        0,
        "Whose time records carry: their producer's (CreateTime), or that of their append (LogAppendTime).",
        (CREATE_TIME, LOG_APPEND_TIME),
    ),
    "min.insync.replicas": TopicSetting(
        "min_insync_replicas",
        1,
        (1 << 31) - 1,
        "How many replicas acks=all waits for, but no more than there are: one.",
    ),
    "remote.storage.enable": TopicSetting(
        "remote_storage",
        0,
        0,
        "Whether sealed chunks are stored in the tier, which the sidecar's tier-url names.",
        ("false", "true"),
    ),
    "local.retention.ms": TopicSetting(
        "local_retention_ms",
        LIKE_RETENTION,
        _INT64_MAX,
        "How long in ms a chunk in the tier stays on the local disk as well, from its last append; -2: retention.ms.",
    ),
    "local.retention.bytes": TopicSetting(
        "local_retention_bytes",
        LIKE_RETENTION,
        _INT64_MAX,
        "Size in bytes of local chunks beyond which those in the tier leave the local disk; -2: retention.bytes.",
    ),
}

FIXED: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "unclean.leader.election.enable": "false",
    "preallocate": "false",
}
"""Settings that exist in Kafka and have only one allowed value here."""

_WHY_FIXED: Mapping[str, str] = {
    "cleanup.policy": "there is no compaction",
    "compression.type": "batches are stored as their producers send them; compress there",
}


def check_name(name: str) -> None:
    """Raise InvalidTopic unless `name` is allowed as a topic name."""
    if not name or name in (".", "..") or len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise InvalidTopic(
            f"topic name {name[:300]!r} is not allowed: 1 to {MAX_NAME_LENGTH} of the characters a-z A-Z 0-9 . _ -, "
            "and neither . nor .."
        )


def named_and_reset(
    settings: Mapping[str, str], changes: Mapping[str, str | None], *, resets_others: bool
) -> Mapping[str, str | None]:
    """All that a change does to a topic's own settings; None resets one. `resets_others`: also those that it does not
    name.
    """
    return {**dict.fromkeys(settings), **changes} if resets_others else changes


def parse_config(changes: Mapping[str, str | None], base: TopicConfig = TopicConfig()) -> TopicConfig:
    """`base` with `changes` applied; None resets a setting to its default. Raises InvalidConfig."""
    values: dict[str, int | str] = {}
    defaults = TopicConfig()
    for name, text in changes.items():
        setting = SETTINGS.get(name)
        if setting is None:
            if name not in FIXED:
                raise InvalidConfig(
                    f"unknown topic setting {name!r}; known are {', '.join(sorted({*SETTINGS, *FIXED}))}"
                )
            if text is not None and text.strip().lower() != FIXED[name].lower():
                why = f" ({_WHY_FIXED[name]})" if name in _WHY_FIXED else ""
                raise InvalidConfig(f"{name}={text!r} is not supported here; it can only be {FIXED[name]!r}{why}")
            continue
        values[setting.field] = getattr(defaults, setting.field) if text is None else _parse(name, setting, text)
    config = replace(base, **values)  # type: ignore[arg-type]  # each field's own type, by the table
    for kind, kept, local in (
        ("ms", config.retention_ms, config.local_retention_ms),
        ("bytes", config.retention_bytes, config.local_retention_bytes),
    ):
        if local != LIKE_RETENTION and kept >= 0 and not 0 <= local <= kept:
            raise InvalidConfig(f"local.retention.{kind}={local} must be from 0 to {kept}, the retention, or -2 for it")
    return config


def require_tier(config: TopicConfig, *, has_tier: bool) -> TopicConfig:
    """The settings of a new or changed topic. Raises InvalidConfig if they need a tier and there is none."""
    if config.is_tiered and not has_tier:
        raise InvalidConfig(
            "remote.storage.enable=true needs a tier: start the sidecar, or every host of a cluster, with --tier-url "
            "webhdfs://…"
        )
    return config


def _parse(name: str, setting: TopicSetting, text: str) -> int | str:
    """The value of a setting from its text. Raises InvalidConfig."""
    if setting.choices:
        text = text.strip().lower() if "true" in setting.choices else text
        if text not in setting.choices:
            raise InvalidConfig(f"{name}={text!r} must be one of {', '.join(setting.choices)}")
        return text
    try:
        value = int(text)
    except ValueError as error:
        raise InvalidConfig(f"{name}={text!r} is not a whole number") from error
    if not setting.minimum <= value <= setting.maximum:
        raise InvalidConfig(f"{name}={value} must be from {setting.minimum} to {setting.maximum}")
    return value


def describe_config(config: TopicConfig) -> dict[str, str]:
    """All settings of a topic by their Kafka names, fixed ones included."""
    known = {name: str(getattr(config, setting.field)) for name, setting in SETTINGS.items()}
    return {**known, **FIXED}
