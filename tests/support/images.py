"""The images of compose/ that clusters of tests run in, built from this checkout; compose/base.sh makes their base."""

import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from logstore.testing.containers import ETCD_IMAGE, SIDECAR_IMAGE, why_not

BASE: Final = "cairn-base"
ROOT: Final = Path(__file__).resolve().parents[2]
PLACES: Final = {SIDECAR_IMAGE: ("compose/Dockerfile", "."), ETCD_IMAGE: ("compose/etcd/Dockerfile", "compose/etcd")}
"""File and context of each."""
STEP: Final = re.compile(r"Step \d|#\d+ \[")
"""What a line begins with that names a step, of Docker's builders: of the former one, and of BuildKit."""
KEPT_LINES: Final = 100
"""Of what the builder says, for the error."""


class NotBuilt(Exception):
    """There is no image; the message says why."""


def build_images(say: Callable[[str], None]) -> None:
    """Build them; layers that are there already are not made again. `say` is told what is done, as it is done: it takes
    minutes. BASE and BUILD_NETWORK as in compose.yaml. Raises NotBuilt.
    """
    base, network = os.environ.get("BASE", BASE), os.environ.get("BUILD_NETWORK", "default")
    if base == BASE and (problem := why_not(base)):
        raise NotBuilt(problem)
    if shutil.which("docker") is None:
        raise NotBuilt("no program docker: apt-get install docker.io")
    for name, (file, context) in PLACES.items():
        say(f"building the image {name} from {file}")
        command = ["docker", "build", "--tag", name, "--file", file, "--network", network]
        said: deque[str] = deque(maxlen=KEPT_LINES)
        with subprocess.Popen(
            [*command, "--build-arg", f"BASE={base}", context],
            cwd=ROOT, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as builder:  # fmt: skip
            for line in builder.stdout or ():
                said.append(line)
                if STEP.match(line):
                    say(line.rstrip())
        if builder.returncode:
            raise NotBuilt(f"image {name} was not built:\n{''.join(said)}")
