"""Tools for operators of queries: `cairn state` and `cairn checkpoint`, and what they are made of.

`state_inspector` reads a query's state from the log, `reset` takes a query back to an earlier batch, `rebuild` makes a
lost checkpoint from the log; `state_command` and `checkpoint_command` are the command lines.

Invariant: nothing here runs as part of a query, and nothing is changed before it is certain that all of it can be.
"""
