"""The parts of benchmarks/checkpoint_burst.py: stateful operators on 16 hosts, and what writes their checkpoints.

`operating` is an operator's process on a host, `writing` the process beside it that checkpoints the operator's state
with the product's manager, `cluster` runs both on all hosts of a network with a real HDFS, `report` turns what was
measured into goals, JSON and a plot.
"""
