"""Runs of pages as they are stored: as they are, or smaller.

State is arrays of 8-byte words, most of which differ from their neighbours in the lower bytes alone. So a run is
compressed with zstd in one of two orders: as it lies, or with the first bytes of all its words in front of all second
bytes, and so on.

Invariants:
* A packed run is never longer than the run.
* `unpacked` gives exactly as many bytes as it is asked for, or CheckpointDamaged: memory is bounded by the caller.
* Which form a run has depends on its content alone: writing a run again gives the same bytes.
"""

from enum import IntEnum
from typing import Final

import numpy as np
import pyarrow as pa

from spe_adapter.checkpoint.errors import CheckpointDamaged
from spe_adapter.codec.kernels import Bytes

_WORD_BYTES: Final = 8
_LEVEL: Final = 1
"""zstd's fastest but for the negative ones."""
_SAMPLES: Final = 4
_SAMPLE_BYTES: Final = 4 << 10
_WORTH: Final = 0.9
"""What does not become at least a tenth smaller is stored as it is: hashes, or values that are compressed already."""


class Form(IntEnum):
    """How a run is stored."""

    PLAIN = 0
    ZSTD = 1
    TRANSPOSED_ZSTD = 2
    """Byte 0 of all words, byte 1 of all words, …, compressed with zstd."""


def packed(run: Bytes) -> tuple[Form, bytes | memoryview]:
    """The form of a run (uint8, one dimension), and its bytes in this form: a view of the run if it is stored as is."""
    form = _form_for(run)
    if form is not Form.PLAIN:
        smaller = _compressed(run, form)
        if len(smaller) < len(run):
            return form, smaller
    return Form.PLAIN, run.data


def unpacked(form: int, content: memoryview, size_bytes: int, where: str) -> Bytes:
    """The run of `size_bytes` that `content` holds; `where` is named in errors. Raises CheckpointDamaged."""
    if form == Form.PLAIN:
        if len(content) != size_bytes:
            raise CheckpointDamaged(f"{where}: {len(content)} bytes, not {size_bytes}")
        return np.frombuffer(content, np.uint8)
    if form not in (Form.ZSTD, Form.TRANSPOSED_ZSTD) or (form == Form.TRANSPOSED_ZSTD and size_bytes % _WORD_BYTES):
        raise CheckpointDamaged(f"{where}: {size_bytes} bytes are stored in form {form}")
    try:
        plain = np.frombuffer(pa.Codec("zstd").decompress(content, size_bytes), np.uint8)
    except OSError as error:
        raise CheckpointDamaged(f"{where}: {error}") from error
    if form == Form.ZSTD:
        return plain
    return np.ascontiguousarray(plain.reshape(_WORD_BYTES, -1).T).reshape(-1)


def _form_for(run: Bytes) -> Form:
    """The form that makes samples from all over the run smallest."""
    size_bytes = len(run)
    if size_bytes > _SAMPLES * _SAMPLE_BYTES:
        # Not at the beginnings of pages, where arrays and values may have heads.
        stride = size_bytes // (_SAMPLES + 1) // _WORD_BYTES * _WORD_BYTES
        run = np.concatenate([run[place * stride :][:_SAMPLE_BYTES] for place in range(1, _SAMPLES + 1)])
    forms = [Form.ZSTD] if size_bytes % _WORD_BYTES else [Form.TRANSPOSED_ZSTD, Form.ZSTD]
    sizes = {form: len(_compressed(run, form)) for form in forms}
    best = min(forms, key=lambda form: sizes[form])
    return best if sizes[best] < _WORTH * len(run) else Form.PLAIN


def _compressed(run: Bytes, form: Form) -> bytes:
    if form is Form.TRANSPOSED_ZSTD:
        run = np.ascontiguousarray(run.reshape(-1, _WORD_BYTES).T)
    compressed: bytes = pa.Codec("zstd", compression_level=_LEVEL).compress(run.reshape(-1).data, asbytes=True)
    return compressed
