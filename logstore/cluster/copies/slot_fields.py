"""Calls for copy slots and their answers, as JSON and back.

Invariant: what is read is checked; it raises MalformedRequest, which names the field.
"""

from collections.abc import Mapping
from typing import Any, Final

from logstore.base.copy_slots import MAX_NEEDY, MAX_SOURCES, SLOT_MS, SlotAnswer, SlotAsk
from logstore.base.errors import FieldError
from logstore.base.fields import Boolean, Field, Integer, ListOf, MapOf, Object, String
from logstore.errors import MalformedRequest

_HOST: Final = String(64)
_HOSTS: Final = ListOf(_HOST, MAX_SOURCES)
_PAIR: Final = Object("Pair", {"source": Field(_HOST, ""), "target": Field(_HOST, "")})
_ASK: Final = Object(
    "Ask",
    {
        "life": Field(String(64), "of the host that asks"),
        "number": Field(Integer(1), "of the call, in this life"),
        "wanted": Field(_HOSTS, "hosts from which copies come"),
        "held": Field(_HOSTS, "hosts from which they have a slot"),
        "needy": Field(ListOf(_PAIR, MAX_NEEDY), "between which there are copies of chunks with one copy left"),
    },
)
_ANSWER: Final = Object(
    "Answer",
    {
        "gives": Field(Boolean(), "whether the host leads, and can give slots"),
        "slots": Field(MapOf(Integer(0, SLOT_MS)), "milliseconds by source", {}),
        "unplanned": Field(_HOSTS, "sources that need no slot", ()),
    },
)
Fields = dict[str, object]


def ask_fields(ask: SlotAsk) -> Fields:
    """A call, without what the other host knows."""
    return {
        "life": ask.life,
        "number": ask.number,
        "wanted": list(ask.wanted),
        "held": list(ask.held),
        "needy": [{"source": source, "target": target} for source, target in ask.needy],
    }


def read_ask(target: str, fields: Mapping[str, object], addresses: Mapping[str, str]) -> SlotAsk:
    """The call of a host. Raises MalformedRequest."""
    asked = _checked(_ASK, fields)
    needy = tuple((pair["source"], pair["target"]) for pair in asked["needy"])
    named = {target, *asked["wanted"], *asked["held"], *(host for pair in needy for host in pair)}
    known = {host: addresses[host] for host in named if host in addresses}
    return SlotAsk(target, asked["life"], asked["number"], asked["wanted"], asked["held"], needy, known)


def answer_fields(answer: SlotAnswer | None) -> Fields:
    """An answer; None: no slots are given here."""
    if answer is None:
        return {"gives": False}
    return {"gives": True, "slots": dict(answer.slots), "unplanned": list(answer.unplanned)}


def read_answer(fields: Mapping[str, object]) -> SlotAnswer | None:
    """An answer. Raises MalformedRequest."""
    told = _checked(_ANSWER, {name: value for name, value in fields.items() if name != "error"})
    return SlotAnswer(told["slots"], told["unplanned"]) if told["gives"] else None


def _checked(kind: Object, fields: Mapping[str, object]) -> dict[str, Any]:
    try:
        return kind.check(dict(fields), "")
    except FieldError as error:
        raise MalformedRequest(str(error)) from error
