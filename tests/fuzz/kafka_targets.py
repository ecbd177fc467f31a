"""Fuzz targets for what clients send: every request that a sidecar serves, batches of records, and logins.

Invariant: the requests are those of the table of rights, which has a row for every request that is served, so a new
request is fuzzed as soon as it is served, in every version that Kafka has of it.
"""

import gzip
import io
import struct
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Any, Final

import cramjam
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer

from logstore.errors import (
    CairnError,
    CorruptBatch,
    CorruptFile,
    InvalidRecord,
    InvalidTimestamp,
    MalformedRequest,
    MessageTooLarge,
    UnknownFormatVersion,
    UnsupportedBatchFormat,
)
from logstore.format import epoch_api, operator_api, reader_api
from logstore.format.batch import CRC_START, HEADER_BYTES, MAGIC_OFFSET, parse_header, seal_batch
from logstore.format.compression import GZIP, LZ4, SNAPPY, ZSTD, open_records
from logstore.format.control import Begin, End, decode_control, encode_control
from logstore.format.records import Record, decode_batch, encode_batch, first_since, iterate_times
from logstore.kafka import codec, fetch, produce, ready_fetch
from logstore.kafka.framing import Reader
from logstore.kafka.rights.table import RULES
from logstore.kafka.security.credentials import ScramCredential, WrongLogin, credential_of_password
from logstore.kafka.security.scram import ScramExchange, prepared
from logstore.kafka.single_batch import SingleBatch
from logstore.kafka.wire import build
from logstore.log.topics import TopicConfig
from logstore.log.validation import check_produced
from tests.format import test_epoch_api, test_reader_api
from tests.fuzz.interface import Target

FIRST_OWN_KEY: Final = min(epoch_api.API_KEYS)
NOW_MS: Final = 1_700_000_000_000
OPENED_BYTES: Final = 1 << 20
"""What a target of a codec lets it open to."""
OPENERS: Final = (
    (epoch_api.API_KEYS, epoch_api.decode_request),
    (reader_api.READER_API_KEYS, reader_api.decode_request),
    (operator_api.OPERATOR_API_KEYS, operator_api.decode_request),
)
OPERATORS: Final = (
    operator_api.DescribeQueriesRequest("q"),
    operator_api.DescribeSidecarRequest(),
    operator_api.DescribeHostsRequest(),
    operator_api.DescribePlacesRequest("t", 1),
    operator_api.ChangeHostRequest("a", "drain"),
    operator_api.ForgetProducersRequest("t", 3, 7),
    operator_api.DescribeTierRequest("t", 1),
)
FAMILIES: Final[tuple[tuple[Any, tuple[type, ...]], ...]] = (
    (operator_api, tuple(map(type, OPERATORS))),
    (reader_api, tuple({type(request) for request in test_reader_api.REQUESTS})),
    (epoch_api, tuple({type(request) for _, request in test_epoch_api.REQUESTS})),
)
RECORDS: Final = [Record(n, NOW_MS + n, b"key", b"value" * n, (("name", b"x"),)) for n in range(3)]


# ---- requests of Kafka's


def decode_frame(frame: bytes) -> object:
    """What a connection does with a frame before a handler has it. Raises MalformedRequest."""
    request = memoryview(frame)
    header = codec.decode_header(request)
    if SingleBatch.decode(request) is not None or ready_fetch.decode(request) is not None:
        return None
    if header.api_key == produce.KEY and produce.MIN_VERSION <= header.version <= produce.MAX_VERSION:
        at = _body_at(request, header, flexible=header.version >= produce.FIRST_FLEXIBLE)
        return produce.decode(request, at, header.version)
    if header.api_key == fetch.KEY and fetch.MIN_VERSION <= header.version <= fetch.MAX_VERSION:
        at = _body_at(request, header, flexible=header.version >= fetch.FIRST_FLEXIBLE)
        return fetch.decode(request, at, header.version)
    flexible = bool(codec.request_type(header.api_key, header.version).__flexible__)
    return codec.decode(request, header, _body_at(request, header, flexible=flexible))


def _body_at(request: memoryview, header: codec.RequestHeader, *, flexible: bool) -> int:
    reader = Reader(request, header.body_at, flexible=flexible)
    reader.tags()
    return reader.at


