"""Pages of operators' state on one shared mapping: page sets, copy-on-write per page, and structures on them.

Source: SGuard, section 4 (the memory management middleware).
"""
