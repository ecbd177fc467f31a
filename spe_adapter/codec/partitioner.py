"""Kafka's default partitioner over an Arrow column of keys.

Source: Kafka's `BuiltInPartitioner` and `Utils.murmur2`: toPositive(murmur2(key)) % partitions. Records without a key
stick to one partition per call, which the caller chooses; Kafka's producer does so per batch.
"""

import numpy as np
import pyarrow as pa

from spe_adapter.codec import kernels
from spe_adapter.codec.columns import BytesColumn


def partitions_of(keys: pa.Array | None, rows: int, partitions: int, null_partition: int) -> kernels.Int32s:
    """The partition, from 0 to `partitions` - 1, of each of `rows` keys; `null_partition` where there is none."""
    targets = np.full(rows, null_partition, np.int32)
    if keys is not None and keys.null_count < rows:
        column = BytesColumn.of(keys)
        kernels.murmur2_partitions(
            column.offsets, column.bitmap, column.bit, column.data, partitions, null_partition, targets
        )  # fmt: skip
    return targets
