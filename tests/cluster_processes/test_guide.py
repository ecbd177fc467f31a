"""The guide's test of a user's own runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.metadata.support import needs_etcd
from tests.support.limits import PATIENCE_S

pytestmark = [needs_etcd, pytest.mark.clients]
GUIDE = (Path(__file__).resolve().parents[2] / "docs/cluster-tests.md").read_text(encoding="utf-8")


def test_the_example_of_the_guide_passes(tmp_path: Path) -> None:
    """It loses a host and a direction of a link, and no record."""
    (block,) = re.findall(r"^```python\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    assert block.count("flush(60)") == 1
    block = block.replace("flush(60)", f"flush({PATIENCE_S})")  # on a machine that has much else to do
    exec(compile(block, "docs/cluster-tests.md", "exec"), names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    test(tmp_path)
