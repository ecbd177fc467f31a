"""The small things that every program of Cairn needs, once: clock, addresses, directory lock, log lines, fields, errors.

Invariant: this package imports no other module of Cairn. It is the only part of the log store that the scheduler
imports (docs/decisions/0021).
"""
