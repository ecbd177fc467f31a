"""Bytes in, bytes out: every format Cairn reads or writes, without any I/O. The byte tables are in docs/format.md."""
