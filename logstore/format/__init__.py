"""Encoders and decoders of every format that Cairn reads or writes, without I/O. Byte tables: docs/format.md."""
