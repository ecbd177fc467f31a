"""Shows and changes the settings of topics: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

Invariants: only settings that have an effect can be changed; a setting of Kafka's that has only one value in Cairn is
shown as read-only, and setting it to another value is INVALID_CONFIG. The sidecar's own settings are shown under
Kafka's names and are never changed over the network.

Source: Kafka protocol guide; KIP-226 (where a value comes from), KIP-339 (incremental changes).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from logstore.base.addresses import ANY_ADDRESS
from logstore.errors import CairnError, InvalidConfig
from logstore.kafka.api_types import Api, Broker, Caller
from logstore.kafka.errors import error_code
from logstore.kafka.pace import Pace
from logstore.kafka.server import Listener
from logstore.kafka.wire import respond
from logstore.log.store import StoreSettings
from logstore.log.topics import FIXED, SETTINGS, TopicConfig, describe_config, parse_config

TOPIC, BROKER = 2, 4
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


class ConfigSource(IntEnum):
    """Where a value comes from; the numbers are those of DescribeConfigs."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """The type of a value; the numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


_KINDS: Mapping[str, ConfigType] = {
    "segment.bytes": ConfigType.INT,
    "max.message.bytes": ConfigType.INT,
    "cleanup.policy": ConfigType.LIST,
    "message.timestamp.type": ConfigType.STRING,
    "compression.type": ConfigType.STRING,
    "min.insync.replicas": ConfigType.INT,
    "unclean.leader.election.enable": ConfigType.BOOLEAN,
    "preallocate": ConfigType.BOOLEAN,
    "remote.storage.enable": ConfigType.BOOLEAN,
}
"""The settings that are not a LONG."""
_BROKER_NAMES: Mapping[str, str] = {
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.insync.replicas": "min.insync.replicas",
    "compression.type": "compression.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
}
"""Kafka's name for the default of a topic setting."""


class ConfigEntry(NamedTuple):
    """One setting with its value, as clients see it."""

    name: str
    value: str
    source: ConfigSource
    kind: ConfigType
    read_only: bool
    default: str
    default_source: ConfigSource
    documentation: str | None

    def described(self, *, synonyms: bool = False, documentation: bool = False) -> Mapping[str, Any]:
        """The entry in an answer."""
        return {
            "name": self.name,
            "value": self.value,
            "read_only": self.read_only,
            "config_source": int(self.source),
            "is_default": self.source is not ConfigSource.TOPIC,
            "is_sensitive": False,
            "synonyms": self._synonyms() if synonyms else [],
            "config_type": int(self.kind),
            "documentation": self.documentation if documentation else None,
        }

    def _synonyms(self) -> Sequence[Mapping[str, Any]]:
        own = {"name": self.name, "value": self.value, "source": int(self.source)}
        default_name = _BROKER_NAMES.get(self.name, self.name)
        default = {"name": default_name, "value": self.default, "source": int(self.default_source)}
        return [own, default] if self.source is ConfigSource.TOPIC else [default]


def topic_entries(config: TopicConfig, overrides: Mapping[str, str], defaults: TopicConfig) -> list[ConfigEntry]:
    """All settings of a topic: `config` is in effect, `overrides` are the topic's own, `defaults` the sidecar's."""
    values, ours, built_in = describe_config(config), describe_config(defaults), describe_config(TopicConfig())
    entries = []
    for name, value in sorted(values.items()):
        default_source = ConfigSource.DEFAULT if ours[name] == built_in[name] else ConfigSource.STATIC_BROKER
        entries.append(
            ConfigEntry(
                name,
                value,
                ConfigSource.TOPIC if name in overrides else default_source,
                _KINDS.get(name, ConfigType.LONG),
                name in FIXED,
                ours[name] if name in overrides else value,
                default_source,
                SETTINGS[name].documentation if name in SETTINGS else "Has one value here.",
            )
        )
    return entries


ENTRIES = 15
"""Approximate number of settings of a topic."""


