"""Checkpoints in an HDFS whose NameNode follows Peace's chains: a plan table, a writer, and the jar of the policy.

`java/policy` is the placement policy and the plan table, `jars` builds them, `plan_table` is the table's client;
`writer` writes checkpoints by the gos of a coordinator, through `webhdfs`.
"""
