"""The lock file: complete, hashed, and free of any registry's address."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]


def locked() -> dict[str, Version]:
    """Name and version of everything in the lock file."""
    pins: dict[str, Version] = {}
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if "==" in line:
            name, _, version = line.split(";")[0].strip().rstrip("\\").strip().partition("==")
            pins[canonicalize_name(name)] = Version(version)
    return pins


def test_every_dependency_is_locked_within_its_bounds() -> None:
    """Each dependency of pyproject.toml, extras included, has one pinned version that satisfies its bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    pins = locked()
    for line in wanted:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{name} is not locked: ./run lock"
        assert requirement.specifier.contains(pins[name]), f"{name} {pins[name]} is outside {line}: ./run lock"


def test_the_lock_names_no_registry() -> None:
    """Where packages come from is the installing machine's business: no address and no local path in the lock."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in text
    assert "--find-links" not in text
    assert "--index-url" not in text


def test_the_sidecar_needs_little() -> None:
    """The sidecar's own dependencies stay few: a review should notice each new one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {Requirement(line).name for line in project["dependencies"]} == {
        "asn1crypto",
        "cramjam",
        "crc32c",
        "h11",
        "kio",
        "scramp",
        "trio",
    }


def imported(room: str) -> set[str]:
    """The packages that the modules of a room import when they are loaded."""
    found = set[str]()
    for path in (ROOT / room).rglob("*.py"):
        if "demo" not in path.relative_to(ROOT / room).parts[0]:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names


def test_the_spark_library_imports_what_its_extra_has() -> None:
    """`pip install '.[spark]'` in a checkout is enough to load every module of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    wanted = {canonicalize_name(Requirement(line).name) for line in lines}
    homes = packages_distributions()
    missing = {
        name
        for name in imported("spe_adapter") - {path.parent.name for path in ROOT.glob("*/__init__.py")}
        if not wanted & {canonicalize_name(home) for home in homes.get(name, ())}
    }
    missing -= {"py4j"}  # which belongs to pyspark, in the version that it needs
    assert missing == set(), f"not in the extra `spark`: {', '.join(sorted(missing))}"


def test_nobody_is_told_to_install_cairn_from_an_index() -> None:
    """On PyPI `cairn` is another project: messages and documents say how to install it from a checkout."""
    places = [path for room in ROOT.glob("*/__init__.py") for path in room.parent.rglob("*.py")]
    places += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    told = [
        str(path.relative_to(ROOT))
        for path in places
        if re.search(r"pip install (-\S+ )*[\"']?cairn\b", path.read_text(encoding="utf-8"))
    ]
    assert told == []
