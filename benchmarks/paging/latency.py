"""What an operator feels of a checkpoint: operators of all kinds, each in its process, take turns (see `feeding`).

Invariant: one operator is fed at a time; the others wait for their turn.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from benchmarks.harness.report import Rows
from benchmarks.paging.feeding import Fed

WARM_EPOCHS = 12
"""Epochs in checkpoints of the first turn, which does not count."""


class Operator:
    """One fed operator's process."""

    def __init__(self, fed: Fed) -> None:
        self.fed = fed
        Path(fed.directory).mkdir(parents=True)
        command = [sys.executable, "-m", "benchmarks.paging.feeding"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._told = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)
        self.described: dict[str, Any] = {}
        self._told.write(json.dumps(asdict(fed)) + "\n")
        self._told.flush()

    def wait_ready(self) -> None:
        """Wait until the operator has its state."""
        self.described = self._answer()

    def turn(self, seed: int, epochs: int) -> dict[str, Any]:
        """Feed the operator through checkpoints, so that there are so many epochs in them."""
        return self._ask(f"{seed} {epochs}")

    def _ask(self, line: str) -> dict[str, Any]:
        self._told.write(line + "\n")
        self._told.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError(f"the operator of kind {self.fed.kind} ended with {self._process.wait()}")
        told: dict[str, Any] = json.loads(answer)
        return told

    def close(self) -> None:
        """End the process, and remove its checkpoints."""
        self._told.close()
        self._process.wait()
        self._answers.close()
        shutil.rmtree(self.fed.directory, ignore_errors=True)


def measure_latency(rows: Rows, feds: Sequence[Fed], rounds: int, seed: int) -> None:
    """A turn of each operator in each round, in an order that the seed shuffles; all have the same state."""
    random = np.random.default_rng(seed)
    operators: list[Operator] = []
    try:
        operators.extend(Operator(fed) for fed in feds)
        for operator in operators:
            operator.wait_ready()
        for number in range(-1, rounds):
            for at in random.permutation(len(operators)).tolist():
                operator = operators[at]
                turn_seed, epochs = int(random.integers(1 << 31)), operator.fed.epochs
                # The first turn loads compiled code.
                told = operator.turn(turn_seed, epochs if number >= 0 else min(epochs, WARM_EPOCHS))
                if number < 0:
                    continue
                label = {"kind": operator.fed.kind, "partitions": operator.fed.partitions, "round": number}
                size = {"bytes": operator.fed.state_bytes, "content_bytes": operator.described["content_bytes"]}
                names = ("quiet", "during", "all", "stops")
                figures = {name: [round(each * 1000, 3) for each in told[name]] for name in names}
                seconds = [round(each, 4) for each in told["checkpoint_s"]]
                rows.add(what="latency", **label, **size, **figures, checkpoint_s=seconds)
    finally:
        for operator in operators:
            operator.close()
