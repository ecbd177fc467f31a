"""The sources of foreign clients with their tests, fetched through package registries and built; nothing of them is
kept under version control.

Invariants:
* Only the registries' own clients talk to them (pip, go, cargo), so their configuration (mirrors, proxies) holds.
* A directory of sources is complete or not there: it is filled under another name, and renamed when it is done.
* What is missing on the machine is said by name (`Missing`), with what to do about it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "client-suites"
"""Not under version control; may be deleted at any time."""
FRANZ_GO_VERSION = "v1.22.2"
RDKAFKA_SYS_VERSION = "4.10.0"
"""The crate that carries librdkafka 2.12.1 with its tests."""
BUILD_SECONDS = 1800


class Missing(RuntimeError):
    """A program or a registry is missing; the message says which, and what it is needed for."""


def run(command: Sequence[str], cwd: Path, *, environment: Mapping[str, str] | None = None) -> str:
    """What a program prints. Raises Missing if there is no such program, or if it fails."""
    if shutil.which(command[0]) is None:
        raise Missing(f"no {command[0]} on the path: please install it and call again")
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise Missing(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def kafka_python(python: str) -> Path:
    """The source distribution of the kafka-python that is installed, with its tests, from PyPI. Raises Missing."""
    name = f"kafka-python-{version('kafka-python')}"
    target = CACHE / name
    if not target.exists():
        with _scratch() as work:
            wanted = name.replace("python-", "python==")
            run([python, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", wanted, "-d", "."], work)
            (archive,) = work.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(work, filter="data")
            (unpacked,) = (path for path in work.iterdir() if path.is_dir())
            os.rename(unpacked, target)
    return target


def franz_go() -> tuple[Path, Path]:
    """The folder of franz-go's client, and the program of its tests, by the Go module proxy. Raises Missing."""
    module = f"github.com/twmb/franz-go@{FRANZ_GO_VERSION}"
    program = CACHE / f"franz-go-{FRANZ_GO_VERSION}.test"
    CACHE.mkdir(parents=True, exist_ok=True)
    run(["go", "mod", "download", module], CACHE)
    folder = Path(run(["go", "env", "GOMODCACHE"], CACHE).strip()) / module / "pkg" / "kgo"
    if not program.exists():
        with _scratch() as work:
            run(["go", "test", "-c", "-o", str(work / "kgo.test"), "."], folder, environment={"GOFLAGS": "-mod=mod"})
            os.rename(work / "kgo.test", program)
    return folder, program


_GO_MODULE = """module producer

go 1.26.0

require github.com/twmb/franz-go {version}
"""


def franz_go_producer() -> Path:
    """A producer that is a program, with the franz-go of these tests: `franz_go_producer.go`, built. Raises Missing."""
    source = Path(__file__).with_name("franz_go_producer.go").read_bytes()
    program = CACHE / f"franz-go-producer-{FRANZ_GO_VERSION}-{sha256(source).hexdigest()[:12]}"
    if not program.exists():
        with _scratch() as work:
            (work / "go.mod").write_text(_GO_MODULE.format(version=FRANZ_GO_VERSION))
            (work / "main.go").write_bytes(source)
            run(["go", "build", "-o", "producer", "."], work, environment={"GOFLAGS": "-mod=mod"})
            os.rename(work / "producer", program)
    return program


_MANIFEST = """[package]
name = "sources"
version = "0.0.0"
edition = "2021"
[lib]
path = "empty.rs"
[dependencies]
rdkafka-sys = "={version}"
"""


def librdkafka() -> Path:
    """librdkafka with its tests built, from crates.io, where the Rust binding carries it whole. Raises Missing."""
    target = CACHE / f"librdkafka-{RDKAFKA_SYS_VERSION}"
    if not target.exists():
        for program in ("cc", "c++", "make"):
            if shutil.which(program) is None:
                raise Missing(f"no {program} on the path: librdkafka's tests are compiled (apt-get install g++ make)")
        with _scratch() as work:
            (work / "Cargo.toml").write_text(_MANIFEST.format(version=RDKAFKA_SYS_VERSION))
            (work / "empty.rs").touch()
            run(["cargo", "vendor", "--quiet", "crates"], work)
            source = work / "crates" / "rdkafka-sys" / "librdkafka"
            for path in (path for path in source.rglob("*") if not path.is_symlink()):
                path.chmod(path.stat().st_mode | 0o200)
            run(["bash", "./configure", "--disable-ssl", "--disable-gssapi", "--disable-curl"], source)
            run(["make", "-j2", "libs"], source)
            run(["make", "-C", "tests", "build"], source)
            os.rename(source, target)
    return target


@contextmanager
def _scratch() -> Iterator[Path]:
    """A directory beside the target, so that a rename can move what is done; removed at the end."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetch-") as name:
        yield Path(name)
