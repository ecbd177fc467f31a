"""Errors of Cairn's use of HDFS. Messages say what to install or to change."""

from scheduler.errors import SchedulerError


class HdfsError(SchedulerError):
    """HDFS did not start, does not answer, or refused a request."""


class HdfsUnavailable(HdfsError):
    """Java, Maven or Hadoop's jars are missing; the message says what to install."""


class PlanTableError(HdfsError):
    """The NameNode's plan table refused a request, or cannot be reached."""


class ChunkLost(HdfsError):
    """A chunk could not be written in the allowed number of attempts, or was read back with other bytes."""
