"""A container for each host of a test cluster and for its etcd, by testcontainers. Needs Docker and two images.

    with Cluster(directory, network=ContainerNetwork()) as cluster:
        cluster["a"].pause()

The images are those of `compose/`: `cairn` and `cairn-etcd`; nothing is fetched. Cuts and slow links need root and nft
or tc on this machine, which are used inside the containers' networks.

Invariants:
* Containers, their network and their volumes are removed when the network stops. What a killed test leaves are
  containers whose names begin with `cairn-test-` (their volumes go with `docker rm -f -v`), and a network with the
  label `org.testcontainers` (`docker network prune --filter label=org.testcontainers`).
* A host that is started again is the same container with the same disk; `wipe` makes a new one.
* A cut lasts until `heal`, or until a host at its end starts again.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import docker
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network as DockerNetwork

from logstore.testing.certificates import certificate_flags, make_certificates
from logstore.testing.namespaces import TABLE, shape
from logstore.testing.network import ETCD, NetworkUnavailable
from logstore.testing.ports import free_ports
from logstore.testing.processes import PATIENCE_S, NotStarted

SIDECAR_IMAGE: Final = "cairn"
ETCD_IMAGE: Final = "cairn-etcd"
SIDECAR_USER: Final = 10001
"""Of the image."""
KAFKA_PORT, PEER_PORT, ETCD_PORT = 9092, 9099, 2379
DATA: Final = "/var/lib/cairn"
CERTIFICATES: Final = "/certificates"
READY: Final = b"cairn ready"
POLL_S: Final = 0.05
SIGNALED: Final = 128
"""Docker adds it to the number of the signal that ended a process."""
PREFIX: Final = "cairn-test-"

# The container that would remove what a killed test leaves comes from a registry, which nobody can assume.
testcontainers_config.ryuk_disabled = True


def why_not(*images: str) -> str | None:
    """Why there can be no containers here; None if nothing is known against it. `images`: what is needed."""
    try:
        client = docker.from_env()
        missing = [name for name in images or (SIDECAR_IMAGE, ETCD_IMAGE) if not client.images.list(name)]
        client.close()
    except docker.errors.DockerException as error:
        return f"no Docker answers: {error}"
    return f"no image {', '.join(missing)}: docs/cluster-tests.md says how they are built" if missing else None


class ContainerNode:
    """An etcd or a sidecar in a container."""

    def __init__(self, name: str, make: Callable[[], DockerContainer]) -> None:
        self.name = name
        self._make = make
        self._made: DockerContainer | None = None
        self._is_ended = True

    @property
    def container(self) -> Any:
        """The container, as docker-py has it. Raises NotStarted."""
        if self._made is None:
            raise NotStarted(f"{self.name} was never started")
        found = self._made.get_wrapped_container()
        found.reload()
        return found

    @property
    def is_running(self) -> bool:
        """See ClusterProcess."""
        return self._made is not None and self.container.status in ("running", "paused")

    @property
    def pid(self) -> int:
        """See ClusterProcess."""
        return int(self.container.attrs["State"]["Pid"])

    @property
    def is_paused(self) -> bool:
        """See ClusterProcess."""
        return self._made is not None and self.container.status == "paused"

    @property
    def died(self) -> int | None:
        """See ClusterProcess."""
        if self._is_ended or self._made is None or self.is_running:
            return None
        return self._status()

    @property
    def log(self) -> str:
        """See ClusterProcess."""
        return self.container.logs(stdout=False).decode(errors="replace") if self._made is not None else ""

    def start(self) -> None:
        """See ClusterProcess."""
        self._is_ended = False
        if self._made is None:
            made = self._make()
            made.start()
            self._made = made
        else:
            self.container.start()

    def kill(self) -> int | None:
        """See ClusterProcess."""
        if self._is_ended or self._made is None:
            return None
        if self.is_running:
            self.go_on()
            self.container.kill()
        self._is_ended = True
        return self._status()

    def stop(self) -> int:
        """See ClusterProcess."""
        self.container.stop(timeout=int(PATIENCE_S))
        self._is_ended = True
        return self._status()

    def _status(self) -> int:
        """As a process has it: a signal is a negative number."""
        status = int(self.container.wait()["StatusCode"])
        return SIGNALED - status if status > SIGNALED else status

    def pause(self) -> None:
        """See ClusterProcess."""
        self.container.pause()

    def go_on(self) -> None:
        """See ClusterProcess."""
        if self.container.status == "paused":
            self.container.unpause()

    def remove(self) -> None:
        """Remove the container and its volumes."""
        made, self._made = self._made, None
        if made is not None:
            made.stop()


class ContainerHost(ContainerNode):
    """A sidecar in a container."""

    def __init__(self, name: str, make: Callable[[], DockerContainer], port: int, data_dir: Path) -> None:
        super().__init__(name, make)
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.data_dir = data_dir
        self._starts = 0

    def start(self) -> None:
        """See ClusterHostProcess."""
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """See ClusterHostProcess."""
        self._starts += 1
        super().start()

    def wait_ready(self) -> None:
        """See ClusterHostProcess."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.container.logs(stderr=False).count(READY) < self._starts:
            if not self.is_running or time.monotonic() > deadline_s:
                raise NotStarted(f"host {self.name} did not start:\n{self.log[-4000:]}")
            time.sleep(POLL_S)

    def wipe(self) -> None:
        """See ClusterHostProcess."""
        if self.is_running:
            raise NotStarted(f"host {self.name} runs: stop it before its disk is replaced")
        self.remove()
        self._starts = 0
        shutil.rmtree(self.data_dir, ignore_errors=True)


