"""Peace's planners and its online scheduler (SGuard, section 5): requests, residual capacity and time in, plans out.

Invariants: sans-I/O throughout. No clock, no randomness of its own, no files, no sockets.
"""
