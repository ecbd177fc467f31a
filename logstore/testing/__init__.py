"""Tools for tests against the log store: a simulated disk, the contract of a file system, a manual clock, a driver of
disk jobs.
"""

from logstore.testing.filesystem import check_filesystem

__all__ = ["check_filesystem"]
