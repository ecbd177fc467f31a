"""The commands for operators, one module each: `cairn status`, `topics`, `groups`, `offsets`, `trim`, `queries` ask a
sidecar through the Kafka protocol; `dump` and `verify` read a data directory; `completion` prints a script for a shell.

Invariants: a module imports what its own command needs, because a command starts for each line that is typed; what is
printed for programs (`--json`) has stable keys (docs/command-line.md).
"""
