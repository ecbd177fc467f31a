"""What a fuzz target is: a decoder that bytes of strangers or of damaged disks reach, and what it promises.

Invariants:
* `call` returns, or raises an error of `errors`; anything else is a defect.
* Seeds are made by the encoders of the product, so that inputs begin behind the first checks.
* A format with a checksum has a second target that seals what it is given: without it no input would pass the checksum.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

MAX_INPUT_BYTES: Final = 4096
MAX_CALL_BYTES: Final = 16 << 20
"""Memory that one call may take at its peak, with an input of MAX_INPUT_BYTES at most. A decompressor gets a buffer of
a size that the target names; all else is a small multiple of the input."""
MAX_CALL_S: Final = 10
"""Most seconds of one call: what hangs ends, and decides nothing else."""


class Target(NamedTuple):
    """A decoder; see the module. `name` is unique, and a name for a file."""

    name: str
    call: Callable[[bytes], object]
    errors: tuple[type[BaseException], ...]
    seeds: Sequence[bytes]
