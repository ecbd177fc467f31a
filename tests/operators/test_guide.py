"""The guide to operators does what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from spe_adapter.testing import OperatorHarness
from tests.operators.examples import CLICKS

READINGS = pa.schema([("sensor", pa.string()), ("at", pa.timestamp("us", "UTC")), ("value", pa.float64())])
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"


def run_guide() -> dict[str, object]:
    """All its code, block by block, in one module; what that leaves behind."""
    names: dict[str, object] = {"__name__": "guide"}
    text = GUIDE.read_text(encoding="utf-8")
    for block in re.finditer(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(GUIDE), "exec"), names)
    return names


def test_the_guide_runs() -> None:
    """Every block, with the assertions in it; and the sessions and ranges, which it only defines, give one."""
    guide = run_guide()
    sessions, ranges = guide["Sessions"], guide["Range"]
    assert isinstance(sessions, type)
    assert isinstance(ranges, type)
    harness = OperatorHarness(sessions(), key="user", schema=CLICKS)
    harness.send([{"user": "u", "at": 1_000_000}, {"user": "u", "at": 60_000_000}])
    (session,) = harness.advance_watermark(10**9)
    assert (session["user"], session["clicks"]) == ("u", 2)
    harness = OperatorHarness(ranges(), key="sensor", schema=READINGS)
    values = ((1_000_000, 4.0), (9_999_999, -1.5), (5_000_000, 2.0), (10_000_000, 9.0))
    harness.send([{"sensor": "s", "at": at, "value": value} for at, value in values])
    assert harness.advance_watermark(10_000) == [{"sensor": "s", "start_us": 0, "low": -1.5, "high": 4.0}]


@pytest.mark.parametrize("name", ["Alarm", "Sessions"])
def test_the_guides_operators_are_the_examples(name: str) -> None:
    """The lines of code of the examples that the other tests run, without types."""
    examples = Path(__file__).with_name("examples.py").read_text(encoding="utf-8")
    shown = GUIDE.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^class {name}\(Operator\):\n(.*?)^```", shown, flags=re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in body.splitlines() if line.startswith("        ") and '"""' not in line]
    assert [line for line in lines if line not in examples] == []
