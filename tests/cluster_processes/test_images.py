"""The images that clusters of tests run in: who waits for them is told what is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.images import NotBuilt, build_images

DOCKER = """#!/bin/sh
echo "Sending build context to Docker daemon"
echo "Step 1/2 : FROM $BASE"
tries=0
until [ -e "$0.go" ]; do
    tries=$((tries + 1))
    [ $tries -lt 6000 ] || exit 1
    sleep 0.05
done
echo "#7 [2/2] RUN apt-get"
echo "#7 0.5 a line of its own"
[ "$3" = "$FAILS" ] && exit 3
exit 0
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `docker` that says what Docker's builders say."""
    program = tmp_path / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("BASE", "debian:trixie-slim")
    return program


def test_each_step_is_told_when_it_begins(docker: Path) -> None:
    """Not when all is built: the builder is held behind its first step until that was told."""
    told: list[str] = []

    def say(line: str) -> None:
        told.append(line)
        if line.startswith("Step 1/2"):
            docker.with_name("docker.go").touch()

    build_images(say)
    steps = ["Step 1/2 : FROM debian:trixie-slim", "#7 [2/2] RUN apt-get"]
    assert [line for line in told if not line.startswith("building")] == steps * 2
    assert [line for line in told if line.startswith("building")] == [
        "building the image cairn from compose/Dockerfile",
        "building the image cairn-etcd from compose/etcd/Dockerfile",
    ]


def test_an_image_that_is_not_built_says_why(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the builder has said last is in the error."""
    docker.with_name("docker.go").touch()
    monkeypatch.setenv("FAILS", "cairn-etcd")
    with pytest.raises(NotBuilt, match=r"(?s)image cairn-etcd was not built.*a line of its own"):
        build_images(lambda line: None)
