"""Where this host is, and what its disk takes: from its settings, a file or a script of its operator's, read again when
they change.

What a file may be: a description of the network (`cairn topology`), the output of `hdfs dfsadmin -printTopology`, or of
`kubectl get nodes -o json`; a script is Hadoop's rack script. This host is looked up by its name, the address that
other hosts are told, and its machine's name.

Invariants:
* Settings of this host itself come before the file, and the file before the script. A host whose rack is set need not
  be in the file.
* At the start, what cannot be read prevents it. Later it changes nothing, and is reported once for each error.
* A file is read when its time or size has changed, and at SIGHUP; a script runs at the start and at SIGHUP.
"""

import json
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

import trio

from logstore.base.errors import CairnError
from logstore.base.events import Report
from logstore.base.metadata.errors import InvalidMetadataCall
from logstore.base.metadata.schema import StoredMember, encode
from logstore.base.packages import how_to_get
from logstore.base.racks import (
    HostPlace,
    RacksError,
    is_node_list,
    is_topology_of_hadoop,
    read_node_list,
    read_script_output,
    read_topology_of_hadoop,
)
from logstore.cluster.settings import PlaceSettings
from logstore.errors import ConfigError
from logstore.events import PLACE_CHANGED, PLACE_UNREADABLE

CHECK_S: Final = 10.0
SCRIPT_S: Final = 30.0
"""For a script to end."""
MAX_FILE_BYTES: Final = 64 << 20
"""The nodes of a large Kubernetes are some 20 KB each."""
DESCRIPTIONS: Final = "scheduler.topology.host_places"
"""Loaded for a description alone: it needs the extra `scheduler`."""


class OwnPlace:
    """See the module. `names`: by which this host may be found, beside its machine's."""

    def __init__(self, settings: PlaceSettings, names: tuple[str, ...], report: Report) -> None:
        self._settings = settings
        self._names = names
        self._report = report
        self._wanted = trio.Event()
        self._seen: tuple[int, int] | None = None
        self._problem = ""
        self.place = HostPlace()

    def read(self) -> HostPlace:
        """Read it now; blocks. Raises ConfigError."""
        rack, disk_rate, topology, script = self._settings
        found = HostPlace()
        try:
            if topology:
                self._seen = _stamp(Path(topology))
                # Here, on a thread: a resolver that hangs must not hold up the event loop.
                names = dict.fromkeys((*self._names, socket.gethostname(), socket.getfqdn()))
                found = _from_file(Path(topology), tuple(names), needs_place=not rack)
            elif script:
                found = HostPlace(_from_script(script, self._names[0]))
            if rack:
                found = HostPlace(rack, found.disk_rate, found.link_rates if rack == found.rack else ())
            found = found._replace(disk_rate=disk_rate or found.disk_rate)
            _check(found, topology or script)
        except (CairnError, OSError, ArithmeticError, ValueError) as error:  # the last two: of numbers without bounds
            raise ConfigError(f"topology of this host: {error}") from error
        self.place = found
        return self.place

    def look_again(self) -> None:
        """Read it again soon, whether or not the file has changed."""
        self._wanted.set()

    async def follow(self, announce: Callable[[HostPlace], Awaitable[None]]) -> None:
        """Announce each new place, until cancelled."""
        told = self.place
        while True:
            with trio.move_on_after(CHECK_S):
                await self._wanted.wait()
            is_wanted, self._wanted = self._wanted.is_set(), trio.Event()
            try:
                if is_wanted or await trio.to_thread.run_sync(self._has_changed, abandon_on_cancel=True):
                    await trio.to_thread.run_sync(self.read, abandon_on_cancel=True)
                    self._problem = ""
            except ConfigError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    self._report(PLACE_UNREADABLE, error=error, effect="the previously known place stays in use")
            if self.place != told:
                told = self.place
                self._report(PLACE_CHANGED, rack=told.rack, disk_rate=told.disk_rate)
                await announce(told)

    def _has_changed(self) -> bool:
        try:
            return bool(self._settings.topology) and _stamp(Path(self._settings.topology)) != self._seen
        except OSError:
            return True  # reading it says what is wrong


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _check(place: HostPlace, where: str) -> None:
    """Raises RacksError if no entry of a host holds the place: a host that told it would end."""
    rack, disk_rate, link_rates = place
    try:
        encode(StoredMember(disk="-", start="-", node_id=0, link="-", rack=rack, addresses={}, disk_rate=disk_rate,
                      link_rates=link_rates))  # fmt: skip
    except InvalidMetadataCall as error:
        raise RacksError(f"{where}: no place of a host: {error}; use shorter names, or give --rack") from error


def _from_file(path: Path, names: tuple[str, ...], *, needs_place: bool) -> HostPlace:
    """`needs_place`: a file must name the host. Raises RacksError, ConfigError, TopologyError, OSError."""
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise RacksError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB: no topology")
    text = content.decode(errors="replace")
    known: Mapping[str, HostPlace]
    if is_topology_of_hadoop(text):
        known = read_topology_of_hadoop(text, str(path)).places()
    elif path.suffix.lower() == ".json" and is_node_list(_json(text)):
        known = read_node_list(text, str(path)).places()
    else:
        known = _described(path)
    found = next((known[name] for name in names if name in known), None)
    if found is None and needs_place:
        raise RacksError(
            f"{path}: names none of {', '.join(map(repr, names))}, by which this host is known: add one of them there, "
            "or give --rack"
        )
    return found or HostPlace()


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None  # the reader of descriptions says where it is wrong


def _described(path: Path) -> Mapping[str, HostPlace]:
    try:
        room = import_module(DESCRIPTIONS)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path}: a description of a network needs {how_to_get(error.name, 'scheduler')}") from error
    found: Mapping[str, HostPlace] = room.places(path)
    return found


def _from_script(script: str, name: str) -> str:
    """What Hadoop's rack script says of this host. Raises RacksError."""
    command = f"topology-script: {script} {name}"
    mend = f"correct the script (it prints one path, such as /rack1, for {name}), or give --rack instead"
    try:
        done = subprocess.run(  # noqa: S603  the operator names the program
            [script, name], capture_output=True, text=True, timeout=SCRIPT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RacksError(f"{command}: has not ended after {SCRIPT_S:g} s; {mend}") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise RacksError(f"{command}: cannot be run ({why}): name an executable program, or give --rack") from error
    if done.returncode:
        said = done.stderr.strip()[-200:] or "and it has said nothing"
        raise RacksError(f"{command}: exit status {done.returncode}: {said}; {mend}")
    try:
        return read_script_output(done.stdout, [name], command).hosts[0].path
    except RacksError as error:
        raise RacksError(f"{error}; {mend}") from error