class ConfigHandlers:
    """Shows and changes settings. `listeners` are the sidecar's, known once they are open."""

    def __init__(self, broker: Broker, listeners: Sequence[Listener]) -> None:
        self._broker = broker
        self._pace = Pace()
        self._listeners = listeners

    def apis(self) -> list[Api]:
        """The requests served here."""
        return [
            Api(32, 1, 4, self.describe_configs),
            Api(33, 0, 2, self.alter_configs),
            Api(44, 0, 1, self.incremental_alter_configs),
        ]

    # ---- showing

    async def describe_configs(self, request: Any, caller: Caller) -> ResponsePayload:
        """DescribeConfigs 1 to 4."""
        documentation = getattr(request, "include_documentation", False)
        results = []
        # A resource that is named twice is answered once: an answer is many times as long as its request.
        asked = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
        for resource in asked.values():
            await self._pace.step(ENTRIES)
            outcome: Mapping[str, Any] = {"error_code": ErrorCode.none, "error_message": None}
            entries: list[ConfigEntry] = []
            try:
                entries = self._entries(resource.resource_type, resource.resource_name, caller)
            except CairnError as error:
                outcome = {"error_code": self._code(error), "error_message": str(error)}
            keys = set(resource.configuration_keys or ())
            configs = [
                entry.described(synonyms=request.include_synonyms, documentation=documentation)
                for entry in entries
                if not keys or entry.name in keys
            ]
            results.append({**_named(resource), **outcome, "configs": configs})
        return await respond(request, {"results": results})

    def _entries(self, resource_type: int, name: str, caller: Caller) -> list[ConfigEntry]:
        """Raises UnknownTopicOrPartition, or _UnknownResource if the name is neither a topic nor this node."""
        defaults = self._broker.settings.topic_defaults
        if resource_type == TOPIC:
            topic = self._broker.engine.store.topic(name)
            return topic_entries(topic.config, topic.overrides, defaults)
        if resource_type == BROKER and name in ("", str(self._broker.engine.store.node_id)):
            return self._broker_entries(caller) if name else []
        raise _UnknownResource(
            f"there is no resource of type {resource_type} named {name!r}; topics (2) and node 0 (4) are"
        )

    def _broker_entries(self, caller: Caller) -> list[ConfigEntry]:
        settings = self._broker.settings
        ours, built_in = describe_config(settings.topic_defaults), describe_config(TopicConfig())
        rows = [
            (_BROKER_NAMES[name], ours[name], built_in[name], _KINDS.get(name, ConfigType.LONG))
            for name in _BROKER_NAMES
        ]
        check_ms = str(self._broker.engine.store.settings.retention_check_interval_ms)
        creates = str(settings.auto_create_topics).lower()
        rows += [
            ("auto.create.topics.enable", creates, "true", ConfigType.BOOLEAN),
            ("num.partitions", str(settings.default_partitions), "1", ConfigType.INT),
            ("socket.request.max.bytes", str(settings.max_frame_bytes), str(16 << 20), ConfigType.INT),
            ("default.replication.factor", str(self._broker.engine.store.default_replicas), "1", ConfigType.INT),
            (
                "log.retention.check.interval.ms",
                check_ms,
                str(StoreSettings().retention_check_interval_ms),
                ConfigType.LONG,
            ),
        ]
        node_id = str(self._broker.engine.store.node_id)
        rows += [(name, node_id, "-1", ConfigType.INT) for name in ("broker.id", "node.id")]
        rows += [(name, value, "", ConfigType.LIST) for name, value in self._addresses(caller).items()]
        entries = []
        for name, value, default, kind in sorted(rows):
            source = ConfigSource.DEFAULT if value == default else ConfigSource.STATIC_BROKER
            entries.append(ConfigEntry(name, value, source, kind, True, value, source, None))
        return entries

    def _addresses(self, caller: Caller) -> Mapping[str, str]:
        """The addresses where this node listens, and the advertised ones, in Kafka's notation."""
        listen, told = [], []
        for number, listener in enumerate(self._listeners):
            name = listener.protocol.value if not number else f"{listener.protocol.value}_{number}"
            # A listener on any address advertises the address that the client used.
            host = listener.advertised_host or (
                caller.advertised_host if listener.host in ANY_ADDRESS else listener.host
            )
            listen.append(f"{name}://{_bracketed(listener.host)}:{listener.port}")
            told.append(f"{name}://{_bracketed(host)}:{listener.advertised_port or listener.port}")
        return {"advertised.listeners": ",".join(told), "listeners": ",".join(listen)}

    # ---- changing

    async def alter_configs(self, request: Any, _: Caller) -> ResponsePayload:
        """AlterConfigs 0 to 2: the settings in the request replace all of the topic's own settings."""

        def named(resource: Any) -> dict[str, str | None]:
            return {entry.name: entry.value for entry in resource.configs}

        answers = [await self._alter(request, each, named, resets_others=True) for each in request.resources]
        return await respond(request, {"responses": answers})

    async def incremental_alter_configs(self, request: Any, _: Caller) -> ResponsePayload:
        """IncrementalAlterConfigs 0 and 1."""

        def named(resource: Any) -> dict[str, str | None]:
            return _incremental(resource.configs)

        answers = [await self._alter(request, each, named, resets_others=False) for each in request.resources]
        return await respond(request, {"responses": answers})

    async def _alter(
        self, request: Any, resource: Any, named: Callable[[Any], dict[str, str | None]], *, resets_others: bool
    ) -> Mapping[str, Any]:
        await self._pace.step()
        outcome: Mapping[str, Any] = {"error_code": ErrorCode.none, "error_message": None}
        engine = self._broker.engine
        try:
            if resource.resource_type != TOPIC:
                raise _UnknownResource(
                    "only topics can be changed over the network; the sidecar's settings are its own"
                )
            topic = engine.store.topic(resource.resource_name)
            changes = named(resource)
            parse_config(changes)
            if not request.validate_only:
                await engine.wait(engine.store.alter_topic(topic.name, changes, resets_others=resets_others))
        except CairnError as error:
            outcome = {"error_code": self._code(error), "error_message": str(error)}
        return {**_named(resource), **outcome}

    @staticmethod
    def _code(error: CairnError) -> ErrorCode:
        return ErrorCode.invalid_request if isinstance(error, _UnknownResource) else error_code(error)


class _UnknownResource(CairnError):
    """A resource that is neither a topic nor this node."""


def _named(resource: Any) -> Mapping[str, Any]:
    return {"resource_type": resource.resource_type, "resource_name": resource.resource_name}


def _incremental(entries: Iterable[Any]) -> dict[str, str | None]:
    """The changes that a list of operations on single settings makes. Raises InvalidConfig."""
    changes: dict[str, str | None] = {}
    for entry in entries:
        if entry.name in changes:
            raise InvalidConfig(f"topic setting {entry.name!r} is changed twice in one request")
        if entry.config_operation == _DELETE:
            changes[entry.name] = None
        elif entry.config_operation == _SET:
            if entry.value is None:
                raise InvalidConfig(f"topic setting {entry.name!r} is set to nothing; delete it to get the default")
            changes[entry.name] = entry.value
        elif entry.config_operation == _APPEND and _KINDS.get(entry.name) is ConfigType.LIST:
            # The only list setting has one possible value: appending it changes nothing, any other value is refused.
            changes[entry.name] = entry.value
        else:
            raise InvalidConfig(
                f"operation {entry.config_operation} on topic setting {entry.name!r} is not possible here"
            )
    return changes


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
