"""Generations of groups as entries of a ledger: members go on in them when another host coordinates the group.

Invariants:
* A generation is durable before its members are told their assignments, and so is the new id of a static member before
  its client is told. So the next coordinator knows the generation that members work in, or they are asked to join.
* Whoever reads a generation has its members as they were: ids, protocols with metadata, assignments, timeouts.
* A group without members has no entry. A generation above MAX_ENTRY_BYTES is not kept, and the one before it goes: its
  members join again. So do those of an entry that cannot be read.

Source: Kafka's GroupMetadataManager (GroupMetadataValue), which keeps the same in its topic of offsets.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from logstore.base.clock import Clock
from logstore.kafka.groups.group import ConsumerGroup
from logstore.kafka.groups.members import Member, Protocol
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
        self._keys = {key for key, _ in ledger.items(PREFIX)}

    def groups(self) -> Iterator[ConsumerGroup]:
        """See GenerationLog."""
        for key, value in self._ledger.items(PREFIX):
            group = decode_generation(unquote(key.removeprefix(PREFIX)), value)
            if group is not None:
                yield group

    def keep(self, group: ConsumerGroup, now_s: float) -> Ticket[float]:
        """See GenerationLog."""
        value = encode_generation(group)
        if len(value) > MAX_ENTRY_BYTES:
            self.forget(group.group_id)
            return Ticket.succeeded(now_s)
        key = _key(group.group_id)
        self._keys.add(key)
        kept: Ticket[float] = Ticket()

        def settle(written: Ticket[None]) -> None:
            if written.error is None:
                kept.succeed(self._clock.monotonic_s())
            else:
                kept.fail(written.error)

        self._ledger.put({key: value}).add_callback(settle)
        return kept

    def forget(self, group_id: str) -> None:
        """See GenerationLog."""
        key = _key(group_id)
        if key in self._keys:
            self._keys.discard(key)
            self._ledger.put({key: None})


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


def _member_fields(member: Member) -> Mapping[str, object]:
    return {
        "id": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "session_ms": member.session_timeout_ms,
        "rebalance_ms": member.rebalance_timeout_ms,
        "protocols": [[name, base64.b64encode(metadata).decode()] for name, metadata in member.protocols],
        "assignment": base64.b64encode(member.assignment).decode(),
    }


def _member(fields: Mapping[str, Any]) -> Member:
    return Member(
        member_id=_text(fields["id"]),
        instance_id=None if fields["instance"] is None else _text(fields["instance"]),
        client_id=_text(fields["client"]),
        client_host=_text(fields["host"]),
        session_timeout_ms=_number(fields["session_ms"]),
        rebalance_timeout_ms=_number(fields["rebalance_ms"]),
        protocols=tuple(Protocol(_text(name), _bytes(metadata)) for name, metadata in _list(fields["protocols"])),
        assignment=_bytes(fields["assignment"]),
        is_new=False,
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
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number")
    return value


def _bytes(value: object) -> bytes:
    return base64.b64decode(_text(value), validate=True)


def _key(group_id: str) -> str:
    return PREFIX + quote(group_id, safe="")