def _decode_of(key: int, versions: Sequence[int], data: bytes) -> object:
    """The first byte chooses the version, the rest follows the correlation id."""
    version = versions[data[0] % len(versions)] if data else versions[-1]
    return decode_frame(struct.pack(">hhi", key, version, 7) + data[1:])


def _seeds_of(key: int, versions: Sequence[int]) -> list[bytes]:
    """A request of every version with one element in each array, and one without any."""
    found = []
    for number, version in enumerate(versions):
        kind = codec.request_type(key, version)
        for values in (_filled(kind), {}):
            target = io.BytesIO()
            entity_writer(kind)(target, build(kind, values))
            client = struct.pack(">h", 4) + b"fuzz" + (b"\0" if kind.__flexible__ else b"")
            found.append(bytes([number]) + client + target.getvalue())
    return found


@cache
def _filled(kind: type) -> dict[str, Any]:
    """Values for an entity of kio's: its arrays have one element each, its texts and bytes something."""
    values: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    for each in fields(kind):
        hint = hints[each.name]
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            hint = next(option for option in typing.get_args(hint) if option is not types.NoneType)
        if typing.get_origin(hint) is tuple and is_dataclass(element := typing.get_args(hint)[0]):
            values[each.name] = [_filled(typing.cast(type, element))]
        elif isinstance(hint, type) and issubclass(hint, float):
            values[each.name] = 0.5
        elif hint is str:
            values[each.name] = "name"
        elif hint is bytes:
            values[each.name] = bytes(encode_batch(RECORDS))
    return values


def requests() -> list[Target]:
    """A target for each request of Kafka's and of Cairn's own that is served."""
    found = []
    for key in sorted(RULES):
        if key >= FIRST_OWN_KEY:
            decode = next(decode for keys, decode in OPENERS if key in keys)
            found.append(Target(f"own-request-{key}", partial(decode, key), (MalformedRequest,), _own_seeds(key)))
            continue
        name = api_key_map[key]
        versions = sorted(schema_name_map[name])
        call = partial(_decode_of, key, versions)
        found.append(Target(f"request-{key}-{name}", call, (MalformedRequest,), _seeds_of(key, versions)))
    return [*found, Target("request-header", decode_frame, (MalformedRequest,), (struct.pack(">hhih", 3, 12, 1, -1),))]


def _own_seeds(key: int) -> list[bytes]:
    """Bodies of requests with this key; without an example, the fields that the others of its family have."""
    examples = [*(request for _, request in test_epoch_api.REQUESTS), *test_reader_api.REQUESTS, *OPERATORS]
    found = []
    for request in examples:
        module = next(module for module, kinds in FAMILIES if isinstance(request, kinds))
        frame = b"".join(map(bytes, module.encode_request(request, correlation_id=1, client_id="c")))
        found_key, *_, at = epoch_api.decode_request_header(frame)
        if found_key == key:
            found.append(frame[at:])
    return found


# ---- batches


def _checked(sealed: bool, data: bytes) -> object:
    batch = bytes(_sealed(data)) if sealed else data
    config = TopicConfig(timestamp_before_max_ms=1000)
    return check_produced(batch, "orders-0", config, NOW_MS)


def _sealed(data: bytes) -> bytearray:
    """The bytes as a batch that passes for intact: magic, length and checksum are right."""
    batch = bytearray(data.ljust(HEADER_BYTES, b"\0"))
    batch[MAGIC_OFFSET] = 2
    return seal_batch(batch)


def _records(data: bytes) -> object:
    return decode_batch(bytes(_sealed(data)))


def _control(data: bytes) -> object:
    return decode_control(bytes(_sealed(data)))


def _opened(codec_number: int, data: bytes) -> object:
    """Open records of a codec, and look at their times."""
    opened = open_records(data, codec_number, OPENED_BYTES)
    return list(iterate_times(opened, parse_header(encode_batch(RECORDS))))


def _since(sealed: bool, data: bytes) -> object:
    """The first record since a time; a sealed batch is uncompressed, of times that look-ups pass and find."""
    batch = bytes(_sealed(data)) if sealed else bytes(encode_batch(RECORDS))[:HEADER_BYTES] + data
    header = parse_header(batch)
    records, offset = memoryview(batch)[HEADER_BYTES:], header.base_offset + 1
    times_ms = (header.base_timestamp, NOW_MS + 1, header.max_timestamp + 1)
    return [first_since(records, header, time_ms, offset) for time_ms in times_ms]


