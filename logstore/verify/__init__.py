"""Checks a whole data directory against what docs/format.md promises. Reads only, through the `FileSystem` interface.

Invariant: what is proven durable and wrong is *damage*; what a kill or a power cut may leave, and the next start puts
in order, is a *note*. The rules of proof are recovery's (`logstore.log.recovery`).
"""
