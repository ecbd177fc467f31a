"""Stateful operators over Arrow batches: a base class to write one's own, window aggregates, a window join, and filter,
map and union beside them.

What always holds in here: state is per window, rows are handled a batch at a time, nothing knows Spark, files or time.
"""
