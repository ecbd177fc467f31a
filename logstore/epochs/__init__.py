"""Exactly-once output: staged attempts, commit records of epochs, and the publication of committed epochs.

`epochs.Epochs` is the entry point; its `_commit` shows the order of events from top to bottom. Does no I/O, like
`logstore.log`.
"""
