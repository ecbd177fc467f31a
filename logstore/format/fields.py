"""JSON objects from clients: a length, an object, raw bytes; each field is checked as it is read.

Invariant: bytes or values that are not as they should be raise MalformedRequest, which names the field; nothing else is
raised.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from logstore.errors import MalformedRequest
from logstore.interfaces import Buffer

# The JSON part of a body: a decision of 20,000 tasks is about 2 MiB.
MAX_FIELDS_BYTES: Final = 8 * 1024 * 1024
# Values in that JSON, which cost far more memory and time than their bytes: 20,000 tasks of three, and as much again.
MAX_FIELDS_VALUES: Final = 200_000
# Query, run and attempt are identifiers (Spark's are 36 characters); they end up in control records and in the ledger.
MAX_NAME_CHARACTERS: Final = 256
# Room for what a source wants to remember beside the epoch: offsets per input partition.
MAX_POSITIONS_CHARACTERS: Final = 1024 * 1024

_LENGTH: Final = struct.Struct(">i")

Fields = Mapping[str, object]


def encode_fields(fields: Fields) -> bytes:
    """A JSON object with its length in front."""
    encoded = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return _LENGTH.pack(len(encoded)) + encoded


def decode_fields(body: Buffer) -> tuple[dict[str, object], memoryview]:
    """The JSON object at the start of a body, and the raw bytes behind it. MalformedRequest."""
    view = memoryview(body)
    if len(view) < _LENGTH.size:
        raise MalformedRequest(f"a body of {len(view)} bytes is shorter than its length field")
    (length,) = _LENGTH.unpack_from(view)
    end = _LENGTH.size + length
    if not 0 <= length <= MAX_FIELDS_BYTES or end > len(view):
        raise MalformedRequest(f"{length} bytes of JSON do not fit into a body of {len(view)} bytes")
    encoded = bytes(view[_LENGTH.size : end])
    # Each value but the first stands behind a comma, or opens an object or an array.
    if encoded.count(b",") + encoded.count(b"{") + encoded.count(b"[") > MAX_FIELDS_VALUES:
        raise MalformedRequest(f"more than {MAX_FIELDS_VALUES} values in {length} bytes of JSON")
    return parse_object(encoded), view[end:]


def parse_object(encoded: Buffer) -> dict[str, object]:
    """A JSON object from its UTF-8 bytes. MalformedRequest."""
    try:
        value = json.loads(bytes(encoded))
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"not JSON: {error}") from None
    return as_object(value, "the body")


def as_object(value: object, what: str) -> dict[str, object]:
    """A JSON object. MalformedRequest, which says `what` is none."""
    if not isinstance(value, dict):
        raise MalformedRequest(f"{what} is not a JSON object")
    return value


def get_objects(fields: Fields, key: str) -> Sequence[Fields]:
    """A list of JSON objects. MalformedRequest."""
    value = fields.get(key)
    if not isinstance(value, list):
        raise MalformedRequest(f"{key!r} is not a list")
    return [as_object(entry, f"an entry of {key!r}") for entry in value]


def get_int(fields: Fields, key: str, least: int, most: int) -> int:
    """A whole number within bounds. MalformedRequest."""
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise MalformedRequest(f"{key!r} is not a whole number from {least} to {most}")
    return value


def get_bool(fields: Fields, key: str) -> bool:
    """A truth value. MalformedRequest."""
    value = fields.get(key)
    if not isinstance(value, bool):
        raise MalformedRequest(f"{key!r} is neither true nor false")
    return value


def get_text(fields: Fields, key: str, most_characters: int) -> str:
    """A string that UTF-8 can hold, of bounded length. MalformedRequest."""
    value = fields.get(key)
    if not isinstance(value, str) or len(value) > most_characters:
        raise MalformedRequest(f"{key!r} is not a string of at most {most_characters} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise MalformedRequest(f"{key!r} holds characters that UTF-8 cannot") from None
    return value


def get_positions(fields: Fields) -> str:
    """What a query noted with an epoch; "" where a former version noted nothing. MalformedRequest."""
    return get_text({"positions": "", **fields}, "positions", MAX_POSITIONS_CHARACTERS)


def get_name(fields: Fields, key: str) -> str:
    """A string of 1 to MAX_NAME_CHARACTERS characters. MalformedRequest."""
    value = get_text(fields, key, MAX_NAME_CHARACTERS)
    if not value:
        raise MalformedRequest(f"{key!r} is empty")
    return value
