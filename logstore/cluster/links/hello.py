"""How a link begins: each end says who it is and whom it means, and is refused by name if that is not so.

The host that connects sends its hello; the other one answers with its own, or with a refusal, and closes. Byte tables:
docs/replication.md.

Invariants:
* No message of replication passes before both ends have seen that cluster, host and disk are those that they mean, and
  have a version in common.
* A hello has at most MAX_BYTES, so a stranger makes a host keep no more than that.
* What a stranger says is shown cut to MAX_SHOWN characters, as text that breaks no line.
"""

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from logstore.cluster.links.wire import MAX_NAME_BYTES, VERSION
from logstore.errors import LinkRefused, MalformedMessage
from logstore.replica.registrations import Member

HELLO: Final = b"CLNK"
CALLS: Final = b"CLNC"
"""Of a hello for a connection of calls (`logstore.cluster.links.calls`)."""
REFUSAL: Final = b"CLNO"
HEAD: Final = struct.Struct(">4sHI")
"""Magic, bytes of the body, CRC-32C of the body."""
MAX_BYTES: Final = 2048
"""Of a body."""
MAX_SHOWN: Final = 300
STRANGER: Final = " is not a member that "
"""In the refusal of a host that is reached, by one that does not know it as a member; part of the protocol."""
DEALS: Final = 1
"""A bit of what a host knows: who should own which stream (`logstore.cluster.members.deal`)."""
_VERSIONS: Final = struct.Struct(">HH")


@dataclass(frozen=True, slots=True)
class Hello:
    """What an end of a link says. `peer`: the host that it means. `oldest`, `newest`: the versions that it speaks.
    `for_calls`: calls and their answers follow, not messages of replication. `deals`: the host
    deals streams as this version does; one that says nothing of that claims them by the hash alone.
    """

    cluster: str
    me: Member
    peer: str
    oldest: int = VERSION
    newest: int = VERSION
    for_calls: bool = False
    deals: bool = True


def encode_hello(hello: Hello) -> bytes:
    """The bytes of a hello."""
    names = [name.encode() for name in (hello.cluster, *hello.me, hello.peer)]
    if max(map(len, names)) > MAX_NAME_BYTES:
        raise LinkRefused(f"a cluster, host or disk of {max(map(len, names))} bytes: at most {MAX_NAME_BYTES}")
    body = _VERSIONS.pack(hello.oldest, hello.newest) + b"".join(bytes((len(name),)) + name for name in names)
    body += bytes((DEALS if hello.deals else 0,))
    return HEAD.pack(CALLS if hello.for_calls else HELLO, len(body), crc32c(body)) + body


def encode_refusal(why: str) -> bytes:
    """The bytes of a refusal."""
    body = why.encode(errors="replace")[:MAX_BYTES]
    return HEAD.pack(REFUSAL, len(body), crc32c(body)) + body


def body_bytes(head: bytes) -> int:
    """How many bytes follow the head of a hello or of a refusal. Raises MalformedMessage."""
    magic, size, _ = HEAD.unpack(head)
    if magic not in (HELLO, CALLS, REFUSAL):
        raise MalformedMessage(f"{shown(head)} begins no hello: is this the address of a link of Cairn?")
    if size > MAX_BYTES:
        raise MalformedMessage(f"a hello of {size} bytes, at most {MAX_BYTES}")
    return int(size)


def decode_hello(data: bytes) -> Hello:
    """The hello in these bytes, head included. Raises MalformedMessage; LinkRefused if they are a refusal."""
    magic, size, checksum = HEAD.unpack_from(data)
    body = data[HEAD.size :]
    if len(body) != size or crc32c(body) != checksum:
        raise MalformedMessage(f"a hello of {size} bytes does not match its checksum {checksum:#010x}")
    if magic == REFUSAL:
        text = str(body, "utf-8", "replace")[:MAX_SHOWN]
        raise LinkRefused("".join(each if each.isprintable() else "?" for each in text))
    names, at = [], _VERSIONS.size
    try:
        oldest, newest = _VERSIONS.unpack_from(body)
        for _ in range(4):
            end = at + 1 + body[at]
            names.append(str(body[at + 1 : end], "utf-8"))
            at = end
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"a hello of {size} bytes is damaged ({error})") from error
    if at > size:
        raise MalformedMessage(f"a hello of {size} bytes ends inside a name")
    cluster, host, disk, peer = names
    knows = body[at] if at < size else 0  # earlier versions end here, and a later one may add what follows
    return Hello(cluster, Member(host, disk), peer, oldest, newest, magic == CALLS, bool(knows & DEALS))


def agreed_version(own: Hello, found: Hello) -> int:
    """The newest version that both ends speak. Raises LinkRefused."""
    version = min(own.newest, found.newest)
    if version < max(own.oldest, found.oldest):
        raise LinkRefused(
            f"host {own.me.host!r} speaks versions {own.oldest} to {own.newest} of links, {shown(found.me.host)} "
            f"{found.oldest} to {found.newest}: update the older host"
        )
    return version


def check_hello(own: Hello, found: Hello, disk: str | None) -> int:
    """The version to speak with the host that said `found`. `disk`: the disk that it is known to have; None: it is no
    member. Raises LinkRefused.
    """
    if found.for_calls != own.for_calls:
        raise LinkRefused(f"host {shown(found.me.host)} answers a hello of another kind than it was sent")
    if found.cluster != own.cluster:
        raise LinkRefused(f"host {own.me.host!r} is in cluster {own.cluster!r}, not in {shown(found.cluster)}")
    if found.peer != own.me.host:
        raise LinkRefused(f"this is host {own.me.host!r}, not {shown(found.peer)}: look at the addresses of both")
    if found.me.host == own.me.host:
        raise LinkRefused(f"host {own.me.host!r} has no link to itself: two hosts have this name, or one address")
    if disk is None:
        raise LinkRefused(f"host {shown(found.me.host)}{STRANGER}{own.me.host!r} knows of")
    if found.me.disk != disk:
        raise LinkRefused(f"host {shown(found.me.host)} has disk {disk!r}, not {shown(found.me.disk)}")
    return agreed_version(own, found)


def shown(text: object) -> str:
    """A text of a stranger, to be shown."""
    found = repr(text)
    return found if len(found) <= MAX_SHOWN else found[:MAX_SHOWN] + "…"
