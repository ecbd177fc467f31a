"""The checkpoint of a running query, read through Spark's JVM, on any file system that Spark knows.

Invariants:
* The offsets of a batch come from Spark's own offset log, which has written `offsets/N` before the batch begins.
* The offsets of each batch are read once; those of the previous batch are cached.

Source: Spark's StreamExecution (offsetLog, resolvedCheckpointRoot) and OffsetSeqLog.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from spe_adapter.errors import CheckpointDiffers
from spe_adapter.spark_checkpoint.files import OFFSETS, planned_in
from spe_adapter.spark_checkpoint.planned import Planned


class RunningCheckpoint:
    """The checkpoint of a query that is active in a session (`files.Checkpoint`)."""

    def __init__(self, spark: SparkSession, query: str) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001 - Spark has no other way to its offset log
        self._settings: Any = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        self._query = query
        self._execution: Any = spark._jsparkSession.streams().get(query).streamingQuery()  # noqa: SLF001
        self._offsets: dict[int, str] = {}
        self._notes: Mapping[str, str] | None = None

    def planned(self, batch: int) -> Planned:
        """The input of the batch that Spark has just begun. Raises CheckpointDiffers if Spark has no offsets of it."""
        found = planned_in(self, batch, self._notes)
        if found is None:
            raise CheckpointDiffers(
                f"query {self._query}: Spark's checkpoint does not hold the offsets of batch {batch}"
            )
        self._notes = found.notes
        self._offsets = {number: text for number, text in self._offsets.items() if number == batch}
        return found

    def read(self, name: str) -> str | None:
        """See Checkpoint."""
        folder, _, number = name.partition("/")
        if folder == OFFSETS:
            return self._offsets_of(int(number))
        return self._file(name)

    def names(self, folder: str) -> Sequence[str]:
        """See Checkpoint."""
        path, files = self._place(folder)
        return (
            sorted(str(status.getPath().getName()) for status in files.listStatus(path)) if files.exists(path) else ()
        )

    def _offsets_of(self, batch: int) -> str | None:
        known = self._offsets.get(batch)
        if known is not None:
            return known
        log = self._execution.offsetLog()
        found = log.get(batch)
        if found.isEmpty():
            return None
        written = self._jvm.java.io.ByteArrayOutputStream()
        log.serialize(found.get(), written)
        self._offsets[batch] = str(written.toString("UTF-8"))
        return self._offsets[batch]

    def _file(self, name: str) -> str | None:
        path, files = self._place(name)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode(errors="replace")
        finally:
            stream.close()

    def _place(self, name: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._execution.resolvedCheckpointRoot()}/{name}")
        return path, path.getFileSystem(self._settings)
