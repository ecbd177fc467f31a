"""Values that a user's code hands over, as a declared type has them: converted where nothing is lost, else refused.

| declared | taken | refused |
|---|---|---|
| integers | integers and booleans in range; floats that are whole, up to 2**53 | 1.5, NaN, 70000 for int16 |
| floats | floats, rounded to the width; integers up to 2**53 (float32: 2**24) | what would become infinite |
| bool | booleans; numbers that are 0 or 1 | other numbers |
| timestamp, date32, duration | counts of the unit; datetime64, timedelta64 | NaT, what is finer than the unit |

Beyond 2**53 a float64 does not tell whole numbers apart, so that a sum kept in one would be wrong without a word.

Invariants: nothing is cast without a check; a null's value is not looked at; what is returned is the callee's own copy;
a message names the column (or what else the values are for), the declared type and the first value that does not fit.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spe_adapter.codec.kernels import Bools
from spe_adapter.state.columns import Values, fixed_array, fixed_values
from spe_adapter.state.errors import StateValueRefused

_MAX_WHOLE: Final = {2: 2**11, 4: 2**24, 8: 2**53}
"""By size in bytes: the limit up to which a float tells every whole number from its neighbours."""
_DATE_UNIT: Final = "D"
_SHOWN_CHARACTERS: Final = 80


def has_numbers(kind: pa.DataType) -> bool:
    """Whether values of a type can be an array of numpy's numbers: not texts, lists, structs and decimals."""
    return not (
        pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_nested(kind) or pa.types.is_decimal(kind)
    )


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """How a type of fixed width lies in an array: dates are days, timestamps and durations counts of their unit."""
    if pa.types.is_date32(kind):
        return np.dtype(np.int32)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return np.dtype(np.int64)
    return np.dtype(kind.to_pandas_dtype())


def fixed(what: str, kind: pa.DataType, given: Any, nulls: Any, rows: int) -> tuple[Values, Bools | None]:
    """`rows` values of a type of fixed width, 0 where null, and where they are null (None: nowhere).

    Raises StateValueRefused. `what` begins the message: "state column 'n'".
    """
    mask = None if nulls is None else flags(f"{what}: the nulls", nulls, rows)
    values = _array(what, given, rows)
    dtype = dtype_of(kind)
    if mask is not None:
        # Zeros in the source's own type: what stands at a null is not to be judged.
        values = np.where(mask, np.zeros((), values.dtype), values)
    return (values.astype(dtype, copy=mask is None) if values.dtype == dtype else _cast(what, kind, values)), mask


def flags(what: str, given: Any, rows: int) -> Bools:
    """`rows` booleans. Raises StateValueRefused: positions are no booleans."""
    values = _array(what, given, rows)
    if values.dtype != np.bool_:
        raise StateValueRefused(f"{what} are {values.dtype}; give {rows} booleans")
    return values.copy()


def column(what: str, kind: pa.DataType, given: Any) -> pa.Array:
    """An Arrow column as the declared type has it. Raises StateValueRefused."""
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if not isinstance(given, pa.Array):
        raise StateValueRefused(f"{what} is {kind}; give a pyarrow.Array, not {type_name(given)}")
    if given.type == kind:
        return given
    if _is_plain(given.type) and _is_plain(kind):
        values, nulls = fixed_values(given, dtype_of(given.type))
        return fixed_array(kind, _cast(what, kind, values), np.zeros(len(given), np.bool_) if nulls is None else nulls)
    if pa.types.is_temporal(given.type) and _is_plain(kind):
        raise StateValueRefused(f"{what} is {kind}; {given.type} values have a unit, cast them to the one you mean")
    try:
        taken = given.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StateValueRefused(f"{what} is {kind}: {str(error).splitlines()[0]}") from None
    if pa.types.is_temporal(given.type) and pa.types.is_temporal(kind):
        # Arrow cuts a moment down to its date without a word.
        lost = pc.not_equal(taken.cast(given.type, safe=False), given).fill_null(False)
        if pc.any(lost).as_py():
            raise _unfit(what, kind, given.filter(lost)[0].as_py(), lost.index(True).as_py())
    return taken


def _array(what: str, given: Any, rows: int) -> NDArray[Any]:
    if isinstance(given, np.ma.MaskedArray) and given.mask.any():
        raise StateValueRefused(f"{what}: a masked array with masked values; give the mask as the nulls")
    if isinstance(given, dict | str | bytes) or not (hasattr(given, "__len__") or hasattr(given, "__array__")):
        raise StateValueRefused(f"{what}: give an array of {rows} values, not {type_name(given)}")
    try:
        values = np.asarray(given)
    except ValueError as error:
        raise StateValueRefused(f"{what}: {error}") from None
    if values.shape != (rows,):
        found = f"{len(values)} values" if values.ndim == 1 else f"an array of shape {values.shape}"
        raise StateValueRefused(f"{what}: {found}; {rows} are needed")
    return values


