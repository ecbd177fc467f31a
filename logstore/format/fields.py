"""JSON bodies from clients: a length, an object, raw bytes. Each field is checked when it is read.

Invariant: invalid bytes or values raise MalformedRequest, which names the field, and no other error.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from logstore.errors import MalformedRequest
from logstore.interfaces import Buffer

# The JSON part of a body: the commit of 20,000 tasks is about 2 MiB.
MAX_FIELDS_BYTES: Final = 8 * 1024 * 1024
# Values in that JSON, which cost far more memory and time than their bytes: twice 20,000 tasks of three values.
MAX_FIELDS_VALUES: Final = 200_000
# Query, incarnation and attempt are identifiers (Spark's are 36 characters); they end up in control records and in the
# ledger.
MAX_NAME_CHARACTERS: Final = 256
# Room for the positions that a source records with an epoch: offsets per input partition.
MAX_POSITIONS_CHARACTERS: Final = 1024 * 1024

_LENGTH: Final = struct.Struct(">i")

Fields = Mapping[str, object]


def encode_fields(fields: Fields) -> bytes:
    """A JSON object after its length."""
    encoded = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return _LENGTH.pack(len(encoded)) + encoded


def decode_fields(body: Buffer) -> tuple[dict[str, object], memoryview]:
    """The JSON object at the start of a body, and the raw bytes after it. Raises MalformedRequest."""
    view = memoryview(body)
    if len(view) < _LENGTH.size:
        raise MalformedRequest(f"a body of {len(view)} bytes is shorter than its length field")
    (length,) = _LENGTH.unpack_from(view)
    end = _LENGTH.size + length
    if not 0 <= length <= MAX_FIELDS_BYTES or end > len(view):
        raise MalformedRequest(f"{length} bytes of JSON do not fit into a body of {len(view)} bytes")
    encoded = bytes(view[_LENGTH.size : end])
    # Each value except the first follows a comma, or the opening of an object or an array.
    if encoded.count(b",") + encoded.count(b"{") + encoded.count(b"[") > MAX_FIELDS_VALUES:
        raise MalformedRequest(f"more than {MAX_FIELDS_VALUES} values in {length} bytes of JSON")
    return parse_object(encoded), view[end:]


def parse_object(encoded: Buffer) -> dict[str, object]:
    """A JSON object from its UTF-8 bytes. Raises MalformedRequest."""
    try:
        value = json.loads(bytes(encoded))
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"not JSON: {error}") from None
    return as_object(value, "the body")


def as_object(value: object, what: str) -> dict[str, object]:
    """`value` as a JSON object. Raises MalformedRequest, which names `what`."""
    if not isinstance(value, dict):
        raise MalformedRequest(f"{what} is not a JSON object")
    return value


def get_objects(fields: Fields, key: str) -> Sequence[Fields]:
    """A list of JSON objects. Raises MalformedRequest."""
    value = fields.get(key)
    if not isinstance(value, list):
        raise MalformedRequest(f"{key!r} is not a list")
    return [as_object(entry, f"an entry of {key!r}") for entry in value]


def get_int(fields: Fields, key: str, minimum: int, maximum: int) -> int:
    """A whole number within bounds. Raises MalformedRequest."""
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise MalformedRequest(f"{key!r} is not a whole number from {minimum} to {maximum}")
    return value


def get_bool(fields: Fields, key: str) -> bool:
    """A boolean. Raises MalformedRequest."""
    value = fields.get(key)
    if not isinstance(value, bool):
        raise MalformedRequest(f"{key!r} is neither true nor false")
    return value


def get_text(fields: Fields, key: str, max_characters: int) -> str:
    """A string of bounded length that UTF-8 can encode. Raises MalformedRequest."""
    value = fields.get(key)
    if not isinstance(value, str) or len(value) > max_characters:
        raise MalformedRequest(f"{key!r} is not a string of at most {max_characters} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise MalformedRequest(f"{key!r} holds characters that UTF-8 cannot") from None
    return value


def get_positions(fields: Fields) -> str:
    """The positions recorded with an epoch; "" if an older version recorded none. Raises MalformedRequest."""
    return get_text({"positions": "", **fields}, "positions", MAX_POSITIONS_CHARACTERS)


def get_name(fields: Fields, key: str) -> str:
    """A string of 1 to MAX_NAME_CHARACTERS characters. Raises MalformedRequest."""
    value = get_text(fields, key, MAX_NAME_CHARACTERS)
    if not value:
        raise MalformedRequest(f"{key!r} is empty")
    return value
