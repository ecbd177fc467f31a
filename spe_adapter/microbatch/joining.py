"""`stateful_join(…)`: two data frames become the one input of a window join.

Invariant: a row carries its side and, as a struct, its own columns; the other side's struct is null (see
operators.join).
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from spe_adapter.errors import SchemaRefused
from spe_adapter.microbatch.query import Stateful, stateful
from spe_adapter.operators.join import SIDE, SIDES, WindowJoin


def stateful_join(
    left: DataFrame,
    right: DataFrame,
    *,
    key: str | Sequence[str],
    operator: WindowJoin,
    partitions: int | None = None,
) -> Stateful:
    """A query over the pairs of rows of two streaming data frames that have equal keys (columns that both have, of the
    same types) and whose times suit the operator. Results: the key's columns, `left` and `right`.

    Raises SchemaRefused for keys that differ; the rest is said by `start`.
    """
    names = (key,) if isinstance(key, str) else tuple(key)
    for name in names:
        kinds = [{field.name: field.dataType for field in frame.schema.fields}.get(name) for frame in (left, right)]
        if kinds[0] is None or kinds[0] != kinds[1]:
            said = " and ".join("missing" if kind is None else kind.simpleString() for kind in kinds)
            raise SchemaRefused(f"key column {name!r} is {said} (left and right); both need it, with one type")
    frames = (left, right)
    kinds_of = [frame.select(_struct(frame).alias("row")).schema["row"].dataType for frame in frames]

    def side(index: int) -> DataFrame:
        frame = frames[index]
        columns = [_struct(frame) if at == index else sf.lit(None).cast(kinds_of[at]) for at in range(len(SIDES))]
        return frame.select(
            *[sf.col(f"`{name}`") for name in names],
            sf.lit(index).cast("tinyint").alias(SIDE),
            *[column.alias(name) for column, name in zip(columns, SIDES, strict=True)],
        )

    return stateful(side(0).unionByName(side(1)), key=names, operator=operator, partitions=partitions)


def _struct(frame: DataFrame) -> Column:
    return sf.struct(*[sf.col(f"`{name}`") for name in frame.columns])
