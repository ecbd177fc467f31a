"""Fuzz targets for what hosts of a cluster tell each other, and for what etcd answers and holds.

Invariant: each target has a checksum of its own put right where the format has one, so that inputs pass it.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from crc32c import crc32c

from logstore.base.metadata.errors import MetadataDamaged
from logstore.base.metadata.etcd import messages
from logstore.base.metadata.interface import Entry
from logstore.base.metadata.schema import (
    Leaving,
    StoredCluster,
    StoredCopyCoordinator,
    StoredDisk,
    StoredLeader,
    StoredNode,
    StoredPlanHead,
    StoredTopic,
    decode,
    encode,
)
from logstore.cluster.copies import copy_fields, slot_fields
from logstore.cluster.copies.copy_plan import Going
from logstore.cluster.links import hello, wire
from logstore.cluster.links.calls import CallHead, decode_call, encode_call
from logstore.cluster.streams import retention_clock, stored_access
from logstore.errors import (
    CorruptFile,
    CorruptRegister,
    LinkRefused,
    MalformedMessage,
    MalformedRequest,
    UnknownFormatVersion,
)
from logstore.format.fields import parse_object
from logstore.replica import registrations
from logstore.replica.copy_tokens import CopyGo
from logstore.replica.registrations import Member, OwnerId, StreamRegistration
from tests.cluster.test_wire import MESSAGES, body_of
from tests.fuzz.interface import Target
from tests.metadata.test_schema import MEMBER, NETWORK, WAIT


def _greeted(data: bytes) -> object:
    """A hello whose length and checksum are right."""
    magic, body = data[:4].ljust(4, b"\0"), data[4:]
    head = hello.HEAD.pack(magic, min(len(body), 0xFFFF), crc32c(body))
    hello.body_bytes(head)
    return hello.decode_hello(head + body)


def _framed(data: bytes) -> object:
    """Frames of a link, cut as they come and decoded."""
    frames = wire.FrameBuffer(1 << 16, 4096)
    room = frames.room()
    room[: len(data)] = data[: len(room)]
    frames.add(min(len(data), len(room)))
    found = []
    while (body := frames.next()) is not None:
        found.append(wire.decode(body))
    return found


def links() -> list[Target]:
    """Hellos, frames, messages of replication, calls and their payloads."""
    said = hello.Hello("cluster", Member("a", "disk"), "b")
    greeting, refusal = hello.encode_hello(said), hello.encode_refusal("no")
    bodies = [body_of(message) for message in MESSAGES]
    framed = [b"".join(wire.encode(message, 1 << 16)[0]) for message in MESSAGES]
    call = b"".join(encode_call(CallHead(False, 1, 7), [b"payload"], 1 << 16))[wire.FRAME.size :]
    unheaded = [each[:4] + each[hello.HEAD.size :] for each in (greeting, refusal)]
    refused = (MalformedMessage, LinkRefused)
    return [
        Target("link-hello", _greeted, refused, unheaded),
        Target("link-message", lambda data: wire.decode(memoryview(data)), (MalformedMessage,), bodies),
        Target("link-frames", _framed, (MalformedMessage,), framed),
        Target("link-call", lambda data: decode_call(memoryview(data)), (MalformedMessage,), (call,)),
        *_copies(),
    ]


def _copies() -> list[Target]:
    goes = [{"stream": "t/0", "epoch": 1, "target": "a", "source": "b"}]
    wish = {"stream": "t/0", "epoch": 1, "target": "a", "sources": ["b"], "live": 1, "move": False}
    ask = {"life": "x", "number": 1, "wanted": ["a"], "held": [], "needy": [{"source": "a", "target": "b"}]}
    answers = {"coordinates": True, "goes": goes, "elsewhere": {"a": 1}}
    slots = {"gives": True, "slots": {"a": 1}, "unplanned": []}
    told: tuple[tuple[str, Callable[[dict[str, object]], object], object], ...] = (
        ("copy-wishes", copy_fields.read_told, {"wishes": [wish], "held": goes}),
        ("copy-goes", copy_fields.read_goes, {"goes": goes}),
        ("copy-answer", copy_fields.read_answer, answers),
        ("slot-ask", lambda fields: slot_fields.read_ask("a", fields, {"a": "h:1"}), ask),
        ("slot-answer", slot_fields.read_answer, slots),
    )
    plan = copy_fields.encode_plan([Going("a", "t/0", CopyGo(1, "a", "b"))])
    return [
        *(
            Target(name, partial(_of_json, call), (MalformedRequest,), (json.dumps(seed).encode(),))
            for name, call, seed in told
        ),
        Target("copy-plan", copy_fields.decode_plan, (MalformedRequest,), (plan,)),
    ]


def _of_json(call: Callable[[dict[str, object]], object], data: bytes) -> object:
    return call(parse_object(data))


# ---- the metadata store


def _answer(data: bytes) -> object:
    """Everything that is read of an answer of etcd."""
    found = messages.parse(data)
    reads: tuple[Callable[[], object], ...] = (
        lambda: messages.header_of(found),
        lambda: messages.entries_of("/c/", found),
        lambda: messages.ranges_of(found, 1),
        lambda: messages.conflict_entries("/c/", found),
        lambda: messages.error_of(400, data),
        lambda: messages.token_of(data),
        lambda: messages.grouped(messages.watch_answer("/c/", data).events),
    )
    for read in reads:
        try:
            read()
        except (messages.BadAnswer, messages.EtcdError):
            continue
    return None


def _value(kind: type[Any], data: bytes) -> object:
    return decode(kind, Entry("key", data, 1))


def _of_value(value: Any) -> Target:
    kind = type(value)
    return Target(f"value-{kind.__name__}", partial(_value, kind), (MetadataDamaged,), (encode(value),))


def _unsealed(register: bytes) -> bytes:
    return b"\n".join(entry[8:] for entry in register.split(b"\n"))


def _sealed_registration(data: bytes) -> object:
    """Entries whose checksums are right."""
    return _registration(b"\n".join(b"%08x" % crc32c(entry) + entry for entry in data.split(b"\n")))


def _registration(data: bytes) -> object:
    head, *sealed = data.split(b"\n")
    entries = {registrations.HEAD: head, **{f"{number:020d}": each for number, each in enumerate(sealed)}}
    for read in (registrations.decode_head, registrations.decode_sealed_chunk):
        try:
            read(head)
        except (CorruptRegister, UnknownFormatVersion):
            continue
    return registrations.decode_registration(entries)


def _access(data: bytes) -> object:
    try:
        key = str(json.loads(data)["key"])
    except (ValueError, KeyError, TypeError, RecursionError):
        key = ""
    return stored_access.decode_entry(Entry(stored_access.stored_key(key), data, 1))


def metadata() -> list[Target]:
    """Answers of etcd, and the values that hosts keep there."""
    pair = {"key": "L2MvYQ==", "value": "eA==", "mod_revision": "3", "lease": "1"}
    header = {"cluster_id": "1", "revision": "5"}
    answers = (
        {"header": header, "kvs": [pair], "responses": [{"response_range": {"kvs": [pair]}}]},
        {"result": {"header": header, "created": True, "events": [{"kv": pair, "type": "DELETE"}]}},
        {"code": 14, "message": "etcdserver: no leader", "error": {"grpc_code": 14, "message": "m"}},
    )
    owner, members = OwnerId("a", "1"), (Member("a", "d"), Member("b", "d"))
    opened = StreamRegistration(2, 1, 1, owner).opened(members, 0)
    register = b"\n".join(registrations.encode_registration(opened).values())
    values: tuple[Any, ...] = (
        *(MEMBER, NETWORK, WAIT, StoredCluster(cluster_id="c1"), StoredDisk(host="h1", starts=3, start="s3")),
        *(
            StoredNode(host="h1"),
            StoredLeader(host="h1", start="s3", url="http://h:1"),
            StoredPlanHead(writes=1, batch=3),
        ),
        *(Leaving(how="drain"), StoredCopyCoordinator(host="h1", start="s3")),
        StoredTopic(topic_id="t", partitions=12, replicas=3, settings={"retention.ms": "60000"}),
    )
    damaged = (CorruptRegister, UnknownFormatVersion)
    return [
        Target("etcd-answer", _answer, (messages.BadAnswer,), [json.dumps(answer).encode() for answer in answers]),
        *(_of_value(value) for value in values),
        Target("registration", _registration, damaged, (register,)),
        Target("registration-sealed", _sealed_registration, damaged, (_unsealed(register),)),
        Target("stored-access", _access, (CorruptFile,), (stored_access.encode_entry("users/a", b"x"),)),
        Target("stored-time", retention_clock.decode_time, (MetadataDamaged,), (retention_clock.encode_time(5), b"7")),
    ]
