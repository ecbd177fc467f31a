"""A process that works on shared state and says where it is, so that a test can stop or kill it there.

It reads one line of JSON from its input for each thing to do, does it in a child of its own (starting Python anew for
each would take most of a test), and writes one line for the child's process id and for each step. With `hold`, the
child waits in that step for a line from its input.
"""

import json
import os
from collections.abc import Callable
from io import FileIO
from tempfile import TemporaryDirectory
from typing import Any

from spe_adapter.state.files import StateEnvironment
from spe_adapter.state.segment import Tag
from spe_adapter.state.versions import StateDirectory
from tests.state.conftest import OPERATOR, QUERY, SCHEMA, History, windows_of
from tests.state.history import big_history, long_history

LIMIT = 1024 * 1024 * 1024


def say(what: str) -> None:
    """One line, at once."""
    os.write(1, (what + "\n").encode())


def wait() -> None:
    """Until a line comes in."""
    while os.read(0, 1) not in (b"\n", b""):
        pass


def history_of(order: dict[str, Any]) -> History:
    """The history that an order speaks of."""
    return long_history(order["windows"], order["long"]) if "long" in order else big_history(order["windows"])


def work(order: dict[str, Any], say: Callable[[str], None] = say) -> None:
    """Open a version and say what was found in it; publish the next one if told to."""
    hold = order.get("hold")

    def step(what: str) -> None:
        say(what)
        if what == hold:
            wait()

    history = history_of(order)
    steps = history.steps
    version = order["version"]
    wanted: Tag | None = None if version < 0 else steps[version].tag
    directory = StateDirectory(
        order["root"], QUERY, LIMIT, environment=StateEnvironment(step=step), lock_limit_s=order["limit_s"]
    )
    with directory.open(0, SCHEMA, OPERATOR, wanted, history.loader(wanted)) as state:
        step(f"opened {state.how}")
        if order.get("publish"):
            told = steps[version + 1]
            state.publish(told.tag, told.changes(), told.mark())
        step("right" if windows_of(state.base) == history.at(wanted) else "wrong")


def main() -> None:
    """Do what the input says, one thing after the other, each in a child."""
    with TemporaryDirectory() as root:  # compiled loops are loaded here, not in each child
        warm_up = {"root": root, "windows": 9, "limit_s": 1}
        work(warm_up | {"version": 0, "publish": True}, lambda what: None)
        work(warm_up | {"version": 1}, lambda what: None)
    input_lines = FileIO(0, closefd=False)  # unbuffered: children read it too
    for line in iter(input_lines.readline, b""):
        order = json.loads(line)
        history_of(order)  # made once, not in each child
        child = os.fork()
        if not child:
            try:
                say(f"child {os.getpid()}")
                work(order)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        say("over")


if __name__ == "__main__":
    main()
