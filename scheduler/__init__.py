"""Peace: who writes which chunk of a checkpoint where and when (SGuard, section 5), as a library and a service.

`topology` describes the network, `peace` plans, `coordinator` is the service, `simulation` a cluster to try plans on,
`hdfs` a real one. Nothing here imports Spark, or of the log store anything but `logstore.base`.
"""
