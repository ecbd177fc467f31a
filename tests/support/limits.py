"""How long tests wait for what must come: one limit for all of them.

Invariant: a limit here ends a test that hangs and decides nothing else. No promise is tested by how fast a machine is,
so the limits are far beyond what a loaded machine needs; a benchmark publishes how long things take.
"""

from typing import Final

PATIENCE_S: Final = 300
"""For an answer, a start, an end, a record that must come: the slowest seen on a loaded machine is 60 s."""
PROGRAM_S: Final = 900
"""For a whole program with a Spark of its own, or a benchmark's smallest run: the slowest seen is 200 s."""
