"""The paper's cluster on one machine: hosts in network namespaces, shaped links, chains of real bytes into real files.

`network` builds the namespaces, `chunks` is the chunk server and its client, `pace` slows disks and clients down to the
paper's, `host` is the process that runs on each host, `hosts` steers those processes. `chains` and `real_hdfs` are the
two experiments of benchmarks/peace_real.py, `report` turns what they measured into goals, JSON and a plot.
"""
