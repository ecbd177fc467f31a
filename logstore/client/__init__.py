"""Clients of a sidecar.

`blocking` is for programs without an event loop, such as Spark's tasks. It reads and writes raw record batches, manages
offsets and topics over the Kafka protocol, and sends Cairn's own requests, which stage and commit epochs. `wire`
encodes requests and decodes replies. `network` has the client's sockets and clock.
"""
