"""The parts of benchmarks/cluster.py: three hosts of Cairn against three of Kafka.

`plan` says how much is measured, `topics` has the topics of each part, `produce`, `failover` and `copies` measure,
`report` turns rows into goals, tables and a plot.
"""
