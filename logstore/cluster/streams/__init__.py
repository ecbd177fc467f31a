"""Streams as clients see them, from replicated chunks: appended, read, trimmed, described."""
