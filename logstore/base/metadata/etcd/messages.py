"""Requests to etcd's JSON interface, and its answers, as pure functions.

Invariants:
* Keys and values travel as base64, 64-bit numbers as texts; fields that are zero or empty are left out by etcd.
* What is no answer of etcd is a BadAnswer, never a KeyError or ValueError.
* `judge` decides for each error of etcd whether the call may have been made.
"""

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from logstore.base.metadata.interface import (
    Change,
    Changes,
    Condition,
    Delete,
    Entry,
    Event,
    Put,
    Transaction,
    end_of_prefix,
)

# Numbers of gRPC's status codes.
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
OUT_OF_RANGE: Final = 11
UNIMPLEMENTED: Final = 12
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16
_NOT_MADE_CODES: Final = frozenset(
    (
        INVALID_ARGUMENT,
        NOT_FOUND,
        PERMISSION_DENIED,
        RESOURCE_EXHAUSTED,
        FAILED_PRECONDITION,
        OUT_OF_RANGE,
        UNIMPLEMENTED,
        UNAUTHENTICATED,
    )
)
"""A request with such an answer was refused before, or by, its application: nothing was changed."""
_NOT_MADE_MESSAGES: Final = ("etcdserver: no leader", "etcdserver: not capable")
"""Of UNAVAILABLE, those that etcd says before it proposes anything. A leader that changes may have proposed it."""
OLD_LOGIN: Final = "revision of auth store is old"
"""Said, as INVALID_ARGUMENT, of a login before the latest change of a user or a right: another login mends it."""
TOKEN_FORM: Final = re.compile(r"[!-~]+")
Json = Mapping[str, Any]


class BadAnswer(Exception):
    """Bytes that are no answer of etcd's JSON interface."""


class EtcdError(Exception):
    """An error that etcd answered with. `made_perhaps`: the call may have changed something."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.made_perhaps = code not in _NOT_MADE_CODES and not message.startswith(_NOT_MADE_MESSAGES)


class AnswerHeader(NamedTuple):
    """Of each answer: which cluster gave it, and its revision."""

    cluster_id: str
    revision: int


class WatchAnswer(NamedTuple):
    """One message of a watch."""

    header: AnswerHeader
    created: bool
    cancelled: str | None
    """The reason why the watch is over; None while it goes on."""
    compact_revision: int
    events: tuple[tuple[int, Event], ...]
    """Revision and event, in order."""
    unfinished: bool
    """The next message goes on with the same revisions."""


# ---- requests


def range_request(begin: str, end: str, limit: int, newer_than: int) -> Json:
    """Entries from `begin` to before `end` whose revisions are above `newer_than`."""
    wanted = {"key": _encoded(begin), "range_end": _encoded(end), "limit": str(limit)}
    return {**wanted, "min_mod_revision": str(newer_than + 1)} if newer_than else wanted


def get_request(key: str) -> Json:
    """One entry."""
    return {"key": _encoded(key)}


def transaction_request(namespace: str, transaction: Transaction) -> Json:
    """A transaction whose conflict is answered with the entries of its conditions."""
    return {
        "compare": [_compare(namespace, condition) for condition in transaction.conditions],
        "success": [_operation(namespace, change) for change in transaction.changes],
        "failure": [{"request_range": get_request(namespace + condition.key)} for condition in transaction.conditions],
    }


def reads_request(*ranges: Json) -> Json:
    """Several ranges, all of one moment."""
    return {"success": [{"request_range": each} for each in ranges]}


def watch_request(prefix: str, first_revision: int) -> Json:
    """Changes of keys under a prefix from a revision on, in messages of bounded size."""
    return {
        "create_request": {
            "key": _encoded(prefix),
            "range_end": _encoded(end_of_prefix(prefix)),
            "start_revision": str(first_revision),
            "fragment": True,
        }
    }


def _compare(namespace: str, condition: Condition) -> Json:
    return {
        "target": "MOD",
        "result": "EQUAL",
        "key": _encoded(namespace + condition.key),
        "mod_revision": str(condition.revision),
    }


def _operation(namespace: str, change: Change) -> Json:
    if isinstance(change, Put):
        put = {"key": _encoded(namespace + change.key), "value": b64encode(change.value).decode("ascii")}
        return {"request_put": {**put, "lease": str(change.lease_id)} if change.lease_id else put}
    if isinstance(change, Delete):
        return {"request_delete_range": {"key": _encoded(namespace + change.key)}}
    prefix = namespace + change.prefix
    return {"request_delete_range": {"key": _encoded(prefix), "range_end": _encoded(end_of_prefix(prefix))}}


# ---- answers


def parse(data: bytes) -> Json:
    """The object in an answer. Raises BadAnswer."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"no JSON: {data[:80]!r}") from error
    if not isinstance(found, dict):
        raise BadAnswer(f"no JSON object: {data[:80]!r}")
    return found


