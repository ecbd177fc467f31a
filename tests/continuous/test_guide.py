"""docs/continuous.md runs as it stands, against a sidecar of the test's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.continuous.processes import create, produce_values
from tests.continuous.test_kills import consumed
from tests.support.sidecar import ROOT, Sidecar

GUIDE = ROOT / "docs" / "continuous.md"
DEFAULT_ADDRESS = "127.0.0.1:9092"


def test_the_guide_runs(tmp_path: Path) -> None:
    """Its code, block behind block; the results are those that it promises."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    payments = [(b"c7", b'{"customer":"c7","amount":%d}' % amount) for amount in [-5, *range(1, 11), 0, *range(11, 15)]]
    with Sidecar(tmp_path / "data") as sidecar:
        create(sidecar.address, "payments")
        produce_values(sidecar.address, "payments", payments)
        space: dict[str, Any] = {}
        for block in blocks:
            here = block.replace(DEFAULT_ADDRESS, sidecar.address)
            # The guide's runner runs for ever, the test's until it has read everything.
            exec(compile(here.removesuffix("runner.run()\n"), str(GUIDE), "exec"), space)
        runner = space["runner"]
        runner.run(until=lambda: runner.needed_offsets().get("payments", 0) > 0)
        assert consumed(sidecar.address, "averages") == [(b"c7", b'{"customer":"c7","average":5.5}')]
