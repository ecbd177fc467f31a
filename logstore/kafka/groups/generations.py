"""Generations of groups as entries of a ledger: members go on in them when another host coordinates the group.

Invariants:
* A generation is durable before its members are told their assignments. So the next coordinator knows the generation
  that members work in, or they are asked to join.
* The new id of a static member is durable before its client is told, but in a rebalance: there it is told with the
  generation, which is kept later. So an instance id's member id that an entry does not have may be newer, and its
  client is asked to join; former ids are in the entry, and fenced.
* Whoever reads a generation has its members as they were: ids, protocols with metadata, assignments, timeouts.
* A group without members has no entry. A generation above MAX_ENTRY_BYTES is not kept, and the one before it is gone
  before its members are told: the next coordinator knows neither, and they join again. So do those of an entry that
  cannot be read.

Source: Kafka's GroupMetadataManager (GroupMetadataValue), which keeps the same in its topic of offsets.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote

from logstore.base.clock import Clock
from logstore.kafka.groups.generation_log import KeepResult
from logstore.kafka.groups.group import ConsumerGroup
from logstore.kafka.groups.members import MEMBER_BYTES, GroupMember, Protocol
from logstore.kafka.groups.offsets import OffsetLedger
from logstore.log.ticket import Ticket

PREFIX: Final = "members/"
VERSION: Final = 1
MAX_ENTRY_BYTES: Final = 1 << 20
"""Of one group: a thousand members with 700 bytes each. An entry is written anew with each generation."""


class KeptGenerations:
    """The generations in a ledger (see `GenerationLog`)."""

    def __init__(self, ledger: OffsetLedger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._puts = 0
        self._keys = {key: self._puts for key, _ in ledger.items(PREFIX)}
        """Those that may have an entry, each with the number of its last put."""

    def groups(self) -> Iterator[ConsumerGroup | None]:
        """See GenerationLog."""
        for key, value in self._ledger.items(PREFIX):
            yield decode_generation(unquote(key.removeprefix(PREFIX)), value)

    def keep(self, group: ConsumerGroup, now_s: float) -> Ticket[KeepResult]:
        """See GenerationLog."""
        key, value = _key(group.group_id), _encoded(group)
        if value is None and key not in self._keys:
            return Ticket.succeeded(KeepResult(now_s, is_durable=True))
        kept: Ticket[KeepResult] = Ticket()

        def settle(written: Ticket[None]) -> None:
            kept.succeed(KeepResult(self._clock.monotonic_s(), is_durable=written.error is None))

        self._put(key, value).add_callback(settle)
        return kept

    def forget(self, group_id: str) -> None:
        """See GenerationLog."""
        key = _key(group_id)
        if key in self._keys:
            self._put(key, None)

    def _put(self, key: str, value: bytes | None) -> Ticket[None]:
        self._puts += 1
        number = self._keys[key] = self._puts
        written = self._ledger.put({key: value})
        if value is None:  # one that fails is tried again with the group's next change
            written.add_callback(partial(self._removed, key, number))
        return written

    def _removed(self, key: str, number: int, written: Ticket[None]) -> None:
        if written.error is None and self._keys.get(key) == number:
            del self._keys[key]


def _encoded(group: ConsumerGroup) -> bytes | None:
    """None: that would be too large, which is known without it if there is much more."""
    opaque_bytes = group.size_bytes - MEMBER_BYTES * len(group.members)
    value = encode_generation(group) if opaque_bytes <= MAX_ENTRY_BYTES else b""
    return value if 0 < len(value) <= MAX_ENTRY_BYTES else None


def encode_generation(group: ConsumerGroup) -> bytes:
    """The entry of a group whose members have their assignments."""
    entry = {
        "v": VERSION,
        "type": group.protocol_type,
        "protocol": group.protocol_name,
        "generation": group.generation_id,
        "leader": group.leader_id,
        "members": [_member_fields(member) for member in group.members.values()],
    }
    return json.dumps(entry, separators=(",", ":")).encode()


def decode_generation(group_id: str, value: bytes) -> ConsumerGroup | None:
    """The group of an entry; None if it cannot be read."""
    try:
        entry = json.loads(value)
        if entry["v"] != VERSION:
            return None
        found = [_member(fields) for fields in _list(entry["members"])]
        group = ConsumerGroup.formed(
            group_id,
            protocol_type=_text(entry["type"]),
            protocol_name=_text(entry["protocol"]),
            generation_id=_number(entry["generation"]),
            leader_id=_text(entry["leader"]),
            members=found,
        )
    except (ValueError, KeyError, TypeError):
        return None
    return group if len(group.members) == len(found) > 0 and group.leader_id in group.members else None


def _member_fields(member: GroupMember) -> Mapping[str, object]:
    fields = {
        "id": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "session_ms": member.session_timeout_ms,
        "rebalance_ms": member.rebalance_timeout_ms,
        "protocols": [[name, base64.b64encode(metadata).decode()] for name, metadata in member.protocols],
        "assignment": base64.b64encode(member.assignment).decode(),
    }
    return {**fields, "former": member.former} if member.former else fields


def _member(fields: Mapping[str, Any]) -> GroupMember:
    return GroupMember(
        member_id=_text(fields["id"]),
        instance_id=None if fields["instance"] is None else _text(fields["instance"]),
        client_id=_text(fields["client"]),
        client_host=_text(fields["host"]),
        session_timeout_ms=_number(fields["session_ms"]),
        rebalance_timeout_ms=_number(fields["rebalance_ms"]),
        protocols=tuple(Protocol(_text(name), _bytes(metadata)) for name, metadata in _list(fields["protocols"])),
        assignment=_bytes(fields["assignment"]),
        is_new=False,
        is_told=True,
        former=tuple(_text(former) for former in _list(fields.get("former", []))),
    )


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is no number")
    return value


def _bytes(value: object) -> bytes:
    return base64.b64decode(_text(value), validate=True)


def _key(group_id: str) -> str:
    return PREFIX + quote(group_id, safe="")
