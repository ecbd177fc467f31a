"""Exactly-once output: staged attempts, epoch decisions, and the publication of decided epochs in their streams.

`epochs.Epochs` is the entry point; its `_decide` shows the order of events from top to bottom. Does no I/O, like
`logstore.log`.
"""
