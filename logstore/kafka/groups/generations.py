"""Generations of groups as entries of a ledger: members go on in them when another host coordinates the group.

Invariants:
* A generation is durable before its members are told their assignments. So the next coordinator knows the generation
  that members work in, or they are asked to join.
* The new id of a static member is durable before its client is told, but in a rebalance: there it is told with the
  generation, which is kept later. So an instance id's member id that an entry does not have may be newer, and its
  client is asked to join; former ids are in the entry, and fenced.
* The new id of a static member is a small entry beside that of its group, if the group is large: such entries take no
  more than the group's own, and go with it, in one put. They count if the group's entry says so and is of the same
  generation: a host of an earlier version, which does not know them, writes whole entries that do not say so.
* Whoever reads a generation has its members as they were: ids, protocols with metadata, assignments, timeouts.
* A group without members has no entry. A generation above MAX_ENTRY_BYTES is not kept, and the one before it is gone
  before its members are told: the next coordinator knows neither, and they join again. So do those of an entry that
  cannot be read.

Source: Kafka's GroupMetadataManager (GroupMetadataValue), which keeps the same in its topic of offsets.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
REJOINED: Final = "rejoined/"
VERSION: Final = 1
LARGE_BYTES: Final = 16 << 10
"""The members of a group that take more have entries of their own when they have joined again. Others are not worth it.
"""
MAX_KEY: Final = 4096
"""Characters of an entry's key, with names of a group and of an instance that no client has to have."""
MAX_ENTRY_BYTES: Final = 1 << 20
"""Of one group: a thousand members with 700 bytes each. An entry is written anew with each generation."""


@dataclass(slots=True)
class _LargeEntry:
    """The entry of a group whose members may have entries of their own. `rejoined_bytes`: of all that were put."""

    generation_id: int
    size_bytes: int
    rejoined_bytes: int = 0


