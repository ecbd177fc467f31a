"""Where the programs that tests start find their modules: this project's, and what stands in front of others'."""

import os
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
PYTHON_PATH: Final = os.pathsep.join([str(Path(__file__).with_name("as_installed")), str(ROOT)])
"""For the environment: `as_installed` hides from a sidecar what its users have not installed."""
