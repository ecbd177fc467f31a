"""Copies of chunks between hosts: asked for, planned, paced."""
