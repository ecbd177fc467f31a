"""The parts of benchmarks/long_state.py: large states under many updates, and their recovery."""