class KeptGenerations:
    """The generations in a ledger (see `GenerationLog`), which are asked for before any is kept."""

    def __init__(self, ledger: OffsetLedger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._puts = 0
        self._keys: dict[str, dict[str, int]] = {}
        """By group: the keys that may have an entry, each with the number of its last put."""
        self._large: dict[str, _LargeEntry] = {}

    def groups(self) -> Iterator[ConsumerGroup | None]:
        """See GenerationLog."""
        rejoined: dict[str, list[bytes]] = {}
        for key, value in self._ledger.items(REJOINED):
            rejoined.setdefault(self._known(key), []).append(value)
            yield None
        for key, value in self._ledger.items(PREFIX):
            group_id = self._known(key)
            beside = rejoined.get(group_id, [])
            group, is_large = decode_generation(group_id, value, beside)
            if group is not None and is_large:
                self._large[group_id] = _LargeEntry(group.generation_id, len(value), sum(map(len, beside)))
            yield group

    def _known(self, key: str) -> str:
        """The group of an entry that the ledger has."""
        group_id = _group_of(key)
        self._keys.setdefault(group_id, {})[key] = 0
        return group_id

    def keep(self, group: ConsumerGroup, now_s: float) -> Ticket[KeepResult]:
        """See GenerationLog."""
        group_id, value = group.group_id, _encoded(group)
        changes: dict[str, bytes | None] = dict.fromkeys(self._keys.get(group_id, {}))
        if value is not None:
            changes[_key(group_id)] = value
        if not changes:
            return Ticket.succeeded(KeepResult(now_s, is_durable=True))
        self._large.pop(group_id, None)
        if value is not None and _is_large(group):
            self._large[group_id] = _LargeEntry(group.generation_id, len(value))
        return self._kept(group_id, self._put(group_id, changes))

    def keep_member(self, group: ConsumerGroup, member: GroupMember, now_s: float) -> Ticket[KeepResult]:
        """See GenerationLog."""
        group_id, large = group.group_id, self._large.get(group.group_id)
        value = _dumped({"v": VERSION, "generation": group.generation_id, "member": _member_fields(member)})
        is_known = large is not None and large.generation_id == group.generation_id
        key = f"{REJOINED}{quote(group_id, safe='')}/{quote(member.instance_id or '', safe='')}"
        if large is None or not is_known or large.rejoined_bytes + len(value) > large.size_bytes or len(key) > MAX_KEY:
            return self.keep(group, now_s)
        large.rejoined_bytes += len(value)
        return self._kept(group_id, self._put(group_id, {key: value}))

    def forget(self, group_id: str) -> None:
        """See GenerationLog."""
        self._large.pop(group_id, None)
        if group_id in self._keys:
            self._put(group_id, dict.fromkeys(self._keys[group_id]))

    def _kept(self, group_id: str, written: Ticket[None]) -> Ticket[KeepResult]:
        kept: Ticket[KeepResult] = Ticket()

        def settle(written: Ticket[None]) -> None:
            if written.error is not None:
                self._large.pop(group_id, None)  # what the ledger has is not known
            kept.succeed(KeepResult(self._clock.monotonic_s(), is_durable=written.error is None))

        written.add_callback(settle)
        return kept

    def _put(self, group_id: str, changes: Mapping[str, bytes | None]) -> Ticket[None]:
        written = self._ledger.put(changes)
        if written.done and written.error is not None:
            return written  # nothing is written: a group that was never kept leaves nothing here
        self._puts += 1
        number = self._puts
        self._keys.setdefault(group_id, {}).update(dict.fromkeys(changes, number))
        gone = [key for key, value in changes.items() if value is None]
        if gone:  # one that fails is tried again with the group's next change
            written.add_callback(partial(self._removed, group_id, gone, number))
        return written

    def _removed(self, group_id: str, gone: Iterable[str], number: int, written: Ticket[None]) -> None:
        keys = self._keys.get(group_id, {})
        for key in gone:
            if written.error is None and keys.get(key) == number:
                del keys[key]
        if not keys:
            self._keys.pop(group_id, None)


def _is_large(group: ConsumerGroup) -> bool:
    return group.size_bytes > LARGE_BYTES


def _encoded(group: ConsumerGroup) -> bytes | None:
    """None: that would be too large, which is known without it if there is much more."""
    opaque_bytes = group.size_bytes - MEMBER_BYTES * len(group.members)
    value = encode_generation(group) if opaque_bytes <= MAX_ENTRY_BYTES else b""
    return value if 0 < len(value) <= MAX_ENTRY_BYTES else None


def encode_generation(group: ConsumerGroup) -> bytes:
    """The entry of a group whose members have their assignments."""
    entry = {
        "v": VERSION,
        **({"rejoined": True} if _is_large(group) else {}),
        "type": group.protocol_type,
        "protocol": group.protocol_name,
        "generation": group.generation_id,
        "leader": group.leader_id,
        "members": [_member_fields(member) for member in group.members.values()],
    }
    return _dumped(entry)


def decode_generation(group_id: str, value: bytes, rejoined: Iterable[bytes]) -> tuple[ConsumerGroup | None, bool]:
    """The group of an entry, None if it cannot be read, with the entries of its members if they count; and whether they
    do.
    """
    try:
        entry = json.loads(value)
        if entry["v"] != VERSION:
            return None, False
        generation_id, leader_id = _number(entry["generation"]), _text(entry["leader"])
        found = [_member(fields) for fields in _list(entry["members"])]
        is_large = entry.get("rejoined") is True
        if is_large:
            leader_id = _rejoin(found, leader_id, generation_id, rejoined)
        group = ConsumerGroup.formed(
            group_id,
            protocol_type=_text(entry["type"]),
            protocol_name=_text(entry["protocol"]),
            generation_id=generation_id,
            leader_id=leader_id,
            members=found,
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, False
    is_whole = len(group.members) == len(found) > 0 and group.leader_id in group.members
    return (group, is_large) if is_whole else (None, False)


def _rejoin(members: list[GroupMember], leader_id: str, generation_id: int, rejoined: Iterable[bytes]) -> str:
    """Put static members that have joined again in the places of those that they were; returns the leader's id."""
    places = {member.instance_id: place for place, member in enumerate(members) if member.instance_id is not None}
    for value in rejoined:
        member = _rejoined(value, generation_id)
        if member is not None and member.instance_id is not None and member.instance_id in places:
            place = places[member.instance_id]
            leader_id = member.member_id if members[place].member_id == leader_id else leader_id
            members[place] = member
    return leader_id


def _rejoined(value: bytes, generation_id: int) -> GroupMember | None:
    """The member of an entry; None if it is of another generation, or cannot be read: then the client joins again."""
    try:
        entry = json.loads(value)
        if entry["v"] != VERSION or _number(entry["generation"]) != generation_id:
            return None
        return _member(entry["member"])
    except (ValueError, KeyError, TypeError):
        return None


def _dumped(entry: Mapping[str, object]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode()


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
        raise ValueError(f"{value!r} is not a list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is not a number")
    return value


def _bytes(value: object) -> bytes:
    return base64.b64decode(_text(value), validate=True)


def _key(group_id: str) -> str:
    return PREFIX + quote(group_id, safe="")


def _group_of(key: str) -> str:
    """The group's id in a key of either kind."""
    return unquote(key.split("/")[1])
