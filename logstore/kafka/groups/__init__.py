"""Kafka's classic consumer groups: their members, assignments and committed offsets.

`coordinator` has the membership protocol and `offsets` the durable offsets, both without I/O; `service` connects the
two; `handlers` translates Kafka's requests and waits for tickets.
"""
