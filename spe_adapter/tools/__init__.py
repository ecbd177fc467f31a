"""Tools for those who operate queries: the commands `cairn state` and `cairn checkpoint`, and their functions.

`state_inspector` reads a query's state from the log, `reset` takes a query back to an earlier batch, `rebuild` makes a
lost checkpoint from the log; `state_command` and `checkpoint_command` are the command lines.

Invariant: no query runs this code. A tool checks that the whole change is possible before it changes anything.
"""
