"""Parts of benchmarks/cec.py: the paper's items, runs over them, the paper's numbers, what is reported."""
