"""Runs one fuzz target in a process of its own: `python -m tests.fuzz.engine TARGET --runs N --seed S`.

With atheris, inputs follow what they reach (`logstore` and `scheduler` are instrumented before they are loaded);
without it, with `--plain`, seeds are changed at random. The process may use ROOM_BYTES of memory beyond what it has at
the start: a decoder that takes more raises MemoryError, which no target allows. Prints one line of JSON at the end.

Exits with another status than 0 when a call raises what its target does not allow, takes longer than MAX_CALL_S, or
takes more memory than it may; the input is then in the folder of artifacts.
"""

import argparse
import importlib
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Final

from tests.fuzz.interface import MAX_CALL_BYTES, MAX_CALL_S, MAX_INPUT_BYTES, Target
from tests.fuzz.mutations import inputs

ROOM_BYTES: Final = 256 << 20
"""The fuzzer's own corpus and tables of coverage are in it: one call is held to MAX_CALL_BYTES in the short run."""


def load(name: str) -> Target:
    """The target of that name. Raises KeyError."""
    target: Target = importlib.import_module("tests.fuzz.targets").table()[name]
    return target


def limit_memory() -> None:
    """Let the process take ROOM_BYTES more than it has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def guided(name: str, runs: int, seed: int, artifacts: Path) -> None:
    """Run with atheris, which ends the process."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["logstore", "scheduler"]):
        target = load(name)

    def once(data: bytes) -> None:
        try:
            target.call(data)
        except target.errors:
            pass

    with tempfile.TemporaryDirectory() as corpus:
        for number, each in enumerate(target.seeds):
            (Path(corpus) / f"{number:04d}").write_bytes(each[:MAX_INPUT_BYTES])
        options = [f"-runs={runs}", f"-seed={seed}", f"-max_len={MAX_INPUT_BYTES}", f"-timeout={MAX_CALL_S}"]
        options += ["-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={artifacts}/{name}-"]
        atheris.Setup([sys.argv[0], *options, corpus], once)
        limit_memory()
        atheris.Fuzz()


def plain(name: str, runs: int, seed: int) -> None:
    """Run with random changes of seeds."""
    target = load(name)
    limit_memory()
    started, executed, slowest_s = time.monotonic(), 0, 0.0
    for data in inputs(target.seeds, Random(seed), runs):
        before = time.monotonic()
        try:
            target.call(data)
        except target.errors:
            pass
        except BaseException:
            print(f"{name}: input {data.hex()}", file=sys.stderr)
            raise
        slowest_s = max(slowest_s, time.monotonic() - before)
        executed += 1
    seconds = time.monotonic() - started
    print(json.dumps({"executed": executed, "seconds": round(seconds, 1), "slowest_ms": round(slowest_s * 1000, 1)}))
    if slowest_s > MAX_CALL_S:
        sys.exit(f"{name}: a call took {slowest_s:.1f} s")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--artifacts", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    if given.plain:
        plain(given.target, given.runs, given.seed)
    else:
        guided(given.target, given.runs, given.seed, given.artifacts)


if __name__ == "__main__":
    main()
