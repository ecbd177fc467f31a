"""What hosts tell each other of copies, and what a coordinator of copies keeps, as JSON and back.

Invariant: what is read is checked; it raises MalformedRequest, which names the field.

The kept plan has MAX_GOES goes at most, 62 KiB: a value of the metadata store has 64. Those beyond are not kept; the
next coordinator hears of them from the hosts that have them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from logstore.base.errors import FieldError
from logstore.base.fields import Boolean, Field, Integer, ListOf, MapOf, Object, String
from logstore.cluster.copies.copy_plan import Going
from logstore.errors import MalformedRequest
from logstore.replica.copy_tokens import CopyGo, CopyWish

MAX_GOES: Final = 240
MAX_WISHES: Final = 64
"""That a host tells at a time, the neediest: the plan has enough to choose from."""
MAX_OF_A_TARGET: Final = 16
"""Of these, to one host: it takes eight copies at a time at most, and all that is told is read at each change."""
MAX_SOURCES: Final = 8
VERSION: Final = 1
_HOST: Final = String(64)
_STREAM: Final = String(128)
_EPOCH: Final = Integer(0, (1 << 63) - 1)
_COPY: Final = {
    "stream": Field(_STREAM, ""),
    "epoch": Field(_EPOCH, "of the chunk"),
    "target": Field(_HOST, "that gets a copy"),
}
_GO: Final = Object("Go", {**_COPY, "source": Field(String(64, 0), "that it comes from")})
_WISH: Final = Object(
    "Wish",
    {
        **_COPY,
        "sources": Field(ListOf(_HOST, MAX_SOURCES, 1), "that have the chunk"),
        "live": Field(Integer(0, 100), "copies that are alive"),
        "move": Field(Boolean(), "whether they are enough"),
    },
)
_TOLD: Final = Object(
    "Told",
    {"wishes": Field(ListOf(_WISH, MAX_WISHES), ""), "held": Field(ListOf(_GO, 1 << 12), "goes that are used")},
)
_ANSWER: Final = Object(
    "Answer",
    {
        "coordinates": Field(Boolean(), "whether the host plans copies"),
        "goes": Field(ListOf(_GO, 1 << 12), "of the host that asked", ()),
        "elsewhere": Field(MapOf(Integer(0)), "copies that others are to get, by host", {}),
    },
)
_GOES: Final = Object("Goes", {"goes": Field(ListOf(_GO, 1 << 12), "")})
Fields = dict[str, object]


class Answer(NamedTuple):
    """What a coordinator answers; a host that is none says so."""

    coordinates: bool
    goes: Mapping[str, CopyGo]
    elsewhere: Mapping[str, int]


def told_fields(wishes: Mapping[str, CopyWish], held: Mapping[str, CopyGo]) -> Fields:
    """What a host wishes for, the neediest first, and what it makes."""
    chosen = list(islice(_neediest(wishes), MAX_WISHES))
    return {
        "wishes": [
            {
                "stream": stream,
                "epoch": wish.epoch,
                "target": wish.target,
                "sources": list(wish.sources[:MAX_SOURCES]),
                "live": wish.live,
                "move": wish.is_move,
            }
            for stream, wish in chosen
        ],
        "held": goes_fields(held.items()),
    }


def _neediest(wishes: Mapping[str, CopyWish]) -> Iterator[tuple[str, CopyWish]]:
    told = Counter[str]()
    for stream, wish in sorted(wishes.items(), key=lambda each: each[1].need):
        if told[wish.target] < MAX_OF_A_TARGET:
            told[wish.target] += 1
            yield stream, wish


def read_told(fields: Mapping[str, object]) -> tuple[dict[str, CopyWish], dict[str, CopyGo]]:
    """The wishes and the goes of `told_fields`. Raises MalformedRequest."""
    told = _checked(_TOLD, fields)
    wishes = {
        wish["stream"]: CopyWish(wish["epoch"], wish["target"], tuple(wish["sources"]), wish["live"], wish["move"])
        for wish in told["wishes"]
    }
    return wishes, _goes(told["held"])


def goes_fields(goes: Iterable[tuple[str, CopyGo]]) -> list[Fields]:
    """Goes with their streams."""
    return [{"stream": stream, "epoch": go.epoch, "target": go.target, "source": go.source} for stream, go in goes]


def read_goes(fields: Mapping[str, object]) -> dict[str, CopyGo]:
    """Goes by stream from `{"goes": goes_fields(…)}`. Raises MalformedRequest."""
    return _goes(_checked(_GOES, fields)["goes"])


def read_answer(fields: Mapping[str, object]) -> Answer:
    """The answer of a coordinator. Raises MalformedRequest."""
    checked = _checked(_ANSWER, {name: value for name, value in fields.items() if name != "error"})
    return Answer(checked["coordinates"], _goes(checked["goes"]), checked["elsewhere"])


def encode_plan(goes: Iterable[Going]) -> bytes:
    """The value that a coordinator keeps in the metadata store."""
    kept = [[owner, stream, *go] for owner, stream, go in goes][:MAX_GOES]
    return json.dumps({"v": VERSION, "goes": kept}, separators=(",", ":")).encode("ascii")


def decode_plan(value: bytes) -> list[Going]:
    """What `encode_plan` has made. Raises MalformedRequest."""
    try:
        document = json.loads(value)
        if document["v"] != VERSION:
            raise MalformedRequest(f"a plan of copies of version {document['v']!r}; this Cairn knows {VERSION}")
        found = [Going(str(owner), str(stream), _go(list(rest))) for owner, stream, *rest in document["goes"]]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise MalformedRequest(f"no plan of copies: {error}") from error
    return found[:MAX_GOES]


def _go(values: list[object]) -> CopyGo:
    epoch, target, source = values
    if not isinstance(epoch, int):
        raise MalformedRequest(f"epoch {epoch!r} of a go is not a number")
    return CopyGo(epoch, str(target), str(source))


def _goes(checked: Iterable[Mapping[str, object]]) -> dict[str, CopyGo]:
    return {str(go["stream"]): _go([go["epoch"], go["target"], go["source"]]) for go in checked}


def _checked(kind: Object, fields: Mapping[str, object]) -> dict[str, Any]:
    try:
        return kind.check(dict(fields), "")
    except FieldError as error:
        raise MalformedRequest(str(error)) from error
