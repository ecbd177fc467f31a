"""Calibration: capacities that are measured on the running cluster instead of guessed (SGuard, section 5: "this process
could be automated").

An agent runs on every host (`agent`); the calibrator (`calibrator`) orders agents to send to each other and to write to
their disks, and turns rates into capacities (`rules`). `wire` is their protocol.
"""
