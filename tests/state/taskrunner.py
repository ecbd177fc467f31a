"""A process that brings a partition from version to version, as tasks of its epochs do: one for each byte of its input.

Writes one byte for each version that it has reached.
"""

import os
import sys
from pathlib import Path

from spe_adapter.state.versions import StateDirectory
from tests.state.conftest import OPERATOR, QUERY, SCHEMA
from tests.state.history import long_history

LIMIT = 256 * 1024 * 1024
WINDOWS = 4000
VERSIONS = 40


def main() -> None:
    """Go from version to version, and from the last to the first again."""
    history = long_history(WINDOWS, VERSIONS)
    root = Path(sys.argv[1])
    while True:
        for step in history.steps:
            if not os.read(0, 1):
                return
            directory = StateDirectory(root, QUERY, LIMIT, seed=3)
            with directory.open(0, SCHEMA, OPERATOR, step.tag, history.loader(step.tag)):
                pass
            os.write(1, b".")


if __name__ == "__main__":
    main()
