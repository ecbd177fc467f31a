"""What one sidecar does: keep queues (and, later, files) durable, ordered and quickly recoverable.

Rooms: `format` (bytes in, bytes out), `log` (one stream and the store of all streams, sans-I/O), `disk` (real files),
`kafka` (the protocol front), `client` (for programs that talk to a sidecar), `testing` (for those who test against us).
"""
