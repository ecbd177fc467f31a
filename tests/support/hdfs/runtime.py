"""What a cluster runs from: jars, archives of loaded classes that halve a JVM's start, and an empty name space.

The archives are recorded once, by a NameNode and a DataNode that serve one file and end in order.

Invariants:
* A recorded directory is named after the class path's jars and the Java that wrote it; another Java makes its own.
* A name space is formatted once and copied for every cluster: they share an id, and never a directory.
"""

import hashlib
import shutil
import subprocess
from pathlib import Path

from hdfs import InsecureClient

from scheduler.hdfs.errors import HdfsError
from scheduler.hdfs.jars import HADOOP_VERSION, default_cache, made_once
from tests.support.hdfs.jars import class_path
from tests.support.hdfs.launch import Daemon, Keeper, Runtime, find_java
from tests.support.hdfs.layout import (
    NameNodePlace,
    Node,
    format_command,
    loopback,
    start_datanode,
    start_namenode,
    write_layout,
)
from tests.support.hdfs.probe import wait_state

RECORD_S = 300.0
MODULES_CLOSED = "3.5."
"""Releases that leave the JVM's own modules alone."""
OPENS = ("--add-opens=java.base/java.lang=ALL-UNNAMED",)
"""WebHDFS of Hadoop 3.3 and 3.4 defines classes at run time, which Java 17 refuses unless told."""


def hadoop(cache: Path | None = None, version: str = HADOOP_VERSION) -> Runtime:
    """All that is needed to start daemons of this release; makes what is missing. Raises HdfsUnavailable, HdfsError."""
    cache = default_cache() if cache is None else cache
    path = class_path(cache, version)
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=False).stderr
    options = () if version.startswith(MODULES_CLOSED) else OPENS
    name = hashlib.sha256(f"{path}\0{java}".encode()).hexdigest()[:16]

    def record(work: Path) -> Path:
        start = work / "start"
        start.mkdir()
        _record(Runtime(path, start, record=True, options=options), work / "run")
        return start

    return Runtime(path, made_once(cache, f"hdfs-start-{name}", record), options=options)


def _record(runtime: Runtime, directory: Path) -> None:
    """Format a name space, keep a copy of it, then run a NameNode and a DataNode until a file is written."""
    directory.mkdir()
    place = NameNodePlace.choose(loopback(0))
    nodes = [Node(f"recorded{number}", loopback(1 + number), "rack") for number in range(2)]
    write_layout(directory, place, nodes, {"dfs.replication": "2"}, token="recording")
    plain = runtime._replace(archives=None)
    formatted = subprocess.run(format_command(plain, directory), capture_output=True, text=True, check=False, cwd="/")
    if formatted.returncode != 0 or runtime.archives is None:
        raise HdfsError(f"HDFS: no name space could be formatted: {formatted.stdout[-2000:]}{formatted.stderr[-2000:]}")
    shutil.copytree(directory / "name", runtime.archives / "name")
    daemons: list[Daemon] = []
    keeper = Keeper(directory)
    try:
        daemons.append(start_namenode(runtime, directory, place))
        for which, node in zip((runtime, plain), nodes, strict=True):
            daemons.append(start_datanode(which, directory, node))
        url = f"http://{place.address}:{place.http_port}"
        wait_state(url, lambda seen: len(seen.live) == len(nodes), daemons, RECORD_S, "the first start")
        client = InsecureClient(url, user="cairn", timeout=RECORD_S)
        client.write("/recorded", data=b"recorded", overwrite=True)
        with client.read("/recorded") as reader:
            reader.read()
        for daemon in reversed(daemons[:2]):  # the others leave no archive
            daemon.finish(RECORD_S)
    finally:
        for daemon in daemons:
            daemon.kill()
        keeper.close()
