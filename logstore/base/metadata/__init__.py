"""What the hosts of a cluster must agree on, behind one interface: `interface` has it, `sqlite` keeps it for one host,
`etcd` for several; `schema` has the keys of a cluster.

Invariant: this room imports nothing else of ours but `logstore.base`, so sidecar and scheduler may both use it.
"""