class ContainerNetwork:
    """See the module."""

    def __init__(self, sidecar: str = SIDECAR_IMAGE, etcd: str = ETCD_IMAGE) -> None:
        self._images = sidecar, etcd
        self._names: list[str] = []
        self._ports: list[int] = []
        self._folder = Path()
        self._network = DockerNetwork()
        self._is_made = False
        self._nodes: dict[str, ContainerNode] = {}

    def plan(self, names: Sequence[str]) -> None:
        """See ClusterNetwork."""
        self._names, self._ports = list(names), free_ports(len(names))
        self._folder = Path(tempfile.mkdtemp(prefix="cairn-certificates-"))
        self._folder.chmod(0o755)

    def start(self) -> None:
        """See ClusterNetwork."""
        problem = why_not(*self._images)
        if problem:
            raise NetworkUnavailable(problem)
        make_certificates(self._folder, self._names)
        self._network.create()
        self._is_made = True

    def stop(self) -> None:
        """See ClusterNetwork."""
        for node in self._nodes.values():
            node.remove()
        if self._is_made:
            self._network.remove()
            self._is_made = False
        shutil.rmtree(self._folder, ignore_errors=True)

    def make_etcd(self, directory: Path) -> ContainerNode:
        """See ClusterNetwork."""
        urls = (f"http://0.0.0.0:{ETCD_PORT}", f"http://{ETCD}:{ETCD_PORT}")

        def make() -> DockerContainer:
            command = ["--listen-client-urls", urls[0], "--advertise-client-urls", urls[1]]
            return self._container(self._images[1], ETCD, command)

        self._nodes[ETCD] = ContainerNode(ETCD, make)
        return self._nodes[ETCD]

    def make_host(self, name: str, directory: Path, flags: Sequence[str]) -> ContainerHost:
        """See ClusterNetwork."""
        port, data_dir = self._ports[self._names.index(name)], directory / name
        command = [
            *("--insecure", "--kafka", f"0.0.0.0:{KAFKA_PORT}", "--advertise", f"127.0.0.1:{port}"),
            *("--cluster", f"etcd://{ETCD}:{ETCD_PORT}", "--host-name", name),
            *("--peer-listen", f"0.0.0.0:{PEER_PORT}", "--peer-advertise", f"{name}:{PEER_PORT}"),
            *certificate_flags(CERTIFICATES, name),
            *flags,
        ]

        def make() -> DockerContainer:
            data_dir.mkdir(parents=True, exist_ok=True)
            user = os.getuid() or SIDECAR_USER
            if os.getuid() == 0:
                os.chown(data_dir, user, user)
            made = (
                self._container(self._images[0], name, command)
                .with_volume_mapping(str(data_dir.resolve()), DATA, "rw")
                .with_volume_mapping(str(self._folder), CERTIFICATES, "ro")
                .with_kwargs(user=user, hostname=name)
            )
            made.ports[KAFKA_PORT] = ("127.0.0.1", port)  # `with_bind_ports` would publish it on every address
            return made

        host = ContainerHost(name, make, port, data_dir)
        self._nodes[name] = host
        return host

    def _container(self, image: str, name: str, command: Sequence[str]) -> DockerContainer:
        return (
            DockerContainer(image)
            .with_name(f"{PREFIX}{self._network.name}-{name}")
            .with_command(list(command))
            .with_network(self._network)
            .with_network_aliases(name)
        )

    def cut(self, source: str, target: str) -> None:
        """See ClusterNetwork."""
        self._inside(target, "nft", f"add table {TABLE}")
        self._inside(target, "nft", f"add chain {TABLE} input {{ type filter hook input priority 0; }}")
        self._inside(target, "nft", f"add rule {TABLE} input ip saddr {self._address(source)} drop")

    def slow(self, source: str, target: str, *, delay_s: float = 0.0, bytes_s: float = 0.0) -> None:
        """See ClusterNetwork. Slows all that source sends, to whomever; a delay needs netem in the kernel."""
        self._inside(source, "tc", "qdisc", "replace", "dev", "eth0", "root", *shape(delay_s, bytes_s))

    def heal(self) -> None:
        """See ClusterNetwork. Other tables stay: Docker's answer for names of containers depends on one."""
        for name, node in self._nodes.items():
            if node.is_running:
                for command in (("nft", f"delete table {TABLE}"), ("tc", "qdisc", "del", "dev", "eth0", "root")):
                    self._try_inside(name, *command)

    def _address(self, name: str) -> str:
        found = self._node(name).container.attrs["NetworkSettings"]["Networks"][self._network.name]
        return str(found["IPAddress"])

    def _node(self, name: str) -> ContainerNode:
        if name not in self._nodes:
            raise NetworkUnavailable(f"{name!r} is not a host of this network: {', '.join(self._nodes)} are")
        return self._nodes[name]

    def _inside(self, name: str, *command: str) -> None:
        done = self._try_inside(name, *command)
        if done.returncode:
            raise NetworkUnavailable(f"{' '.join(command)} in the network of {name}: {done.stderr.strip()}")

    def _try_inside(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        inside = ("nsenter", f"--net=/proc/{self._node(name).pid}/ns/net", *command)
        return subprocess.run(inside, capture_output=True, text=True, check=False)  # noqa: S603  no shell
