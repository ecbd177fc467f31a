"""Spark's data source `cairn`: a source with the columns and options of Spark's Kafka source, and an exactly-once sink.

`source` has the data source that Spark loads, its readers, and the planner of micro-batches. `catalogue` asks a sidecar
for streams and offsets, `ranges` determines the end of a batch and splits it for tasks, `reading` reads one task's
range. `sink` has the writers, `rows` routes a task's rows to partitions, `sink_notes` compares a repeated epoch with
the log. `options` and `offsets` parse the options.

Invariant: objects that Spark pickles hold options, never connections.
"""
