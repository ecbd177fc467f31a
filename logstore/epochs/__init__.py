"""Exactly-once output: staged attempts, epoch decisions, and a decided epoch's way into its streams.

`epochs.Epochs` is the entry; its `decide` shows the order of events from top to bottom. Sans-I/O, as `logstore.log` is.
"""
