"""The load of `benchmarks/long_run.py`: clients of all kinds, and what they must see."""
