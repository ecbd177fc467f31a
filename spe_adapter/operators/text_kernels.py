"""The compiled loops behind JSON and key texts: objects, numbers as Java writes them, timestamps, base64.

Invariants:
* Loops that fill are given room enough, which a loop that measures (or a fixed width) has found before.
* Types are fixed, so each function compiles once and comes from the cache on disk afterwards.
"""

# mypy: disable-error-code="arg-type,assignment,operator,return-value"

from typing import Final

import numpy as np

from spe_adapter.codec.kernels import Bools, Bytes, Int32s, Int64s, compiled

NUMBER_BYTES: Final = 28
"""Room for a double in Java's notation: sign, 17 digits, point, three zeros, exponent; or "-Infinity" with quotes."""
MOMENT_BYTES: Final = 32
"""Room for 2026-03-01T12:00:00.000000+00:00."""

_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_WORDS: Final = np.frombuffer(b'"NaN""Infinity""-Infinity"', np.uint8)
_NULL: Final = np.frombuffer(b"null", np.uint8)
_BASE64: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


def _short_escapes() -> Bytes:
    letters = np.zeros(256, np.uint8)
    for code, letter in ((8, "b"), (9, "t"), (10, "n"), (12, "f"), (13, "r"), (34, '"'), (92, "\\")):
        letters[code] = ord(letter)
    return letters


_ESCAPES: Final = _short_escapes()
"""What follows the backslash; 0 where a byte has no short form."""
_EXTRA: Final = np.where(_ESCAPES != 0, 1, np.where(np.arange(256) < 32, 5, 0)).astype(np.int64)
"""Bytes that a byte takes beside itself."""

# What a column's text needs to be JSON.
RAW: Final = 0
QUOTED: Final = 1
PLAIN: Final = 2
"""Quotes alone."""


@compiled
def measure_objects(
    offsets: Int64s, valid: Bools, quoted: Bytes, data: Bytes, name_offsets: Int64s, out_offsets: Int64s
) -> int:
    """The length of each object, as running sums in `out_offsets`; the sum of all. `quoted` becomes PLAIN for columns
    in which nothing has to be escaped.
    """
    columns, rows = valid.shape
    escapes = np.zeros(columns, np.int64)
    total = np.int64(0)
    for row in range(rows):
        size = np.int64(2)
        fields = 0
        for column in range(columns):
            if not valid[column, row]:
                continue
            fields += 1
            size += name_offsets[column + 1] - name_offsets[column]
            start, end = offsets[column, row], offsets[column, row + 1]
            size += end - start
            if quoted[column] != RAW:
                extra = 0
                for at in range(np.uint64(start), np.uint64(end)):
                    extra += _EXTRA[data[at]]
                escapes[column] += extra
                size += 2 + extra
        total += size + max(fields - 1, 0)
        out_offsets[row + 1] = total
    for column in range(columns):
        if quoted[column] == QUOTED and escapes[column] == 0:
            quoted[column] = PLAIN
    return total


@compiled
def _put(out: Bytes, at: int, data: Bytes, start: int, end: int) -> int:
    # Unsigned positions need no check for counting from the end, without which this loop becomes wide moves.
    source, target = np.uint64(start), np.uint64(at)
    for index in range(np.uint64(end - start)):
        out[target + index] = data[source + index]
    return at + (end - start)


@compiled
def _put_escaped(out: Bytes, at: int, data: Bytes, start: int, end: int) -> int:
    out[at] = 34
    at += 1
    for position in range(start, end):
        byte = data[position]
        if _ESCAPES[byte] != 0:
            out[at] = 92
            out[at + 1] = _ESCAPES[byte]
            at += 2
        elif byte < 32:
            out[at] = 92
            out[at + 1] = 117
            out[at + 2] = 48
            out[at + 3] = 48
            out[at + 4] = _HEX[byte >> 4]
            out[at + 5] = _HEX[byte & 15]
            at += 6
        else:
            out[at] = byte
            at += 1
    out[at] = 34
    return at + 1


@compiled
def write_objects(
    offsets: Int64s, valid: Bools, quoted: Bytes, data: Bytes, name_offsets: Int64s, names: Bytes, out: Bytes
) -> None:
    """Write each row as {"name":value,…} without what is not valid; `names` are `"name":` each, ready to be written."""
    columns, rows = valid.shape
    at = np.int64(0)
    for row in range(rows):
        out[at] = 123
        at += 1
        first = True
        for column in range(columns):
            if not valid[column, row]:
                continue
            if not first:
                out[at] = 44
                at += 1
            first = False
            at = _put(out, at, names, name_offsets[column], name_offsets[column + 1])
            if quoted[column] == PLAIN:
                out[at] = 34
                at = _put(out, at + 1, data, offsets[column, row], offsets[column, row + 1])
                out[at] = 34
                at += 1
            elif quoted[column] == QUOTED:
                at = _put_escaped(out, at, data, offsets[column, row], offsets[column, row + 1])
            else:
                at = _put(out, at, data, offsets[column, row], offsets[column, row + 1])
        out[at] = 125
        at += 1


