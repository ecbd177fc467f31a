"""The experiments of benchmarks/peace.py in the simulated cluster, their tables and pictures."""
