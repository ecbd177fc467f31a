"""Prints what Cairn needs, for pip, without Cairn: `python3 requirements.py EXTRA...`, beside pyproject.toml."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = [project["optional-dependencies"][extra] for extra in sys.argv[1:]]
for needed in (*project["dependencies"], *(needed for extra in extras for needed in extra)):
    sys.stdout.write(f"{needed}\n")
