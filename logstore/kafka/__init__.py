"""The Kafka protocol front: framing, connections, and one module for each family of requests.

`logstore.log` and `logstore.epochs` decide what a request means; this package decodes, answers and refuses requests as
Kafka does, and keeps the consumer groups.
"""
