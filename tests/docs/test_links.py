"""What the documents say about the repository is true: links lead somewhere, named files and commands exist."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
ROOMS = ("logstore/", "scheduler/", "spe_adapter/", "pyspark_cairn/", "tests/", "benchmarks/", "docs/", "compose/")


def name_of(document: Path) -> str:
    """A document as pytest shows it."""
    return str(document.relative_to(ROOT))


def anchors_of(document: Path) -> set[str]:
    """The anchors that the headings of a document make."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link names a file that exists, and a heading in it."""
    broken = []
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path) if path else document
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_files_that_are_named_exist(document: Path) -> None:
    """Every file or folder of ours that a document names in code quotes exists."""
    quoted = CODE.findall(document.read_text(encoding="utf-8"))
    ours = [text for text in quoted if text.startswith(ROOMS) and not re.search(r"[*<>{}…\sA-Z]", text)]
    assert [path for path in ours if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_run_commands_that_are_named_exist(document: Path) -> None:
    """Every `./run COMMAND` in a document is one that the script knows."""
    script = (ROOT / "run").read_text(encoding="utf-8")
    known = set(re.findall(r"^\./run ([a-z-]+)", script, flags=re.MULTILINE)) | {"help"}
    named = set(re.findall(r"\./run ([a-z-]+)", document.read_text(encoding="utf-8")))
    assert named <= known


def test_every_decision_is_listed() -> None:
    """The index of decisions names each record once, in order."""
    index = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    records = [path.name for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))]
    assert [target for target in LINK.findall(index) if target[0].isdigit()] == records


def test_the_python_examples_compile() -> None:
    """Python in the documents is Python."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
            compile(block, name_of(document), "exec")


def test_the_extras_that_are_named_exist() -> None:
    """`pip install ".[EXTRA]"` in a document names extras of pyproject.toml; PyPI's `cairn` is another project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert not re.search(r"pip install [\"']?cairn", text), document
        for extras in re.findall(r"pip install [\"']?\.\[([a-z,]+)\]", text):
            assert set(extras.split(",")) <= set(project["optional-dependencies"])