def _xerial(data: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(data))
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">i", len(block)) + block


def batches() -> list[Target]:
    """Batches of records as clients send them and disks return them, open and compressed."""
    plain = bytes(encode_batch(RECORDS))
    old = bytes(plain[:MAGIC_OFFSET]) + b"\1" + plain[CRC_START:]
    marks: tuple[Begin | End, ...] = (Begin("q", 1, 1, ("a",), 10, 1), End("q", 1, 1, b"positions"))
    controls = [bytes(encode_control(mark, timestamp_ms=NOW_MS)) for mark in marks]
    refused = (CorruptBatch, InvalidRecord, InvalidTimestamp, MessageTooLarge, UnsupportedBatchFormat)
    body = plain[HEADER_BYTES:]
    codecs = {
        "gzip": (GZIP, [gzip.compress(body), gzip.compress(body[:9]) + gzip.compress(body[9:])]),
        "snappy": (SNAPPY, [bytes(cramjam.snappy.compress_raw(body)), _xerial(body)]),
        "lz4": (LZ4, [bytes(cramjam.lz4.compress(body))]),
        "zstd": (ZSTD, [bytes(cramjam.zstd.compress(body))]),
    }
    damaged = (CorruptBatch,)
    return [
        Target("batch", partial(_checked, False), refused, (plain, old)),
        Target("batch-sealed", partial(_checked, True), refused, (plain, *controls)),
        Target("records-sealed", _records, damaged, (plain,)),
        Target("records-since", partial(_since, False), damaged, (body,)),
        Target("records-since-sealed", partial(_since, True), damaged, (plain,)),
        Target("control-sealed", _control, (CorruptBatch, UnknownFormatVersion), controls),
        *(Target(f"records-{name}", partial(_opened, of), damaged, seeds) for name, (of, seeds) in codecs.items()),
    ]


# ---- logins


@cache
def _credential() -> tuple[bytes, bytes, bytes, int]:
    found = credential_of_password("SCRAM-SHA-256", "secret", b"salt" * 4, 4096)
    return found.salt, found.stored_key, found.server_key, found.iterations


def _login(data: bytes) -> object:
    """The messages of a login, which a zero byte parts."""
    first, _, final = data.decode("utf-8", "replace").partition("\0")
    exchange = ScramExchange("SCRAM-SHA-256", lambda _: _credential())
    answer = exchange.first(first)
    nonce = answer.partition(",")[0].removeprefix("r=")
    return exchange.final(final.replace("NONCE", nonce))


def _with_text(call: Callable[[str], object], data: bytes) -> object:
    return call(data.decode("utf-8", "replace"))


def logins() -> list[Target]:
    """SCRAM, the form of names and passwords, and what a ledger has of users."""
    kept = credential_of_password("SCRAM-SHA-512", "secret", b"salt" * 4, 4096).encode()
    messages = b"n,,n=user,r=abcdefghij\0c=biws,r=NONCE,p=" + b"QUJD" * 11
    return [
        Target("scram", _login, (WrongLogin,), (messages, messages.replace(b"n,,", b"y,,"))),
        Target("saslprep", partial(_with_text, prepared), (), ("pass word ª".encode(),)),
        Target("stored-credential", partial(ScramCredential.decode, where="user"), (CorruptFile,), (kept,)),
    ]


def replies() -> list[Target]:
    """What a sidecar answers to Cairn's own requests, as a client reads it."""
    families: tuple[tuple[Any, Sequence[tuple[int, Any]]], ...] = (
        (epoch_api, test_epoch_api.REPLIES),
        (reader_api, test_reader_api.REPLIES),
    )
    found = []
    for module, examples in families:
        for key in sorted({key for key, _ in examples}):
            seeds = [
                struct.pack(">i", 1) + b"".join(map(bytes, module.encode_reply_body(reply)))
                for each, reply in examples
                if each == key
            ]
            found.append(Target(f"own-reply-{key}", partial(module.decode_reply, key), (CairnError,), seeds))
    return found
