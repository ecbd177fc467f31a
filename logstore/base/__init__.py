"""What every program of Cairn needs: clock, addresses, directory lock, log lines, types of values, errors.

Invariant: this package imports no other module of Cairn. It is the only part of the log store that the scheduler
imports (docs/decisions/0021).
"""
