"""Spark on top of the log store: the `cairn` data source."""
