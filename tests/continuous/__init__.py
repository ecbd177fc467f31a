"""Tests of the continuous runner: on a simulated disk, and with real processes that are killed."""
