"""Errors of structures on pages; they join the others under one root."""

from logstore.errors import CairnError


class RecordSchemaRefused(CairnError):
    """A record that pages cannot hold, or records of another schema; the message names the field or the type."""


class EntryTooLarge(CairnError):
    """Bytes that do not fit on one page; the message says how many there are and how many fit."""
