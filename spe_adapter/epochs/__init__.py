"""What a query tells a sidecar about its epochs, and what it reads of them in the log.

`segments` cuts the output of an attempt for staging. `client` has all requests: it stages segments, commits and aborts
epochs, and fences older incarnations. `marks` makes the control batches that follow the results of an epoch, `scan`
reads epochs and state backwards, `retention` keeps topics with state from trimming themselves.

Invariants:
* The sink, the micro-batch queries and the continuous runner write and commit epochs through this package alone.
* Nothing that is staged is visible before a commit names the attempt that staged it.
"""
