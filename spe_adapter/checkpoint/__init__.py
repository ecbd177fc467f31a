"""Spark's checkpoint of a query: what it plans as the input of a batch, and the files that say so.

`planned` is the input of one batch, as the checkpoint plans it and as the log notes it; `files` reads a checkpoint,
`running` reads that of an active query through Spark's JVM.

Invariant: nothing in this package writes to a checkpoint.
"""
