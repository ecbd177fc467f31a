"""Kafka's classic consumer groups: who is in a group, who reads what, and how far they have read.

`coordinator` is the membership protocol and `offsets` the durable positions, both without I/O; `service` joins the two;
`handlers` translates Kafka's requests and waits for tickets.
"""
