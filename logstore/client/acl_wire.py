"""Encodes Kafka's requests about access control lists, and decodes their replies. No I/O.

DescribeAcls 1, CreateAcls 1, DeleteAcls 1, which precede the flexible encodings. Kinds are numbers here, as in the
protocol: a server may know more of them than this client.

Invariant: a reply that is too short, or counts more elements than it holds, raises MalformedReply and no other error.

Source: Kafka's protocol guide, kafka.apache.org/protocol; KIP-140, KIP-290 (pattern types).
"""

from collections.abc import Sequence
from typing import NamedTuple

from logstore.client.wire import WireReader, WireWriter
from logstore.interfaces import Buffer


class AclEntry(NamedTuple):
    """One entry, in the order of its parts in `logstore.access.acls.Acl`; kinds by their numbers in the protocol."""

    resource_type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


class AclEntryFilter(NamedTuple):
    """Which entries are meant: None, and the number 1 (ANY), stand for everything."""

    resource_type: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int


class AclOutcome(NamedTuple):
    """What became of an entry to create, or of a filter to delete by: Kafka's error code and words, which may be empty;
    of a filter also what is deleted.
    """

    error: int
    message: str
    entries: tuple[AclEntry, ...] = ()


def describe_acls_request(wanted: AclEntryFilter) -> bytes:
    """Ask for the entries that a filter means."""
    writer = WireWriter()
    _put(writer, wanted)
    return bytes(writer.data)


def describe_acls_reply(body: Buffer) -> AclOutcome:
    """The entries. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    error, message = reader.int16(), reader.nullable() or ""
    entries: list[AclEntry] = []
    for _ in range(reader.count()):
        kind, name, pattern = reader.int8(), reader.string(), reader.int8()
        entries += [_entry(reader, kind, name, pattern) for _ in range(reader.count())]
    return AclOutcome(error, message, tuple(entries))


def create_acls_request(entries: Sequence[AclEntry]) -> bytes:
    """Create these entries."""
    return _all(entries)


def create_acls_reply(body: Buffer) -> list[AclOutcome]:
    """What became of each entry, in their order. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    return [AclOutcome(reader.int16(), reader.nullable() or "") for _ in range(reader.count())]


def delete_acls_request(filters: Sequence[AclEntryFilter]) -> bytes:
    """Delete what any of these filters means."""
    return _all(filters)


def delete_acls_reply(body: Buffer) -> list[AclOutcome]:
    """What became of each filter, in their order. Raises MalformedReply."""
    reader = WireReader(body)
    reader.int32()  # throttle time
    outcomes: list[AclOutcome] = []
    for _ in range(reader.count()):
        error, message = reader.int16(), reader.nullable() or ""
        entries: list[AclEntry] = []
        for _ in range(reader.count()):
            failed, why = reader.int16(), reader.nullable() or ""
            error, message = (error, message) if error else (failed, why)
            entries.append(_entry(reader, reader.int8(), reader.string(), reader.int8()))
        outcomes.append(AclOutcome(error, message, tuple(entries)))
    return outcomes


def _entry(reader: WireReader, kind: int, name: str, pattern: int) -> AclEntry:
    return AclEntry(kind, name, pattern, reader.string(), reader.string(), reader.int8(), reader.int8())


def _all(elements: Sequence[AclEntry | AclEntryFilter]) -> bytes:
    writer = WireWriter()
    writer.int32(len(elements))
    for element in elements:
        _put(writer, element)
    return bytes(writer.data)


def _put(writer: WireWriter, element: AclEntry | AclEntryFilter) -> None:
    writer.int8(element.resource_type)
    writer.string(element.name)
    writer.int8(element.pattern)
    writer.string(element.principal)
    writer.string(element.host)
    writer.int8(element.operation)
    writer.int8(element.permission)
