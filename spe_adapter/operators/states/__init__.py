"""States of an operator by name (values, lists, maps) and timers, kept per key. See `operator` for the base class."""
