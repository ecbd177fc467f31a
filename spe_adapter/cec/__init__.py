"""Continuous eventual checkpointing (CEC): what is written beside the results, and how state is found again.

Invariants:
* Sans-I/O: bytes, columns, counters and times come in as arguments and go out as values. Nothing here opens a file or
  a socket, looks at a clock or imports Spark.
* `control` says what stands in the log, `reconstruct` reads it backwards, `policy` decides which windows to write
  again, `extent` keeps the counters that policies look at, `calibrate` measures what they cost.

Source: the CEC paper (Sebepou and Magoutis), sections II and III; what changes against it is in
docs/decisions/0008-epochs-instead-of-timestamps.md.
"""