@compiled
def measure_arrays(
    bounds: Int64s, offsets: Int64s, valid: Bools, quoted: bool, data: Bytes, out_offsets: Int64s
) -> int:
    """The length of each list as a JSON array, as running sums in `out_offsets`; the sum of all. List i has the
    elements from `bounds[i]` to `bounds[i + 1]`; `quoted` elements are quoted and escaped.
    """
    total = np.int64(0)
    for row in range(bounds.shape[0] - 1):
        count = bounds[row + 1] - bounds[row]
        total += 2 + max(count - 1, 0)
        for element in range(bounds[row], bounds[row + 1]):
            if not valid[element]:
                total += 4
                continue
            total += offsets[element + 1] - offsets[element]
            if quoted:
                total += 2
                for at in range(offsets[element], offsets[element + 1]):
                    total += _EXTRA[data[at]]
        out_offsets[row + 1] = total
    return total


@compiled
def write_arrays(bounds: Int64s, offsets: Int64s, valid: Bools, quoted: bool, data: Bytes, out: Bytes) -> None:
    """Write each list as [value,…], `null` for what is not valid."""
    at = np.int64(0)
    for row in range(bounds.shape[0] - 1):
        out[at] = 91
        at += 1
        for element in range(bounds[row], bounds[row + 1]):
            if element > bounds[row]:
                out[at] = 44
                at += 1
            if not valid[element]:
                at = _put(out, at, _NULL, 0, 4)
            elif quoted:
                at = _put_escaped(out, at, data, offsets[element], offsets[element + 1])
            else:
                at = _put(out, at, data, offsets[element], offsets[element + 1])
        out[at] = 93
        at += 1


@compiled
def _digits_of(data: Bytes, start: int, end: int, digits: Bytes) -> tuple[int, int]:
    """The significant digits of a number's text, and the exponent e with which it is 0.digits × 10^e."""
    count = 0
    point = 0
    behind = False
    exponent = 0
    at = start
    while at < end:
        byte = data[at]
        if byte == 46:
            behind = True
        elif byte == 101 or byte == 69:
            negative = data[at + 1] == 45
            for position in range(at + 1, end):
                if 48 <= data[position] <= 57:
                    exponent = exponent * 10 + (data[position] - 48)
            if negative:
                exponent = -exponent
            break
        elif 48 <= byte <= 57:
            if count == 0 and byte == 48:
                if behind:
                    point -= 1
            else:
                if count < digits.shape[0]:
                    digits[count] = byte
                    count += 1
                if not behind:
                    point += 1
        at += 1
    while count > 0 and digits[count - 1] == 48:
        count -= 1
    return count, point + exponent


@compiled
def _put_java(out: Bytes, at: int, digits: Bytes, count: int, exponent: int) -> int:
    """Write 0.digits × 10^exponent in the format of Java's Double.toString."""
    if count == 0:
        out[at] = 48
        out[at + 1] = 46
        out[at + 2] = 48
        return at + 3
    if -2 <= exponent <= 7:
        if exponent <= 0:
            out[at] = 48
            at += 1
        for index in range(exponent):
            out[at] = digits[index] if index < count else 48
            at += 1
        out[at] = 46
        at += 1
        for _ in range(-exponent):
            out[at] = 48
            at += 1
        first = max(exponent, 0)
        for index in range(first, count):
            out[at] = digits[index]
            at += 1
        if first >= count:
            out[at] = 48
            at += 1
        return at
    out[at] = digits[0]
    out[at + 1] = 46
    at += 2
    for index in range(1, count):
        out[at] = digits[index]
        at += 1
    if count == 1:
        out[at] = 48
        at += 1
    out[at] = 69
    at += 1
    power = exponent - 1
    if power < 0:
        out[at] = 45
        at += 1
        power = -power
    scale = 100 if power >= 100 else (10 if power >= 10 else 1)
    while scale > 0:
        out[at] = 48 + power // scale % 10
        at += 1
        scale //= 10
    return at


