"""Epochs and registered readers over hosts: which host has them, what they hold of streams, and how an epoch's groups
reach the owners of their streams.
"""
