"""Spark's Python workers: the context of a task, garbage collection, and code that is loaded before workers fork.

`context` names the local properties that carry an epoch to a task, `collector` spares loaded code from the garbage
collector, `warm` runs compiled loops once. `spe_adapter.daemon` is the daemon that forks workers with all of it loaded.

Invariant: nothing is imported here; a new worker waits for every module that it imports.
"""
