"""Values from outside: what each type takes, and the sentence for what it refuses."""

from collections.abc import Callable

import pytest

from logstore.base.errors import FieldError
from logstore.base.fields import (
    Boolean,
    Field,
    Integer,
    ListOf,
    MapOf,
    Number,
    Object,
    Optional,
    String,
    Type,
    from_text,
    suggestion,
)

POINT = Object("Point", {"x": Field(Integer(0, 9), "across"), "note": Field(Optional(String(5)), "a note", None)})


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (Integer(0, 5), 5.0, 5),
        (Integer(-1, 5), -1, -1),
        (Number(0, 5), 5, 5.0),
        (Boolean(), False, False),
        (String(3), "é…x", "é…x"),
        (String(choices=("a", "b")), "b", "b"),
        (Optional(Integer()), None, None),
        (ListOf(Integer()), [1, 2], (1, 2)),
        (MapOf(Integer()), {"a": 1}, {"a": 1}),
        (POINT, {"x": 3}, {"x": 3, "note": None}),
    ],
)
def test_values_are_taken(kind: Type, value: object, expected: object) -> None:
    """As they are, or in their normal form."""
    assert kind.check(value, "f") == expected


@pytest.mark.parametrize(
    ("kind", "value", "field", "sentence"),
    [
        (Integer(0, 5), 6, "f", "f=6: must be a whole number from 0 to 5"),
        (Integer(0, 5), "6", "f", "f='6': must be a whole number from 0 to 5, not a text"),
        (Integer(0, 5), True, "f", "f=True: must be a whole number from 0 to 5, not a truth value"),
        (Integer(0, 5), 1.5, "f", "f=1.5: must be a whole number from 0 to 5, not a number with a fraction"),
        (Number(0, 5), 5.5, "f", "f=5.5: must be a number from 0 to 5"),
        (Number(0, 5), float("nan"), "f", "f=nan: must be a number from 0 to 5"),
        (Number(0, 5), None, "f", "f=None: must be a number from 0 to 5, not null"),
        (Boolean(), 0, "f", "f=0: must be true or false, not a whole number"),
        (String(3), "abcd", "f", "f='abcd': must have from 1 to 3 characters"),
        (String(), "a\u202eb", "f", "f='a\\u202eb': must not have control characters or invisible characters"),
        (String(choices=("left", "right")), "lift", "f", "f='lift': must be one of left, right (did you mean 'left'?)"),
        (ListOf(Integer(0, 5)), [1, 6], "f[1]", "f[1]=6: must be a whole number from 0 to 5"),
        (ListOf(Integer(), 1), [1, 6], "f", "f: 2 entries; at most 1 are taken"),
        (ListOf(Integer(), 1, 1), [], "f", "f=[]: must have at least 1 entries"),
        (ListOf(Integer()), {}, "f", "f={}: must be a list, not an object"),
        (POINT, [], "f", "f=[]: must be an object, not a list"),
        (POINT, {}, "f.x", "f.x: is missing; across"),
        (POINT, {"x": 1, "nota": 2}, "f.nota", "f.nota: unknown field (did you mean 'note'?); known are x, note"),
        (String(99), "a" * 200, "f", f"f='{'a' * 59}…: must have from 1 to 99 characters"),
    ],
)
def test_the_sentence_names_field_value_and_what_is_allowed(
    kind: Type, value: object, field: str, sentence: str
) -> None:
    """One form for all types; a long value is cut."""
    with pytest.raises(FieldError) as caught:
        kind.check(value, "f")
    assert (caught.value.field, str(caught.value)) == (field, sentence)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [(Integer(-5), "-5", -5), (Integer(), "98.0", 98), (Number(), "1.5", 1.5), (Boolean(), "true", True),
     (Boolean(), "false", False), (String(), "5", "5")],
)  # fmt: skip
def test_texts_are_read_as_their_type(kind: Type, text: str, expected: object) -> None:
    """A value of a query or a command line is a text at first."""
    assert from_text(kind, text, "f") == expected


@pytest.mark.parametrize("text", ["", "x", "٣", "1" * 40, "nan", "0x1", "1_0", "yes"])
@pytest.mark.parametrize("make", [Integer, Number, Boolean])
def test_texts_of_another_type_are_refused(make: Callable[[], Type], text: str) -> None:
    """With the same sentence as any other value."""
    with pytest.raises(FieldError, match=r"^f="):
        from_text(make(), text, "f")


def test_suggestions() -> None:
    """The nearest known name, or a few of the known names."""
    assert suggestion("sent", ["send", "disk"]) == "did you mean 'send'?"
    assert suggestion("zz", ["send", "disk"]) == "known: disk, send"
    assert suggestion("zz", []) == "there is none"
    assert suggestion("zz", [f"n{number:02}" for number in range(15)]).endswith("n11 and 3 more")
