"""The parts of `benchmarks/peace_scale.py`: networks and loads, a child process that is weighed, tables and plots."""
