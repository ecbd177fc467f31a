"""Peace's planners and its online scheduler (SGuard, section 5): requests, residual capacity and time in, plans out.

Invariants: sans-I/O; no clock, no files, no sockets; randomness comes in as an argument.
"""