def _cast(what: str, kind: pa.DataType, values: NDArray[Any]) -> Values:
    """Values of another type, with a check of each."""
    source, dtype = values.dtype, dtype_of(kind)
    if source.kind in "Mm":
        return _moments(what, kind, values)
    if source.kind not in "biuf":
        found = "Python objects" if source.kind == "O" else f"{source} values"
        first = f", the first is {_shown(values[0])}" if source.kind == "O" and len(values) else ""
        raise StateValueRefused(f"{what} is {kind} and takes no {found}{first}")
    if dtype.kind == "b":
        unfit = (values != 0) & (values != 1)
    elif dtype.kind == "f":
        unfit = _too_fine(values, dtype)
    else:
        unfit = _not_whole(values) | _out_of_range(values, dtype)
    if unfit.any():
        at = int(np.argmax(unfit))
        raise _unfit(what, kind, values[at].item(), at)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def _too_fine(values: NDArray[Any], dtype: np.dtype[Any]) -> Bools:
    """Which numbers a float of this width cannot hold: whole ones beyond its digits, finite ones beyond its range."""
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.isfinite(values) & ~np.isfinite(values.astype(dtype))
    max_whole = _MAX_WHOLE[dtype.itemsize]
    return (values > max_whole) | (values < -max_whole) if values.dtype.kind == "i" else values > max_whole


def _not_whole(values: NDArray[Any]) -> Bools:
    if values.dtype.kind != "f":
        return np.zeros(len(values), np.bool_)
    with np.errstate(invalid="ignore"):
        return ~((np.abs(values) <= _MAX_WHOLE[min(values.dtype.itemsize, 8)]) & (np.floor(values) == values))


def _out_of_range(values: NDArray[Any], dtype: np.dtype[Any]) -> Bools:
    limits = np.iinfo(dtype)
    if values.dtype.kind == "b" or np.can_cast(values.dtype, dtype):
        return np.zeros(len(values), np.bool_)
    # Compared as Python's numbers, for which there is no overflow; the arrays' extremes say whether it is worth it.
    if not len(values) or (limits.min <= values.min().item() and values.max().item() <= limits.max):
        return np.zeros(len(values), np.bool_)
    return np.array([not limits.min <= value <= limits.max for value in values.tolist()], np.bool_)


def _moments(what: str, kind: pa.DataType, values: NDArray[Any]) -> Values:
    """datetime64 or timedelta64 as counts of the declared unit."""
    fits = pa.types.is_duration(kind) if values.dtype.kind == "m" else pa.types.is_timestamp(kind)
    if not fits and not (values.dtype.kind == "M" and pa.types.is_date32(kind)):
        raise StateValueRefused(f"{what} is {kind} and takes no {values.dtype} values")
    unit = _DATE_UNIT if pa.types.is_date32(kind) else kind.unit
    counted = _in_unit(what, kind, values, np.dtype(f"{values.dtype.kind}8[{unit}]"))
    counts = counted.view(np.int64)
    unfit = np.isnat(values) | (counted.astype(values.dtype) != values) | _out_of_range(counts, dtype_of(kind))
    if unfit.any():
        at = int(np.argmax(unfit))
        raise _unfit(what, kind, str(values[at]), at)
    return counts.astype(dtype_of(kind))


def _in_unit(what: str, kind: pa.DataType, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Beyond the unit's range numpy wraps around, which the caller sees, or raises from 2.5 on."""
    try:
        return values.astype(dtype)
    except OverflowError:
        for at in range(len(values)):
            try:
                values[at : at + 1].astype(dtype)
            except OverflowError:
                raise _unfit(what, kind, str(values[at]), at) from None
        raise


def _is_plain(kind: pa.DataType) -> bool:
    """Numbers and booleans, whose casts Arrow does not check in every case."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _unfit(what: str, kind: pa.DataType, value: Any, at: int) -> StateValueRefused:
    return StateValueRefused(f"{what} is {kind} and cannot hold {_shown(value)} without loss (entry {at})")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "…"


def type_name(given: Any) -> str:
    """How messages call what a user gave: dict, pyarrow.Table, pandas.DataFrame."""
    module, name = type(given).__module__, type(given).__qualname__
    return name if module == "builtins" else f"{module.partition('.')[0]}.{name}"
