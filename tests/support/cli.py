"""Runs the `cairn` command in this process: its real parser and commands, with what they print caught."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any, NamedTuple

from logstore.cli import main


class Finished(NamedTuple):
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as JSON; it must have succeeded, or have found damage."""
        assert self.status in (0, 1), self.err
        return json.loads(self.out)


def cairn(*words: str) -> Finished:
    """Run `cairn WORDS`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as exit_:  # argparse's way to refuse a command line, and to show help
            status = exit_.code if isinstance(exit_.code, int) else 1
    return Finished(status, out.getvalue(), err.getvalue())
