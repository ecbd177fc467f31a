"""Placement: the hosts on which a chunk's replicas may lie, as a template with one set of rules per replica.

SGuard, section 5 (constraint templates: same node, same rack, different rack). A rule refers to a host that is already
in the chain: 0 is the writer, 1 the first replica, and so on. Besides the rules, all hosts of a chain differ; only
`same-host:0` puts a replica on the writer itself.
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from scheduler.errors import PlacementError

MAX_REPLICAS = 16


class Relation(StrEnum):
    """The relation of a replica's host to a host that is already chosen."""

    SAME_HOST = "same-host"
    SAME_RACK = "same-rack"
    OTHER_RACK = "other-rack"
    OTHER_HOST = "other-host"


class PlacementRule(NamedTuple):
    """A relation to position `of` of the chain."""

    relation: Relation
    of: int

    def __str__(self) -> str:
        return f"{self.relation}:{self.of}"


Placement = tuple[tuple[PlacementRule, ...], ...]
"""For each replica, rules that must all hold; without rules: any host that is not in the chain yet."""


@lru_cache
def default_placement(replicas: int, racks: int = 2) -> Placement:
    """The first replica in the writer's rack, the second in another, the third in the second's rack, more anywhere.

    HDFS's own policy since 0.17 (HADOOP-2559), but never on the writer, as in SGuard's measurements (section 6.2,
    footnote 6); SGuard itself names no full template, only one copy in the same rack and another in a different one as
    an example (section 5). With one rack there are no rules.
    """
    if not 1 <= replicas <= MAX_REPLICAS:
        raise PlacementError(f"replicas={replicas}: must be from 1 to {MAX_REPLICAS}")
    if racks < 2:
        return ((),) * replicas
    rules = (
        (PlacementRule(Relation.SAME_RACK, 0),),
        (PlacementRule(Relation.OTHER_RACK, 0),),
        (PlacementRule(Relation.SAME_RACK, 2),),
    )
    return (*rules, *(((),) * MAX_REPLICAS))[:replicas]


def parse_placement(texts: Sequence[str]) -> Placement:
    """A placement from one text per replica, rules joined by `&`: `["same-rack:0", "other-rack:0 & other-rack:1"]`.

    An empty text, or `anywhere`, is not a rule. Raises PlacementError, which names the text.
    """
    return check_placement(tuple(_parse(text) for text in texts))


def check_placement(placement: Placement) -> Placement:
    """The placement, if each rule refers to an earlier position of the chain. Raises PlacementError."""
    if not 1 <= len(placement) <= MAX_REPLICAS:
        raise PlacementError(f"a placement for {len(placement)} replicas: must be from 1 to {MAX_REPLICAS}")
    for number, rules in enumerate(placement, 1):
        for rule in rules:
            if not 0 <= rule.of < number:
                raise PlacementError(f"replica {number}, {rule}: can refer to positions 0 (the writer) to {number - 1}")
            if rule.relation is Relation.SAME_HOST and (rule.of != 0 or number != 1):
                raise PlacementError(f"replica {number}, {rule}: only the first replica may be on the writer itself")
    return placement


def placement_texts(placement: Placement) -> list[str]:
    """The texts that `parse_placement` reads."""
    return [" & ".join(map(str, rules)) or "anywhere" for rules in placement]


def _parse(text: str) -> tuple[PlacementRule, ...]:
    if text.strip() in {"", "anywhere"}:
        return ()
    rules = []
    for part in text.split("&"):
        relation, colon, of = part.strip().partition(":")
        if relation not in set(Relation) or not colon or not of.isdecimal() or len(of) > 2:
            known = ", ".join(f"{name}:N" for name in Relation)
            raise PlacementError(f"{part.strip()!r} is not a rule: use {known}, joined by &, or anywhere")
        rules.append(PlacementRule(Relation(relation), int(of)))
    return tuple(rules)
