"""What others may use to test against the log store: a simulated disk, a clock set by hand, a driver of disk jobs."""
