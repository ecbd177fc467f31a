"""Tools for tests against the log store: clusters, a simulated disk, the contracts of a file system, of a metadata
store and of an object store, a manual clock, a driver of disk jobs.
"""

from logstore.testing.cluster import Cluster
from logstore.testing.filesystem import check_filesystem
from logstore.testing.metadata_contract import check_metadata_store
from logstore.testing.object_contract import check_object_store

__all__ = ["Cluster", "check_filesystem", "check_metadata_store", "check_object_store"]
