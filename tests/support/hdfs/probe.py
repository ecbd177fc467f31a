"""Looking at a running HDFS from outside: is it ready, and who is alive.

Invariants:
* Every call has a time limit; what does not answer in time is "not yet", and no error until the caller's limit is over.
"""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from threading import Event
from typing import NamedTuple

from scheduler.hdfs.errors import HdfsError
from tests.support.hdfs.launch import Daemon

CALL_S = 60.0
POLL_S = 0.1
_STATE = "Hadoop:service=NameNode,name=FSNamesystemState"
_LIVE = "Hadoop:service=NameNode,name=NameNodeInfo"


class State(NamedTuple):
    """A NameNode's own view: live DataNodes' addresses, where each takes data, and whether it is in safe mode.

    `live`: IP:port by address, of those that said how much room they have: until then, which is a moment after they are
    registered, they count as full. One that was killed stays there until the NameNode misses it, for minutes.
    """

    live: dict[str, str]
    dead: tuple[str, ...]
    safe_mode: bool
    under_replicated: int


def state(http_url: str) -> State | None:
    """What the NameNode at `http_url` says of itself; None if it does not answer (yet)."""
    info, system = _bean(http_url, _LIVE), _bean(http_url, _STATE)
    if info is None or system is None:
        return None
    try:
        taking = [entry["xferaddr"] for entry in json.loads(str(info["LiveNodes"])).values() if entry["capacity"]]
        live = {where.rpartition(":")[0]: where for where in taking}
        dead = [entry["xferaddr"].rpartition(":")[0] for entry in json.loads(str(info["DeadNodes"])).values()]
        return State(live, tuple(dead), bool(info["Safemode"]), int(str(system["UnderReplicatedBlocks"])))
    except KeyError:  # it starts, and cannot say everything yet
        return None


def wait_state(
    http_url: str, wanted: Callable[[State], bool], daemons: Sequence[Daemon], timeout_s: float, what: str
) -> State:
    """Wait until the NameNode's state is as wanted. Raises HdfsError with log tails if a daemon ends or time is up."""
    deadline = time.monotonic() + timeout_s
    seen = None
    while True:
        seen = state(http_url) or seen
        if seen is not None and wanted(seen):
            return seen
        ended = [daemon for daemon in daemons if not daemon.alive]
        if ended or time.monotonic() > deadline:
            why = f"{ended[0].name} ended" if ended else f"not within {timeout_s:.0f} s; last seen: {seen}"
            shown = "\n".join(f"--- {daemon.name}\n{daemon.tail()}" for daemon in (ended or daemons)[:3])
            raise HdfsError(f"HDFS: {what}: {why}\n{shown}")
        Event().wait(POLL_S)


def _bean(http_url: str, name: str) -> dict[str, object] | None:
    try:
        with urllib.request.urlopen(f"{http_url}/jmx?qry={name}", timeout=CALL_S) as answer:
            beans = json.load(answer)["beans"]
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return beans[0] if beans else None
