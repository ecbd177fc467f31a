"""Spark's data source `cairn`: a source with the columns and options of Spark's Kafka source, and an exactly-once sink.

`source` is what Spark loads: the data source, its readers and the planner of micro-batches (`catalogue` asks a sidecar
for streams and offsets, `ranges` decides how far a batch goes and cuts it for tasks, `reading` is a task's read).
`sink` has the writers, `rows` routes a task's rows to partitions, `sink_notes` compares a repeated epoch with what the
log says of it. `options` and `offsets` parse what a user writes.

Invariant: objects that Spark pickles hold options, never connections.
"""
