"""The images of compose/ that clusters of tests run in, built from this checkout; compose/base.sh makes their base."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from logstore.testing.containers import ETCD_IMAGE, SIDECAR_IMAGE, why_not

BASE: Final = "cairn-base"
ROOT: Final = Path(__file__).resolve().parents[2]
PLACES: Final = {SIDECAR_IMAGE: ("compose/Dockerfile", "."), ETCD_IMAGE: ("compose/etcd/Dockerfile", "compose/etcd")}
"""File and context of each."""


class NotBuilt(Exception):
    """There is no image; the message says why."""


def build_images() -> None:
    """Build them; layers that are there already are not made again. BASE and BUILD_NETWORK as in compose.yaml.
    Raises NotBuilt.
    """
    base, network = os.environ.get("BASE", BASE), os.environ.get("BUILD_NETWORK", "default")
    if base == BASE and (problem := why_not(base)):
        raise NotBuilt(problem)
    if shutil.which("docker") is None:
        raise NotBuilt("no program docker: apt-get install docker.io")
    for name, (file, context) in PLACES.items():
        command = ["docker", "build", "--tag", name, "--file", file, "--network", network]
        done = subprocess.run(
            [*command, "--build-arg", f"BASE={base}", context],
            cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode:
            raise NotBuilt(f"image {name} was not built:\n{done.stdout[-4000:]}")
