"""A stream, and the store of all streams: state machines that do no I/O themselves.

They take bytes, time and the results of disk jobs; they return jobs to run (`jobs`) and tickets that settle when the
jobs are done.
"""
