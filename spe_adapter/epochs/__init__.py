"""What a query tells a sidecar about its epochs, and what it reads of them in the log.

`segments` cuts an attempt's output into requests, `staging` sends them, `client` commits and aborts epochs and fences
older runs, `marks` writes an epoch's state behind its results, `scan` reads epochs and state backwards.

Invariants:
* The sink, the micro-batch queries and the continuous runner write and commit epochs through this package alone.
* Nothing that is staged is visible before a commit names the attempt that staged it.
"""
