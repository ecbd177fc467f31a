"""What every benchmark shares: peers that it starts, meters, and reports.

`jars` and `kafka` fetch and run a real Kafka, `sidecar` runs Cairn; both are a `Peer`. `raw` is a client of plain sockets that costs as
little as Python allows. `meter` measures a server's process and the disk, `report` turns figures into a table, JSON and a plot.
"""
