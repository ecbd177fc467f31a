"""The Kafka protocol front: framing, connections, and one module for each family of requests.

`logstore.log` decides what a request means; this package only decodes, answers and refuses requests as Kafka does.
"""
