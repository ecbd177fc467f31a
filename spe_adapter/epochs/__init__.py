"""The epochs of a query: its requests to a sidecar, and the reading of epochs from the log.

`segments` cuts the output of an attempt for staging. `client` has all requests: it stages segments, commits and aborts
epochs, and fences older incarnations. `marks` makes the control batches that follow the results of an epoch, `scan`
reads epochs and state backwards, `retention` registers a query as a reader of the streams that
hold its state, so that their retention keeps what a recovery reads.

Invariants:
* The sink, the micro-batch queries and the continuous runner write and commit epochs through this package alone.
* Staged output is invisible until a commit names the attempt that staged it.
"""
