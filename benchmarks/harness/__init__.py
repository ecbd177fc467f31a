"""What every benchmark shares: peers that it starts, meters, and reports.

`jars` and `kafka` fetch and run a real Kafka, `sidecar` runs Cairn; both are a `Peer` (`process`). `raw` is a client of
plain sockets that costs as little as Python allows; `load` and `reader` make loads of it, `kafka_clients` does so with
clients that others wrote. `meter` measures a server's process and the disk, `report` turns figures into goals and JSON.
"""