def error_of(status: int, data: bytes) -> EtcdError:
    """The error in an answer with an HTTP status other than 200. Raises BadAnswer."""
    found = parse(data)
    if isinstance(found.get("error"), dict):  # of a call whose answer is streamed, such as a keep-alive
        return _streamed_error(found)
    code, message = found.get("code"), found.get("message", found.get("error"))
    if not isinstance(code, int) or not isinstance(message, str):
        raise BadAnswer(f"HTTP status {status} with {data[:80]!r}")
    return EtcdError(code, message)


def token_of(data: bytes) -> str:
    """The token of a login. Raises BadAnswer if there is none, or one that no header may have."""
    token = parse(data).get("token")
    if not isinstance(token, str) or TOKEN_FORM.fullmatch(token) is None:
        raise BadAnswer("no token in the answer to a login")  # and no word of what is there
    return token


def header_of(answer: Json) -> AnswerHeader:
    """The header. Raises BadAnswer."""
    header = _object(answer, "header")
    return AnswerHeader(_text(header, "cluster_id"), number(header, "revision"))


def entries_of(namespace: str, answer: Json) -> tuple[Entry, ...]:
    """The entries that a range found. Raises BadAnswer."""
    return tuple(_entry(namespace, found) for found in _objects(answer, "kvs"))


def ranges_of(answer: Json, count: int) -> list[Json]:
    """What the ranges of `reads_request` found, so many. Raises BadAnswer."""
    found = [_object(response, "response_range") for response in _objects(answer, "responses")]
    if len(found) != count:
        raise BadAnswer(f"{len(found)} responses to {count} ranges")
    return found


def conflict_entries(namespace: str, answer: Json) -> tuple[Entry | None, ...]:
    """The entries of the conditions of a transaction that was not made. Raises BadAnswer."""
    found = [entries_of(namespace, _object(response, "response_range")) for response in _objects(answer, "responses")]
    return tuple(entries[0] if entries else None for entries in found)


def number(answer: Json, name: str) -> int:
    """A 64-bit number, 0 if it is left out. Raises BadAnswer."""
    found = answer.get(name, "0")
    try:
        return int(found)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadAnswer(f"{name}={found!r} is not a number") from error


def stream_answer(line: bytes) -> Json:
    """The result in one line of a streamed answer. Raises BadAnswer, EtcdError."""
    found = parse(line)
    if "error" in found:
        raise _streamed_error(found)
    return _object(found, "result")


def watch_answer(namespace: str, line: bytes) -> WatchAnswer:
    """One message of a watch. Raises BadAnswer, EtcdError."""
    found = stream_answer(line)
    return WatchAnswer(
        header_of(found),
        found.get("created") is True,
        _text(found, "cancel_reason") if found.get("canceled") is True else None,
        number(found, "compact_revision"),
        tuple(_event(namespace, event) for event in _objects(found, "events")),
        found.get("fragment") is True,
    )


def grouped(events: Sequence[tuple[int, Event]]) -> list[Changes]:
    """Events of the same revision together, in order of revisions and keys."""
    by_revision: dict[int, list[Event]] = {}
    for revision, event in events:
        by_revision.setdefault(revision, []).append(event)
    return [
        Changes(revision, tuple(sorted(found, key=lambda event: event.key)))
        for revision, found in sorted(by_revision.items())
    ]


def _streamed_error(found: Json) -> EtcdError:
    error = _object(found, "error")
    return EtcdError(number(error, "grpc_code") or number(error, "code"), _text(error, "message"))


def _event(namespace: str, event: Json) -> tuple[int, Event]:
    entry = _entry(namespace, _object(event, "kv"))
    removed = event.get("type") == "DELETE"
    return entry.revision, Event(entry.key, None if removed else entry)


def _entry(namespace: str, found: Json) -> Entry:
    key = _decoded(found, "key").decode("utf-8", "backslashreplace")
    if not key.startswith(namespace):
        raise BadAnswer(f"key {key[:80]!r} is outside {namespace!r}")
    return Entry(key[len(namespace) :], _decoded(found, "value"), number(found, "mod_revision"), number(found, "lease"))


def _encoded(key: str) -> str:
    return b64encode(key.encode("ascii")).decode("ascii")


def _decoded(found: Json, name: str) -> bytes:
    try:
        return b64decode(_text(found, name), validate=True)
    except (Base64Error, ValueError) as error:
        raise BadAnswer(f"{name} is not base64") from error


def _text(found: Json, name: str) -> str:
    text = found.get(name, "")
    if not isinstance(text, str):
        raise BadAnswer(f"{name}={text!r} is not a text")
    return text


def _object(found: Json, name: str) -> Json:
    inner = found.get(name, {})
    if not isinstance(inner, dict):
        raise BadAnswer(f"{name} is not an object")
    return inner


def _objects(found: Json, name: str) -> Sequence[Json]:
    inner = found.get(name, [])
    if not isinstance(inner, list) or not all(isinstance(each, dict) for each in inner):
        raise BadAnswer(f"{name} is not a list of objects")
    return inner
