"""SGuard's own figures, section 6.1: a C++ library in Borealis, two 2.66 GHz quad-cores, 16 GB, one SATA disk."""

from __future__ import annotations

from typing import Final

JOIN_US: Final = {"256 KB": (592.1, 605.0, 604.8), "512 KB": (1144.0, 1175.0, 1179.0), "1 MB": (2109.0, 2158.0, 2161.0)}
"""Table 5, µs a tuple by the window's size: original, pages of 8 KB, of 64 KB."""
AGGREGATE_US: Final = {"1 MB": (18.82, 21.25, 19.97), "10 MB": (24.93, 24.60, 23.18), "100 MB": (47.73, 31.54, 29.78)}
"""Table 6, µs a tuple by the state's size: original, pages of 8 KB, of 64 KB."""
LATENCY_MS: Final = {
    "original": {1: (23.1, 1.85), 4: (24.1, 1.88), 64: (25.0, 1.81)},
    "pages without checkpoints": {1: (21.6, 1.63), 4: (21.8, 1.63), 64: (22.7, 1.58)},
    "pages": {1: (202.0, 645.0), 4: (22.2, 1.91), 64: (22.8, 1.66)},
    "synchronous serialization": {1: (617.0, 1530.0), 4: (157.0, 334.0), 64: (30.2, 3.58)},
    "asynchronous serialization": {1: (302.0, 862.0), 4: (100.0, 208.0), 64: (26.6, 5.49)},
}
"""Table 7, ms of a tuple from end to end by partitions: mean, standard deviation; 128 MB, a checkpoint a
minute, of 64 partitions one in two minutes.
"""
PREPARE_RATIO: Final = 100.0
"""Figure 6: freezing is up to so many times as fast as serializing."""
PAGES_S_512MB: Final = 0.06
"""Figure 9: the page manager's part of a recovery of 512 MB; the structures' part takes as long again."""
READ_128MB_S: Final = 2.0
"""A checkpoint of 128 MB, read from the distributed file system: the bytes alone, reckoned from the 95 MB/s of a client
with four threads (section 6.2).
"""
