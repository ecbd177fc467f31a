"""Figures of the tier of a host: what metrics and the status page show."""

from dataclasses import dataclass


@dataclass(slots=True)
class TierFigures:
    """What has happened since the start. Bytes, and numbers of chunks or keys."""

    stored_chunks: int = 0
    stored_bytes: int = 0
    removed_chunks: int = 0
    dropped_bytes: int = 0
    """Of local copies."""
    swept_keys: int = 0
    failures: int = 0
    away_since_ms: int | None = None
    away_because: str = ""
