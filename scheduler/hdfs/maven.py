"""Runs Maven, and finds the compiler that it needs.

Invariants:
* Only Maven connects to repositories, so its own configuration (mirrors, proxies) applies.
* The compiler runs with the JDK that was found, never with a Java of Maven's choice, which may have no compiler.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from scheduler.hdfs.errors import HdfsUnavailable

MIN_JDK = 17
"""Hadoop 3.5 and the tests of the policy need Java 17."""
MAVEN_SECONDS = 900
"""The downloads are 68 MB of jars: 30 s with a near mirror."""
MAVEN_PACKAGES = "Debian 12, Ubuntu: apt-get install maven openjdk-17-jdk-headless; Debian 13: openjdk-21-jdk-headless"


def maven(arguments: Sequence[str], what: str, jdk: Path | None = None) -> None:
    """Run Maven, without the network if it has all it needs.

    `what`: the purpose, for errors; `jdk`: the home of the JDK, None: Maven's choice. Raises HdfsUnavailable with
    Maven's output.
    """
    program = shutil.which("mvn")
    if program is None:
        raise HdfsUnavailable(f"no mvn on the path: Maven must {what} ({MAVEN_PACKAGES})")
    environment = dict(os.environ) if jdk is None else {**os.environ, "JAVA_HOME": str(jdk)}
    for offline in (["-o"], []):
        command = [program, "-q", "-B", *offline, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=MAVEN_SECONDS, check=False, env=environment
            )
        except subprocess.TimeoutExpired as error:
            raise HdfsUnavailable(f"Maven could not {what} in {MAVEN_SECONDS} s") from error
        if done.returncode == 0:
            return
    raise HdfsUnavailable(f"Maven could not {what}: {done.stdout[-3000:]}{done.stderr[-1000:]}")


def find_jdk() -> Path:
    """The home of a JDK 17 or newer: of JAVA_HOME, of the `java` on the path, or of the `javac` there.

    Raises HdfsUnavailable, which names the Java installations that were found.
    """
    seen = []
    for home in dict.fromkeys(_homes()):
        compiler = home / "bin" / "javac"
        if not compiler.is_file():
            seen.append(f"{home} has no javac")
            continue
        said = subprocess.run([str(compiler), "-version"], capture_output=True, text=True, check=False)
        version = re.search(r"javac (\d+)", said.stdout + said.stderr)  # Java 8 prints it on standard error
        if version and int(version[1]) >= MIN_JDK:
            return home
        seen.append(f"{home} is older")
    found = "; ".join(seen) or "there is no java on the path"
    raise HdfsUnavailable(
        f"no JDK {MIN_JDK} or newer: the placement policy must be compiled, and a Java runtime has no compiler "
        f"({found}; {MAVEN_PACKAGES})"
    )


def _homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    for name in ("java", "javac"):
        program = shutil.which(name)
        if program is not None:
            yield Path(program).resolve().parents[1]
