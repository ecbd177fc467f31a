"""Inputs without a fuzzer: seeds, changed at random from a seed, for the short run and where atheris is missing."""

import struct
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from tests.fuzz.interface import MAX_INPUT_BYTES

NUMBERS: Final = (0, 1, -1, 127, 128, 255, 256, 32767, -32768, 2**31 - 1, -(2**31))
TOKENS: Final = (
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"null", b"-1", b"1e999"),
    *(b"Infinity", b"NaN", b"\xff", b"[" * 2000),
)
MOST_CHANGES: Final = 4


def inputs(seeds: Sequence[bytes], random: Random, count: int) -> Iterator[bytes]:
    """The seeds, their prefixes, and so many of their mutations."""
    yield from seeds
    for _ in range(count):
        data = bytearray(random.choice(seeds))
        for _ in range(random.randint(1, MOST_CHANGES)):
            _change(data, seeds, random)
        yield bytes(data[:MAX_INPUT_BYTES])


def _change(data: bytearray, seeds: Sequence[bytes], random: Random) -> None:
    at = random.randrange(len(data) + 1)
    match random.randrange(7):
        case 0 if at < len(data):
            data[at] ^= 1 << random.randrange(8)
        case 1:
            del data[at:]
        case 2:
            del data[at : at + random.randint(1, 8)]
        case 3:
            data[at:at] = random.choice(TOKENS)
        case 4:
            number = random.choice(NUMBERS)
            layout = random.choice([">b", ">h", ">i", ">q"])
            bits = 8 * struct.calcsize(layout)
            wrapped = (number + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
            size = struct.calcsize(layout)
            data[at : at + size] = struct.pack(layout, wrapped)
        case 5:
            other = random.choice(seeds)
            data[at:] = other[random.randrange(len(other) + 1) :]
        case _:
            data[at : at + 4] = random.choice(TOKENS)
