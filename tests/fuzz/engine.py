"""Runs fuzz targets, each in a process of its own: `python -m tests.fuzz.engine --runs N --seed S TARGET...`.

With atheris, inputs follow what they reach: `logstore` and `scheduler` are instrumented when they are loaded, once,
and each target runs in a copy of that process. A copy may use ROOM_BYTES of memory beyond what it has at its start: a
decoder that takes more raises MemoryError, which no target allows. With `--plain`, which needs no atheris, seeds are
changed at random. Prints a line of JSON for each target; `--results FILE` keeps them, with machine and versions.

A target has failed when a call raised what the target does not allow, took longer than MAX_CALL_S, or more memory than
it may; its input is then in the folder of artifacts, and the status of this program is 1.
"""

import argparse
import importlib
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.harness import report
from tests.fuzz.interface import MAX_CALL_S, MAX_INPUT_BYTES, Target
from tests.fuzz.mutations import inputs

ROOM_BYTES: Final = 256 << 20
"""The fuzzer's own corpus and tables are in it; the short run holds a single call to less."""
KEPT: Final = ("target", "seeds", "executed", "inputs_kept", "seconds")
_EXECUTED: Final = re.compile(r"number_of_executed_units: +(\d+)")
_REACHED: Final = re.compile(r"new_units_added: +(\d+)")


def table() -> Mapping[str, Target]:
    """All targets. Loaded late, so that what they load is instrumented."""
    found: Mapping[str, Target] = importlib.import_module("tests.fuzz.targets").table()
    return found


def limit_memory() -> None:
    """Let the process take ROOM_BYTES more than it has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def guided(atheris: Any, target: Target, runs: int, seed: int, artifacts: Path) -> None:
    """Fuzz one target; atheris ends the process."""

    def once(data: bytes) -> None:
        with suppress(*target.errors):
            target.call(data)

    corpus = Path(tempfile.mkdtemp(prefix="corpus-", dir=artifacts))
    for number, each in enumerate(target.seeds):
        (corpus / f"{number:04d}").write_bytes(each[:MAX_INPUT_BYTES])
    options = [f"-runs={runs}", f"-seed={seed}", f"-max_len={MAX_INPUT_BYTES}", f"-timeout={MAX_CALL_S}"]
    options += ["-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={artifacts}/{target.name}-"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], once)
    limit_memory()
    atheris.Fuzz()


def plain(target: Target, runs: int, seed: int) -> None:
    """Run one target with random changes of its seeds."""
    limit_memory()
    executed = 0
    for data in inputs(target.seeds, Random(seed), runs):
        before = time.monotonic()
        try:
            target.call(data)
        except target.errors:
            pass
        except BaseException:
            print(f"{target.name}: input {data.hex()}", file=sys.stderr, flush=True)
            raise
        if time.monotonic() - before > MAX_CALL_S:
            sys.exit(f"{target.name}: more than {MAX_CALL_S} s for input {data.hex()}")
        executed += 1
    print(f"number_of_executed_units: {executed}", file=sys.stderr, flush=True)


def apart(target: Target, runs: int, seed: int, artifacts: Path, atheris: Any) -> dict[str, Any]:
    """Run one target in a copy of this process; what came of it. `atheris`: None: without it."""
    log, started = artifacts / f"{target.name}.log", time.monotonic()
    process = os.fork()
    if not process:
        with log.open("wb") as output:
            os.dup2(output.fileno(), 2)
            os.dup2(output.fileno(), 1)
        status = 1
        try:
            if atheris is None:
                plain(target, runs, seed)
            else:
                guided(atheris, target, runs, seed, artifacts)
            status = 0
        except BaseException:  # noqa: BLE001  this process is a copy, and must end here whatever comes
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    text = log.read_text(encoding="utf-8", errors="replace")
    executed, reached = (int(found[1]) if (found := each.search(text)) else 0 for each in (_EXECUTED, _REACHED))
    seconds = round(time.monotonic() - started, 1)
    result = {"target": target.name, "seeds": len(target.seeds), "executed": executed, "inputs_kept": reached}
    return {**result, "seconds": seconds, "failed": status != 0 or not executed, "log": str(log) if status else ""}


def run(names: Sequence[str], runs: int, seed: int, artifacts: Path, *, is_plain: bool) -> list[dict[str, Any]]:
    """Run targets one after the other, all if none is named; what came of each."""
    artifacts.mkdir(parents=True, exist_ok=True)
    atheris = None
    if is_plain:
        targets = table()
    else:
        atheris = importlib.import_module("atheris")
        with atheris.instrument_imports(include=["logstore", "scheduler"]):
            targets = table()
    results = []
    for name in names or targets:
        results.append(apart(targets[name], runs, seed, artifacts, atheris))
        print(json.dumps(results[-1]), flush=True)
    return results


def keep(results: Sequence[Mapping[str, Any]], seed: int, path: Path, *, is_plain: bool) -> None:
    """Write what came of all targets, with the machine and the versions."""
    content = {
        "machine": report.machine(Path.cwd()),
        "python": sys.version.split()[0],
        "atheris": "" if is_plain else version("atheris"),
        "seed": seed,
        "executed": sum(each["executed"] for each in results),
        "failed": [each["target"] for each in results if each["failed"]],
        "targets": [{name: each[name] for name in KEPT} for each in results],
    }
    report.write_json(path, content)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--artifacts", type=Path, required=True)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    results = run(given.targets, given.runs, given.seed, given.artifacts, is_plain=given.plain)
    if given.results is not None:
        keep(results, given.seed, given.results, is_plain=given.plain)
    if any(each["failed"] for each in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
