"""A real Kafka in KRaft mode, alone or one of several, and Kafka's own Java tools.

Invariants:
* The server runs as it comes; what differs from its defaults is loopback, free ports, the size of the internal topics,
  or was asked for.
* A `KafkaPeer` owns its directory's `kafka` folder and nothing else.
"""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.jars import kafka_class_path
from benchmarks.harness.process import ServerProcess
from logstore.testing.ports import free_port

TOOL_SECONDS = 60.0
TOOLS = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "acls": "org.apache.kafka.tools.AclCommand",
    "configs": "kafka.admin.ConfigCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "producer-performance": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-performance": "org.apache.kafka.tools.ConsumerPerformance",
    "dump-log": "kafka.tools.DumpLogSegments",
}
"""Kafka's shell scripts, by the names people know them by, and the classes they run."""

_LOG4J = """Configuration:
  name: quiet
  Appenders:
    Console:
      name: stderr
      target: SYSTEM_ERR
      PatternLayout: {pattern: "[%d] %p %m (%c)%n"}
  Loggers:
    Root: {level: warn, AppenderRef: {ref: stderr}}
"""
_SERVER_FLAGS = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""What Kafka's own start script gives the server."""


class Quorum(NamedTuple):
    """Which of several nodes a server is: all are brokers and controllers, numbered from 1."""

    node_id: int
    controller_ports: tuple[int, ...]
    """Of all nodes, in order."""
    cluster_id: str


def new_cluster_id() -> str:
    """Kafka's ids are base64 with "-" as a digit; one in front would look like a flag to its tools."""
    return base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


class KafkaPeer:
    """One Kafka server on 127.0.0.1; its data lives in `directory`/kafka and survives restarts."""

    def __init__(
        self,
        directory: Path,
        *,
        heap: str = "1g",
        overrides: Mapping[str, str] | None = None,
        name: str = "Kafka",
        quorum: Quorum | None = None,
    ) -> None:
        """`overrides` are lines of server.properties; `heap` is what Kafka gives itself; without a `quorum` the server
        is alone. Raises KafkaUnavailable.
        """
        self.name = name
        self.port = free_port()
        self._home = directory / "kafka"
        self._home.mkdir(parents=True, exist_ok=True)
        self._class_path = kafka_class_path()
        self._properties_path = self._home / "server.properties"
        self._quorum = quorum or Quorum(1, (free_port(),), new_cluster_id())
        self._write_configuration(overrides or {})
        self._process = ServerProcess(
            [*self._java(f"-Xms{heap}", f"-Xmx{heap}", *_SERVER_FLAGS), "kafka.Kafka", str(self._properties_path)],
            self._home / "server.log",
        )

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    @property
    def data_path(self) -> Path:
        """Kafka's log directory."""
        return self._home / "data"

    def start(self) -> None:
        """Format the storage the first time, then start the server."""
        if not (self.data_path / "meta.properties").exists():
            command = [
                *self._java("-Xmx128m"),
                "kafka.tools.StorageTool",
                "format",
                "-t",
                self._quorum.cluster_id,
                "-c",
                str(self._properties_path),
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=TOOL_SECONDS)
        self._process.start()

    def wait_serving(self, timeout_seconds: float = 60.0) -> None:
        """Until it accepts connections; PeerFailed otherwise."""
        self._process.wait_listening(self.port, timeout_seconds)

    def stop(self) -> None:
        """A clean shutdown."""
        self._process.stop()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()

    def _java(self, *flags: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={self._home / 'log4j2.yaml'}"
        return ["java", *flags, log4j, "-cp", self._class_path]

    def _write_configuration(self, overrides: Mapping[str, str]) -> None:
        node_id, controller_ports, _ = self._quorum
        controller_port = controller_ports[node_id - 1]
        voters = [f"{number}@127.0.0.1:{port}" for number, port in enumerate(controller_ports, 1)]
        replicas = str(len(controller_ports))
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(voters),
            "log.dirs": str(self.data_path),
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            **overrides,
        }
        self._properties_path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        (self._home / "log4j2.yaml").write_text(_LOG4J)


def java_tool(
    tool: str,
    arguments: Sequence[str],
    *,
    heap: str = "256m",
    input_text: str | None = None,
    timeout_seconds: float = TOOL_SECONDS,
    flags: Sequence[str] = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's tools (a key of TOOLS) to its end and give back its output; `flags` default to a quick start.

    Raises KafkaUnavailable, subprocess.TimeoutExpired. A failing tool raises nothing: look at `returncode`.
    """
    command = ["java", f"-Xmx{heap}", *flags, "-cp", kafka_class_path(), TOOLS[tool], *arguments]
    return subprocess.run(
        command, input=input_text, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )
