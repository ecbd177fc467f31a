"""Placements: what is printed can be read, and what cannot be read is named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import PlacementError
from scheduler.peace.placement import (
    MAX_REPLICAS,
    Placement,
    PlacementRule,
    Relation,
    check_placement,
    default_placement,
    parse_placement,
    placement_texts,
)
from tests.peace.strategies import placements


@given(placement=placements(max_replicas=6))
@settings(max_examples=settings().max_examples // 2)
def test_texts_and_placements_are_the_same(placement: Placement) -> None:
    """Printed and read again, a placement is what it was."""
    assert parse_placement(placement_texts(placement)) == placement
    assert check_placement(placement) is placement


@given(placement=placements(), spaces=st.sampled_from(["", " ", "  "]))
@settings(max_examples=settings().max_examples // 4)
def test_blanks_do_not_matter(placement: Placement, spaces: str) -> None:
    """Blanks around rules are skipped."""
    texts = [spaces + text.replace(" & ", f"{spaces}&{spaces}") + spaces for text in placement_texts(placement)]
    assert parse_placement(texts) == placement


def test_reading() -> None:
    """Each relation, rules joined by &, and two ways to say anywhere."""
    assert parse_placement(["same-host:0", "other-rack:0 & other-host:1", "", "anywhere"]) == (
        (PlacementRule(Relation.SAME_HOST, 0),),
        (PlacementRule(Relation.OTHER_RACK, 0), PlacementRule(Relation.OTHER_HOST, 1)),
        (),
        (),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("nearby:0", "same-rack", "same-rack:", "same-rack:x", "same-rack:-1", "same-rack:0 &", "&", "same-rack:0, a"),
        *("SAME-RACK:0", "same-rack:100", "same-rack:1.0", ":0", "same-rack:0 other-rack:0", "anywhere & same-rack:0"),
    ],
)
def test_what_is_no_rule_is_named(text: str) -> None:
    """The message quotes the part that is not a rule and says which there are."""
    with pytest.raises(PlacementError, match="is not a rule: use same-host:N, same-rack:N, other-rack:N") as refused:
        parse_placement(["same-rack:0", text])
    quoted = str(refused.value).split("' is not a rule")[0].removeprefix("'")
    assert quoted in text


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["same-rack:1"], "replica 1, same-rack:1: can refer to positions 0 (the writer) to 0"),
        (["", "", "other-rack:3"], "replica 3, other-rack:3: can refer to positions 0 (the writer) to 2"),
        (["", "same-host:0"], "replica 2, same-host:0: only the first replica may be on the writer itself"),
        (["", "same-host:1"], "replica 2, same-host:1: only the first replica"),
        ([], "a placement for 0 replicas: must be from 1 to 16"),
        ([""] * 17, "a placement for 17 replicas: must be from 1 to 16"),
    ],
)
def test_rules_that_cannot_hold_are_named(texts: list[str], message: str) -> None:
    """A rule can speak of what is in the chain by then, and only the first replica may be on the writer."""
    with pytest.raises(PlacementError) as refused:
        parse_placement(texts)
    assert message in str(refused.value)


def test_the_default() -> None:
    """First in the writer's rack, second in another, third beside it, more anywhere; one rack needs no rules."""
    assert placement_texts(default_placement(5)) == [
        "same-rack:0",
        "other-rack:0",
        "same-rack:2",
        "anywhere",
        "anywhere",
    ]
    assert default_placement(3, racks=1) == ((), (), ())
    for replicas in range(1, MAX_REPLICAS + 1):
        assert len(check_placement(default_placement(replicas))) == replicas
    for replicas in (0, -1, MAX_REPLICAS + 1):
        with pytest.raises(PlacementError, match=f"replicas={replicas}: must be from 1 to 16"):
            default_placement(replicas)
