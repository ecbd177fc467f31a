"""Sealed chunks of replicated streams in an object store."""
