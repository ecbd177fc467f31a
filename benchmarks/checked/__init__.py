"""Checked histories: clients that note every call and its answer, faults from a seed, and a judge."""
