"""What can go wrong with an HDFS that Cairn starts or talks to. Messages say what to install or to change."""

from scheduler.errors import SchedulerError


class HdfsError(SchedulerError):
    """An HDFS that did not start, does not answer, or refused."""


class HdfsUnavailable(HdfsError):
    """Java, Maven or Hadoop's jars are missing; the message says which, and what to install."""


class PlanTableError(HdfsError):
    """The NameNode's plan table refused, or cannot be reached."""


class ChunkLost(HdfsError):
    """A chunk could not be written in as many attempts as are allowed, or read back as it was written."""
