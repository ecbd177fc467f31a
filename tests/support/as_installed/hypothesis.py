"""Stands in front of Hypothesis in the programs that tests start: a user's sidecar has none.

kio imports Hypothesis, and with it pytest, wherever it is installed, which doubles the processor time of a sidecar's
start. A program other than `cairn` gets the real module.
"""

import sys
from importlib import import_module
from pathlib import Path

if "logstore.cli" in sys.orig_argv:
    raise ImportError("a sidecar of tests has no Hypothesis, as a user's has none")

_here = str(Path(__file__).parent)
sys.path[:] = [path for path in sys.path if path != _here]
del sys.modules[__name__]
sys.modules[__name__] = import_module(__name__)
