"""Checkpoints of operators' state: frozen pages, written as replicated chunks, registered, and loaded in a recovery.

Source: SGuard, sections 3 and 5 (checkpoint manager, I/O service, name space).
"""
