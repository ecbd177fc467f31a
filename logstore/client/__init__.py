"""Clients of a sidecar.

`blocking` is for programs without an event loop, such as Spark's tasks: raw record batches in and out, offsets and
topics over the Kafka protocol, and Cairn's own requests that stage and commit epochs. `wire` has the requests and
replies as bytes, `network` what the client needs of the operating system.
"""
