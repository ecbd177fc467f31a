"""What a piece of Python prints in processes that hash strings in other ways."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.limits import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def printed_with_other_hashes(program: str) -> set[str]:
    """All that the program prints, under two seeds of the hash of strings: one text if it does not depend on that."""
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        ).stdout
        for number in (1, 2)
    }
