"""Spark's checkpoint of a query: the input that it plans for a batch, and the files that hold this plan.

`planned` is the input of one batch, as the checkpoint plans it and as the log notes it. `files` reads a checkpoint of
files; `running` reads the checkpoint of an active query through Spark's JVM.

Invariant: nothing in this package writes to a checkpoint.
"""
