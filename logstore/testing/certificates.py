"""Certificates of hosts for tests: each trusts the others' and no more. Made by the program `openssl`.

Invariant: keys are readable by everybody who reaches the directory: they are for tests alone.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from logstore.testing.processes import NotStarted

AUTHORITIES: Final = "hosts.pem"


def make_certificates(directory: Path, names: Sequence[str]) -> None:
    """NAME.pem for each host, with its key, and AUTHORITIES with all certificates. Raises NotStarted."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise NotStarted("certificates of hosts need the program openssl: apt-get install openssl")
    directory.mkdir(parents=True, exist_ok=True)
    certificates = []
    for name in names:
        key, certificate = directory / f"{name}.key", directory / f"{name}.crt"
        command = [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
            "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out",
            str(certificate),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  no shell
        if done.returncode:
            raise NotStarted(f"no certificate for host {name}: {done.stderr[-300:]}")
        certificates.append(certificate.read_text())
        pem = directory / f"{name}.pem"
        pem.write_text(certificates[-1] + key.read_text())
        pem.chmod(0o444)
        key.unlink()
    (directory / AUTHORITIES).write_text("".join(certificates))


def certificate_flags(directory: str, name: str) -> tuple[str, ...]:
    """The flags of a host whose certificates lie in a directory, as the host sees it."""
    return "--peer-certificate", f"{directory}/{name}.pem", "--peer-ca", f"{directory}/{AUTHORITIES}"
