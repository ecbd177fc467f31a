"""One Hadoop daemon as one small JVM: its command line, its configuration file, its log, its end.

Invariants:
* A daemon is in a process group of its own, so that Ctrl-C in a terminal reaches only the program that started it.
* Its environment says to which directory it belongs: by that the directory's keeper finds it, whatever happens here.
* The class path holds jars alone: a directory on it would switch the archive of loaded classes off.
* Names are looked up in the cluster's own hosts file and never on the network.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from scheduler.hdfs.errors import HdfsUnavailable
from tests.support.hdfs import keeper

NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
ADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"

SMALL_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xss512k",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
)
"""Quick to start and small; a daemon that moves bytes for minutes would do with the full compiler."""
LOG4J = """log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


class Runtime(NamedTuple):
    """What daemons run from: a class path, and where the archives of loaded classes and an empty name space are kept.

    Without `archives` a daemon starts slower; `record` makes it write an archive when it ends. `options`: what this
    Hadoop needs of the JVM.
    """

    class_path: str
    archives: Path | None = None
    record: bool = False
    options: tuple[str, ...] = ()

    def archive_options(self, role: str) -> list[str]:
        """The JVM's options about its archive of loaded classes."""
        if self.archives is None:
            return []
        archive = self.archives / f"{role}.jsa"
        if self.record:
            return [f"-XX:ArchiveClassesAtExit={archive}"]
        return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


class Daemon:
    """A running JVM and its log."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        """The JVM's process, and process group."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group, if it is still there."""
        if self.alive:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def finish(self, timeout_s: float) -> None:
        """End it in order; after `timeout_s` at once."""
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self, lines: int = 30) -> str:
        """The last lines of its log, for error messages."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def find_java() -> str:
    """The `java` on the path. Raises HdfsUnavailable."""
    java = shutil.which("java")
    if java is None:
        raise HdfsUnavailable("no java on the path: HDFS needs Java 17 (Debian: install openjdk-17-jdk-headless)")
    return java


class Keeper:
    """A process that, when this program ends or says so, kills what `launch` started in a directory and removes it."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )

    def close(self) -> None:
        """Have it clean up now, and wait for that."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def environment(directory: Path) -> dict[str, str]:
    """The environment of a process that belongs to a directory."""
    return {**os.environ, keeper.MARK: str(directory)}


def launch(name: str, command: Sequence[str], log: Path) -> Daemon:
    """Start a command in a process group of its own, belonging to the directory of `log`, where what it prints goes."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=environment(log.parent),
        )
    return Daemon(name, process, log)


def java_command(
    runtime: Runtime, directory: Path, role: str, main: str, heap_mb: int, arguments: Sequence[str] = ()
) -> list[str]:
    """A daemon's command line: `directory` holds what `write_common` wrote."""
    return [
        find_java(),
        *SMALL_JVM,
        *runtime.options,
        f"-Xmx{heap_mb}m",
        *runtime.archive_options(role),
        f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}",
        f"-Djdk.net.hosts.file={directory / 'hosts'}",
        f"-Djava.io.tmpdir={directory}",
        "-cp",
        runtime.class_path,
        main,
        "-conf",
        str(directory / "hdfs-site.xml"),
        *arguments,
    ]


def write_common(directory: Path, settings: Mapping[str, str], addresses: Mapping[str, str]) -> None:
    """The files that all daemons of a cluster read: settings, names, what to log."""
    properties = "".join(
        f"  <property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
        for key, value in sorted(settings.items())
    )
    (directory / "hdfs-site.xml").write_text(f"<configuration>\n{properties}</configuration>\n")
    (directory / "log4j.properties").write_text(LOG4J)
    known = {"localhost": "127.0.0.1", socket.gethostname(): "127.0.0.1"} | dict(addresses)
    (directory / "hosts").write_text("".join(f"{address} {name}\n" for name, address in known.items()))
