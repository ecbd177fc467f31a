"""The tier: sealed chunks in an object store, such as HDFS, with the newest ones on the host's own disk as well.

`interface` says what a store must do, `hdfs` does it; `upload` stores one chunk and reads it back, `tiering` decides
what is stored, dropped and removed, and in which order; `range_cache` reads; `service` runs all of it beside a sidecar.
"""
