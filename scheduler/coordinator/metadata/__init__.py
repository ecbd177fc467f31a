"""Where the coordinator keeps what must outlive it: an interface, and SQLite behind it."""
