"""The Hadoop laboratory: a real HDFS in racks on one machine, for tests and benchmarks of `scheduler.hdfs`.

`python -m tests.support.hdfs` starts a cluster from the command line, `cluster.HdfsCluster` from Python. Hadoop's jars
come from Maven once and stay in the user's cache directory.
"""
