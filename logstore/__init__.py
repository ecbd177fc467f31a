"""The log store of one sidecar: keeps streams durable, ordered and quickly recoverable.

Packages: `base` (what the scheduler needs as well), `format` (encoding and decoding), `log` (one stream, and the store
of all streams, without I/O), `epochs` (exactly-once output), `disk` (real files), `kafka` (the protocol), `client` (for
programs that talk to a sidecar), `testing` (a simulated disk and other tools for tests).
"""
