"""The partitioners of Kafka's clients over an Arrow column of keys.

| name (librdkafka's) | of whom the default | partition | a key of no bytes |
|---|---|---|---|
| murmur2_random | the Java client and what follows it | toPositive(murmur2(key)) % partitions | a key like any other |
| consistent_random | librdkafka: confluent-kafka, kcat, node-rdkafka, … | crc32(key) % partitions | as without a key |

Records without a key stick to one partition per call, which the caller chooses; Kafka's producer does so per batch.

Source: Kafka's `BuiltInPartitioner` and `Utils.murmur2`; librdkafka's `rdkafka_msg.c` and its setting `partitioner`.
"""

from typing import Final, Literal

import numpy as np
import pyarrow as pa

from spe_adapter.codec import kernels
from spe_adapter.codec.columns import BytesColumn

Partitioner = Literal["murmur2_random", "consistent_random"]
PARTITIONERS: Final[tuple[Partitioner, ...]] = ("murmur2_random", "consistent_random")


def _crc32_table() -> kernels.Uint32s:
    """CRC-32 (zlib's) of each byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    return table


_CRC32: Final = _crc32_table()


def partitions_of(
    keys: pa.Array | None,
    rows: int,
    partitions: int,
    null_partition: int,
    partitioner: Partitioner = "murmur2_random",
) -> kernels.Int32s:
    """The partition, from 0 to `partitions` - 1, of each of `rows` keys; `null_partition` where there is none."""
    targets = np.full(rows, null_partition, np.int32)
    if keys is not None and keys.null_count < rows:
        column = BytesColumn.of(keys)
        if partitioner == "murmur2_random":
            kernels.murmur2_partitions(
                column.offsets, column.bitmap, column.bit, column.data, partitions, null_partition, targets
            )  # fmt: skip
        else:
            kernels.crc32_partitions(
                column.offsets, column.bitmap, column.bit, column.data, _CRC32, partitions, null_partition, targets
            )  # fmt: skip
    return targets
