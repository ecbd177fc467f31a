"""Tools for tests against the log store: a simulated disk, the contracts of a file system and of a metadata store, a
manual clock, a driver of disk jobs.
"""

from logstore.testing.filesystem import check_filesystem
from logstore.testing.metadata_contract import check_metadata_store

__all__ = ["check_filesystem", "check_metadata_store"]
