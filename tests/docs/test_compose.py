"""compose/ is what the guide says, and agrees with the settings of a sidecar."""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from logstore.base.addresses import is_loopback
from logstore.config import SidecarConfig, add_arguments, parse
from logstore.monitoring.service import URGENT
from logstore.testing import containers
from tests.support import images

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
CONTENT: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
SIDECARS = {name: service for name, service in CONTENT["services"].items() if service["image"] == "cairn"}
DOCKERFILES = sorted(COMPOSE.rglob("Dockerfile"))


def steps(path: Path) -> list[tuple[str, str]]:
    """Instruction and arguments of a Dockerfile, lines that go on joined."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def entry_point() -> list[str]:
    """What the image of a sidecar runs, in front of its flags."""
    (found,) = [json.loads(rest) for word, rest in steps(COMPOSE / "Dockerfile") if word == "ENTRYPOINT"]
    return [str(word) for word in found]


def settings(name: str) -> SidecarConfig:
    """The settings that the sidecar of a service runs with."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    command = [*entry_point(), *SIDECARS[name]["command"]]
    assert command[:2] == ["cairn", "serve"]
    return parse(parser.parse_args(command[2:]))


def test_the_sidecars_are_one_cluster() -> None:
    """Each has the flags that a sidecar takes; one etcd, and names, numbers, racks and disks of their own."""
    found = {name: settings(name) for name in SIDECARS}
    clusters = [each.cluster for each in found.values() if each.cluster is not None]
    assert len(clusters) == len(found) == 3
    assert len({each.metadata for each in clusters}) == 1
    assert len({each.host for each in clusters}) == len({each.node_id for each in clusters}) == 3
    assert len({each.place.rack for each in clusters}) == 3
    assert [each.host for each in clusters] == list(found)
    disks = [volume.split(":")[0] for service in SIDECARS.values() for volume in service["volumes"]]
    assert sorted(set(disks)) == sorted({*found, "certificates"})
    assert set(disks) <= set(CONTENT["volumes"])


def test_links_are_encrypted_with_certificates_that_are_made() -> None:
    """Every host has one of its own, from the service that makes them, and trusts all of these."""
    assert CONTENT["services"]["certificates"]["command"] == ["/certificates", *SIDECARS]
    for name in SIDECARS:
        cluster = settings(name).cluster
        assert cluster is not None
        assert cluster.security.peer.certificate == f"/certificates/{name}.pem"
        assert cluster.security.peer.client_ca == "/certificates/hosts.pem"


def test_listeners_are_published_where_clients_are_told() -> None:
    """On loopback alone; and in the network under the service's name."""
    for name, service in SIDECARS.items():
        inner, outer = settings(name).listeners
        assert (inner.advertised_host, inner.advertised_port) == (name, inner.port)
        assert is_loopback(str(outer.advertised_host))
        assert service["ports"] == [f"{outer.advertised_host}:{outer.advertised_port}:{outer.port}"]


def test_health_is_asked_where_it_is_served() -> None:
    """The health check asks the sidecar's own address for a path that is served even when it is busy."""
    (check,) = [rest for word, rest in steps(COMPOSE / "Dockerfile") if word == "HEALTHCHECK"]
    (address, path) = re.findall(r"http://([^/]+)(/\w+)", check)[0]
    http = settings("a").http
    assert http is not None
    assert str(http.address) == address
    assert is_loopback(http.address.host)
    assert path in URGENT


def test_the_image_holds_every_package() -> None:
    """What is installed is what pyproject.toml lists, and what .dockerignore lets through."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for path in (COMPOSE / "Dockerfile", COMPOSE / "spark" / "Dockerfile"):
        sources = [rest.split()[:-1] for word, rest in steps(path) if word == "COPY" and "--" not in rest]
        copied = {name for names in sources for name in names}
        assert packages <= copied
        assert {f"!{name}" for name in copied} <= set(ignored)


def test_an_image_installs_what_the_package_needs() -> None:
    """In a layer of its own, which the code does not change: the requirements of pyproject.toml, with an extra."""
    program = [sys.executable, str(COMPOSE / "requirements.py"), "cluster"]
    printed = subprocess.run(program, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert printed == project["dependencies"] + project["optional-dependencies"]["cluster"]


def test_tests_build_the_images_that_compose_builds() -> None:
    """From the same files, in the same places."""
    for name, (file, context) in images.PLACES.items():
        builds = [service["build"] for service in CONTENT["services"].values() if service["image"] == name]
        for build in builds:
            assert (COMPOSE / build["context"]).resolve() == (ROOT / context).resolve()
            assert (COMPOSE / build["context"] / build.get("dockerfile", "Dockerfile")).resolve() == ROOT / file
        assert builds


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_an_image_is_small_and_careful(path: Path) -> None:
    """The base can be chosen; packages come without what they recommend and leave no lists; nothing is fetched by ADD;
    what runs is in exec form.
    """
    found = steps(path)
    assert ("ARG", "BASE=cairn-base") in found
    assert {rest.split()[0] for word, rest in found if word == "FROM"} == {"${BASE}"}
    assert "ADD" not in [word for word, _ in found]
    for word, rest in found:
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/* /var/cache/apt/*" in rest
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list)


def test_a_sidecar_is_not_root() -> None:
    """The image's user is the one that tests and the certificates give files to."""
    (user,) = [rest for word, rest in steps(COMPOSE / "Dockerfile") if word == "USER"]
    assert user == f"{containers.SIDECAR_USER}:{containers.SIDECAR_USER}"
    assert f"chown -R {user}" in (COMPOSE / "certificates" / "make.sh").read_text(encoding="utf-8")


def test_the_query_waits_for_all_sidecars() -> None:
    """Its topics have a copy on each from the beginning."""
    needed = CONTENT["services"]["spark"]["depends_on"]
    assert {name for name, of in needed.items() if of["condition"] == "service_healthy"} >= set(SIDECARS)


def test_tests_use_the_images_that_compose_builds() -> None:
    """By the same names."""
    assert CONTENT["services"]["spark"]["command"][0].split(",") == [f"{name}:9092" for name in SIDECARS]
    built = {service["image"] for service in CONTENT["services"].values()}
    assert {containers.SIDECAR_IMAGE, containers.ETCD_IMAGE} <= built
