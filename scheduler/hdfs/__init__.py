"""A real HDFS that follows Peace's chains: a cluster on one machine, the NameNode's plan table, a checkpoint writer."""
