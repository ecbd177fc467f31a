"""The Kafka protocol front: framing, connections, and one module for each family of requests.

What a request means is decided in `logstore.log`; here it is only decoded, answered and refused as Kafka does.
"""