@compiled
def java_numbers(offsets: Int32s, data: Bytes, special: Bytes, out_offsets: Int32s, out: Bytes) -> None:
    """Shortest decimal texts as Java's Double.toString lays them out. `special`: 0 a number, else 1 NaN, 2 Infinity,
    3 -Infinity, 4 nothing.
    """
    digits = np.empty(24, np.uint8)
    at = 0
    for row in range(special.shape[0]):
        kind = special[row]
        if kind == 0:
            start = offsets[row]
            if data[start] == 45:
                out[at] = 45
                at += 1
                start += 1
            count, exponent = _digits_of(data, start, offsets[row + 1], digits)
            at = _put_java(out, at, digits, count, exponent)
        elif kind < 4:
            first = 0 if kind == 1 else (5 if kind == 2 else 15)
            last = 5 if kind == 1 else (15 if kind == 2 else 26)
            at = _put(out, at, _WORDS, first, last)
        out_offsets[row + 1] = at


@compiled
def _put_number(out: Bytes, at: int, value: int, width: int) -> int:
    for place in range(width):
        out[at + width - 1 - place] = 48 + value % 10
        value //= 10
    return at + width


@compiled
def moments(local_us: Int64s, offset_minutes: Int64s, fraction_digits: int, out_offsets: Int32s, out: Bytes) -> int:
    """Timestamps as ISO 8601; with `offset_minutes` (may be empty) their distance from UTC behind them, Z for none.

    The first row whose year has not four digits, or -1.

    Source: Howard Hinnant, "chrono-compatible low-level date algorithms", civil_from_days.
    """
    at = 0
    before = 0
    for row in range(local_us.shape[0]):
        us = local_us[row]
        if (
            row > 0
            and us == local_us[row - 1]
            and (offset_minutes.shape[0] == 0 or offset_minutes[row] == offset_minutes[row - 1])
        ):
            # Windows come in long rows of equal ones.
            length = at - before
            before = at
            at = _put(out, at, out, at - length, at)
            out_offsets[row + 1] = at
            continue
        before = at
        days = us // 86_400_000_000
        rest = us - days * 86_400_000_000
        shifted = days + 719_468
        era = shifted // 146_097
        day_of_era = shifted - era * 146_097
        year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
        day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
        month_index = (5 * day_of_year + 2) // 153
        day = day_of_year - (153 * month_index + 2) // 5 + 1
        month = month_index + 3 if month_index < 10 else month_index - 9
        year = year_of_era + era * 400 + (1 if month <= 2 else 0)
        if year < 0 or year > 9999:
            return row
        at = _put_number(out, at, year, 4)
        out[at] = 45
        at = _put_number(out, at + 1, month, 2)
        out[at] = 45
        at = _put_number(out, at + 1, day, 2)
        out[at] = 84
        at = _put_number(out, at + 1, rest // 3_600_000_000, 2)
        out[at] = 58
        at = _put_number(out, at + 1, rest // 60_000_000 % 60, 2)
        out[at] = 58
        at = _put_number(out, at + 1, rest // 1_000_000 % 60, 2)
        if fraction_digits == 3:
            out[at] = 46
            at = _put_number(out, at + 1, rest // 1000 % 1000, 3)
        elif fraction_digits == 6:
            out[at] = 46
            at = _put_number(out, at + 1, rest % 1_000_000, 6)
        if offset_minutes.shape[0] != 0:
            minutes = offset_minutes[row]
            if minutes == 0:
                out[at] = 90
                at += 1
            else:
                out[at] = 43 if minutes > 0 else 45
                minutes = abs(minutes)
                at = _put_number(out, at + 1, minutes // 60, 2)
                out[at] = 58
                at = _put_number(out, at + 1, minutes % 60, 2)
        out_offsets[row + 1] = at
    return -1


@compiled
def base64(offsets: Int32s, data: Bytes, out_offsets: Int32s, out: Bytes) -> None:
    """Bytes as base64 with padding (RFC 4648)."""
    at = 0
    for row in range(offsets.shape[0] - 1):
        position, end = offsets[row], offsets[row + 1]
        while position < end:
            left = end - position
            first = np.int64(data[position])
            second = np.int64(data[position + 1]) if left > 1 else np.int64(0)
            third = np.int64(data[position + 2]) if left > 2 else np.int64(0)
            word = first << 16 | second << 8 | third
            out[at] = _BASE64[word >> 18]
            out[at + 1] = _BASE64[word >> 12 & 63]
            out[at + 2] = _BASE64[word >> 6 & 63] if left > 1 else 61
            out[at + 3] = _BASE64[word & 63] if left > 2 else 61
            at += 4
            position += 3
        out_offsets[row + 1] = at
