"""Errors of pages; they join the others under one root."""

from logstore.errors import CairnError


class PagesRefused(CairnError):
    """A request to the page manager that cannot be met: an unknown page set, one that exists already, a page that is
    not allocated, a size out of range. The message names the value.
    """


class PagesFull(CairnError):
    """The memory of a page manager, or the reserved range of a page set, has no room for more pages; what is allocated
    stays usable. The message names the bytes and the limit.
    """


class PagesDamaged(CairnError):
    """A page table, or pages that are loaded, contradict themselves."""


class FreezeRefused(CairnError):
    """Pages cannot be frozen now: another freeze is still read."""


class FreezeCancelled(CairnError):
    """The frozen pages are gone: their copies outgrew their room, or the freeze was taken for abandoned. The operator
    went on; a checkpoint of these pages fails and is taken again.
    """


class RecordSchemaRefused(CairnError):
    """A record that pages cannot hold, or records of another schema; the message names the field or the type."""


class EntryTooLarge(CairnError):
    """Bytes that do not fit on one page; the message says how many there are and how many fit."""
