"""Producers that are other people's programs, at the settings they come with, and what became of their records."""
