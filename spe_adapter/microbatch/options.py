"""The options of a stateful query, parsed once into a frozen object.

An option of the cairn sink has the same name and meaning here; the other options concern state. No option is ignored:
an unknown one is refused with an error that names the option and the allowed values.

Invariant: names are case-insensitive; this module does no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from logstore.errors import InvalidConfig
from spe_adapter.checkpoint.settings import CheckpointSettings
from spe_adapter.datasource.options import (
    HARMLESS_SINK_OPTIONS,
    SECURITY_OPTIONS,
    OptionReader,
    SinkOptions,
    parse_sink,
)
from spe_adapter.epochs.retention import STATE_HISTORIES, StateHistory
from spe_adapter.microbatch.checkpoint_options import CHECKPOINT_OPTIONS, checkpoint_settings
from spe_adapter.microbatch.sizes import size_option
from spe_adapter.operators.formats import RESULT_FORMATS, ResultFormat

STATE_OPTIONS: Final = CHECKPOINT_OPTIONS | frozenset(
    (
        "allowOtherQueries",
        "allowTrimming",
        "closingDelay",
        "combine",
        "extentLimit",
        "lateTopic",
        "observe",
        "resultFormat",
        "retention",
        "stateDirectory",
        "stateHistory",
        "stateLimit",
        "stateMemory",
    )
)
Combine = Literal["auto", "always", "never"]
COMBINE: Final[tuple[Combine, ...]] = ("auto", "always", "never")
"""The values of the option `combine`, the default first."""
DEFAULT_STATE_LIMIT_BYTES: Final = 2 * 1024 * 1024 * 1024
"""Per query and host. Shared memory is half of a machine's memory by default; one query should not take all of it."""
DEFAULT_CLOSING_DELAY_MS: Final = 300
"""A source with more records starts its next batch well within this time."""

_SINK_OPTIONS: Final = frozenset(
    (
        "changedCheckpoint",
        "kafka.acks",
        "kafka.batch.size",
        "kafka.bootstrap.servers",
        "kafka.client.id",
        "kafka.compression.type",
        "kafka.delivery.timeout.ms",
        "kafka.enable.idempotence",
        *SECURITY_OPTIONS,
    )
)


@dataclass(frozen=True, slots=True)
class StatefulOptions:
    """The options of a stateful query.

    `extent_limit` is Q, in results and footprints (None: four times the open windows). `retention_ms` None: keep all
    results. `state_root` None: the default directory of state. `state_memory_bytes`: of a partition's state that stay
    in memory between uses (None: all). `closing_delay_ms`: the pause of input after which due windows are closed
    without input. `combine`: whether rows are combined before the shuffle. `checkpoints` None: no checkpoints beside
    the log. `state_history`: which records of state stay in the log. `late_topic`: where rows go that were dropped
    because they came too late (None: nowhere).
    """

    sink: SinkOptions
    topic: str
    extent_limit: int | None
    state_root: str | None
    state_limit_bytes: int
    allow_trimming: bool
    allow_other_queries: bool
    retention_ms: int | None
    closing_delay_ms: int
    combine: Combine
    checkpoints: CheckpointSettings | None = None
    observe: bool = True
    late_topic: str | None = None
    state_history: StateHistory = "all"
    result_format: ResultFormat = "json"
    state_memory_bytes: int | None = None


def parse_stateful(options: Mapping[str, str], topic: str) -> StatefulOptions:
    """The options of a stateful query that writes to `topic`. Raises InvalidConfig."""
    reader = OptionReader(options)
    reader.refuse_unknown(_SINK_OPTIONS | STATE_OPTIONS, HARMLESS_SINK_OPTIONS, "stateful query")
    if not topic.strip():
        raise InvalidConfig("option 'topic' is empty; write the name of the topic for results and state")
    own = {name.lower() for name in STATE_OPTIONS}
    sink = parse_sink({name: value for name, value in options.items() if name.lower() not in own})
    late_topic, combine = _late_topic(reader, topic), _combine(reader)
    if late_topic is not None and combine == "always":
        raise InvalidConfig(
            "options 'combine' = always and 'lateTopic' exclude each other: combined rows can no longer be told apart"
        )
    allow_trimming = reader.flag("allowTrimming", False)
    return StatefulOptions(
        sink=sink,
        topic=topic.strip(),
        extent_limit=reader.number("extentLimit"),
        state_root=reader.text("stateDirectory"),
        state_limit_bytes=size_option(reader, "stateLimit", DEFAULT_STATE_LIMIT_BYTES),
        allow_trimming=allow_trimming,
        allow_other_queries=reader.flag("allowOtherQueries", False),
        retention_ms=None if reader.text("retention") is None else reader.duration_ms("retention", 0),
        closing_delay_ms=reader.duration_ms("closingDelay", DEFAULT_CLOSING_DELAY_MS),
        combine="never" if late_topic is not None else combine,
        late_topic=late_topic,
        state_history=_state_history(reader, allow_trimming=allow_trimming),
        result_format=_result_format(reader),
        checkpoints=checkpoint_settings(reader),
        observe=reader.flag("observe", True),
        state_memory_bytes=_state_memory(reader),
    )


def _state_memory(reader: OptionReader) -> int | None:
    text = reader.text("stateMemory")
    if text is None:
        return None
    if reader.text("stateDirectory") is None:
        raise InvalidConfig(
            f"option 'stateMemory' is {text!r}, but state is in shared memory; set the option 'stateDirectory' "
            "as well: a directory on a disk of each host"
        )
    return size_option(reader, "stateMemory", 0)


def _late_topic(reader: OptionReader, topic: str) -> str | None:
    text = reader.text("lateTopic")
    if text is None:
        return None
    if not text.strip() or text.strip() == topic.strip():
        raise InvalidConfig(f"option 'lateTopic' is {text!r}; write the name of a topic other than the results' topic")
    return text.strip()


def _state_history(reader: OptionReader, *, allow_trimming: bool) -> StateHistory:
    text = reader.choice("stateHistory", STATE_HISTORIES, STATE_HISTORIES[0])
    if text == "recovery" and allow_trimming:
        raise InvalidConfig(
            "options 'stateHistory' = recovery and 'allowTrimming' = true exclude each other: the sidecar learns from "
            "the query's registration which state a recovery needs"
        )
    return next(each for each in STATE_HISTORIES if each == text)


def _result_format(reader: OptionReader) -> ResultFormat:
    text = reader.choice("resultFormat", RESULT_FORMATS, "json")
    return next(each for each in RESULT_FORMATS if each == text)


def _combine(reader: OptionReader) -> Combine:
    text = reader.text("combine")
    for allowed in COMBINE:
        if text is None or text.lower() == allowed:
            return allowed
    raise InvalidConfig(f"option 'combine' is {text!r}; allowed: {', '.join(COMBINE)}")
