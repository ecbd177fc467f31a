"""The network that Peace plans on: its model, its description in a file, its overview and its picture.

`model` is the network itself and all that planners need; the names below are its own. `description` reads and writes
files, with the keys of `keys` and the units of `quantities`; `overview` sums a network up; `drawing` draws what `scene`
selects, and alone needs matplotlib; `command` is the command line.
"""

from scheduler.topology.model import (
    CHUNK_BYTES,
    DEFAULT_CAPACITY,
    UNLIMITED,
    Hop,
    Link,
    Server,
    Topology,
    Tree,
    both_ways,
    disk_capacity,
    racks,
)

__all__ = (
    "CHUNK_BYTES",
    "DEFAULT_CAPACITY",
    "UNLIMITED",
    "Hop",
    "Link",
    "Server",
    "Topology",
    "Tree",
    "both_ways",
    "disk_capacity",
    "racks",
)
