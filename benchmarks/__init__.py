"""Measurements of Cairn beside its peers, each one command: `python benchmarks/NAME.py [--quick]`."""
