"""State of Python operators: versioned, columnar, in memory that all workers of a host share.

`table` is a hash table of windows over one block of memory; `store` says what operators run on, `overlay` (copy on
write over a base that is never written) and `direct` (in place) provide it; `versions` keeps the bases of a host and
the changes that lead from one version to the next.

Invariants: an operator never writes to a version that another task can see; state that is damaged, stale or foreign is
discarded and loaded again, never used. It knows numpy, numba and Arrow; nothing of Spark or the log.
"""
