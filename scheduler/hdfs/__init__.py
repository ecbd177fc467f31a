"""Checkpoints in an HDFS whose NameNode follows Peace's chains: the NameNode's plan table, a writer, the policy's jar.

`java/policy` is the placement policy and the plan table, `jars` builds them, `plan_table` is the table's client;
`writer` writes checkpoints as a coordinator says, through `webhdfs`.
"""
