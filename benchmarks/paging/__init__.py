"""The parts of benchmarks/pages.py: state on pages, and what a checkpoint of it costs its operator."""
