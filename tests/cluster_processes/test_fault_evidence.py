"""What shows a test that its fault was one: states of processes, bytes that met a cut, a file system without room."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from logstore.testing.disks import Disk
from logstore.testing.ports import free_ports
from logstore.testing.processes import LocalProcess
from logstore.testing.relay import Relay, RelayDirection, RelayRoute
from tests.support.limits import PATIENCE_S

ENDLESS = [sys.executable, "-c", "import sys; print('here', flush=True); sys.stdin.read()"]


class Program(LocalProcess):
    """A process of the test's own."""

    def start(self, command: list[str]) -> None:
        """Start it, and wait until it runs."""
        process = self._launch(command)
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"

    def wait(self) -> None:
        """Wait until it has ended by itself."""
        assert self._process is not None
        self._process.wait(PATIENCE_S)


def test_a_process_that_ends_by_itself_is_told_from_one_that_was_ended(tmp_path: Path) -> None:
    """Its status stays known until it is ended or started again; a kill says what the process ended with."""
    program = Program("p", tmp_path / "p.log")
    assert (program.died, program.kill()) == (None, None)
    program.start([sys.executable, "-c", "print('here', flush=True); raise SystemExit(3)"])
    program.wait()
    assert (program.is_running, program.died, program.died) == (False, 3, 3)
    assert program.kill() == 3  # it was not killed by this
    assert program.died is None


def test_a_killed_process_has_the_status_of_its_signal(tmp_path: Path) -> None:
    """And has not died by itself."""
    program = Program("p", tmp_path / "p.log")
    program.start([*ENDLESS[:2], "import time; print('here', flush=True); time.sleep(3600)"])
    assert program.died is None
    assert program.kill() == -signal.SIGKILL
    assert (program.is_running, program.died) == (False, None)


def test_the_kernel_says_that_a_process_is_paused(tmp_path: Path) -> None:
    """From SIGSTOP to SIGCONT, whoever sent them."""
    program = Program("p", tmp_path / "p.log")
    program.start([*ENDLESS[:2], "import time; print('here', flush=True); time.sleep(3600)"])
    try:
        states = [program.is_paused]
        program.pause()
        states.append(program.is_paused)
        program.go_on()
        os.waitid(os.P_PID, program.pid, os.WCONTINUED)
        states.append(program.is_paused)
        assert states == [False, True, False]
    finally:
        program.kill()


def test_bytes_that_meet_a_fault_are_counted() -> None:
    """From the beginning of the last fault on, in its direction; what passes without a fault is not counted."""
    relay = Relay()
    way = relay.direction("a", "b")
    ask = '{"source": "a", "target": "b", "ask": true}'
    way.take(b"before")
    assert relay.command(ask) == "0"
    assert relay.command('{"source": "a", "target": "b", "cut": true, "delay_s": 0, "bytes_s": 0}') == "done"
    way.take(b"held")
    relay.direction("b", "a").take(b"passes")
    assert relay.command(ask) == "4"
    relay.command('{"source": "a", "target": "b", "cut": false, "delay_s": 0, "bytes_s": 0}')
    way.take(b"after")
    assert relay.command(ask) == "4"
    relay.command('{"source": "a", "target": "b", "cut": false, "delay_s": 0.1, "bytes_s": 0}')
    way.take(b"late")
    way.take(b"r")
    assert relay.command(ask) == "5"


async def test_a_cut_direction_holds_until_it_is_open(autojump_clock: trio.testing.MockClock) -> None:
    """A cut that is set again goes on; the end of it lets everybody go."""
    way = RelayDirection()
    way.set(cut=True, delay_s=0.0, bytes_s=0.0)
    way.set(cut=True, delay_s=0.0, bytes_s=0.0)
    with trio.move_on_after(10) as scope:
        await way.wait_open()
    assert scope.cancelled_caught
    way.set(cut=False, delay_s=0.0, bytes_s=0.0)
    with trio.fail_after(10):
        await way.wait_open()


def test_a_disk_is_filled_and_freed(tmp_path: Path) -> None:
    """Nothing can be written to it but what is freed; all of it is there again afterwards."""
    disk = Disk(tmp_path / "data", size_mb=8)
    if not disk.mount():
        pytest.skip("no right to mount a small file system")
    try:
        assert disk.fill() > 1 << 20
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "more").write_bytes(bytes(1 << 16))
        assert disk.fill() < 1 << 16
        disk.empty()
        disk.empty()
        (disk.path / "more").write_bytes(bytes(1 << 20))
    finally:
        disk.unmount()
    assert not (disk.path / "more").exists()


async def test_a_relay_refuses_for_a_process_that_is_gone() -> None:
    """The first connection finds out, and further ones are refused, until somebody listens at the target again; then
    bytes pass.
    """
    (near, far) = free_ports(2)

    async def answer(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):  # of a look of the relay
            async for piece in stream:
                await stream.send_all(piece)

    async def ask() -> bytes | None:
        """What comes back of a byte; None: the connection is refused."""
        with trio.socket.socket() as sock:
            try:
                await sock.connect(("127.0.0.1", near))
            except ConnectionRefusedError:
                return None
            except ConnectionResetError:
                return b""  # the relay found out at this moment
            try:
                await sock.send(b"x")
                return bytes(await sock.recv(1))
            except OSError:
                return b""

    async def until(wanted: bytes | None) -> None:
        with trio.fail_after(PATIENCE_S):
            while await ask() != wanted:
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        relay = Relay()
        await nursery.start(relay.listen, RelayRoute(near, "b", far, "a"))
        await until(None)
        listeners = await trio.open_tcp_listeners(far, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, listeners)
        await until(b"x")
        nursery.cancel_scope.cancel()
