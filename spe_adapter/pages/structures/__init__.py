"""Structures of records on pages: list, queue, map, ordered map, and an arena for bytes of varying length.

A structure takes arrays of records or keys and changes pages in place; a page looks in memory as it does on disk. So a
checkpoint is a copy of pages, and a structure is recovered by reading the pages' headers.

Source: SGuard, sections 4.2 (page layouts) and 4.3 (data structures) and table 3.
"""
