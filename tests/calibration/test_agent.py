"""Agents: who may ask, what they measure, what they refuse, and that they leave nothing behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from logstore.base.accepted_secrets import AcceptedSecrets
from logstore.base.addresses import Address
from logstore.base.events import ignore
from scheduler.calibration.agent import Agent, AgentLimits, AgentSettings, count
from scheduler.calibration.calibrator import CalibrationSettings, CalibrationStep, Calibrator
from scheduler.calibration.rules import calibrate
from scheduler.calibration.tasks import first_of, together
from scheduler.calibration.windows import ReceiveWindow, overlap, placed, together_in
from scheduler.calibration.wire import MAX_LINE_BYTES, CalibrationError, ask, proof
from scheduler.topology import racks
from tests.support.limits import PATIENCE_S

LOCAL = Address("127.0.0.1", 0)
TOKEN = b"secret"
NOTHING = int  # nothing waits to be read
SMALL = AgentLimits(connections=4, seconds=1, streams=4, writers=4, disk_bytes=1 << 20, disk_s=20)
LARGE = AgentLimits(disk_bytes=1 << 24)


@asynccontextmanager
async def running(
    directory: Path, *, token: bytes | AcceptedSecrets = TOKEN, limits: AgentLimits = SMALL
) -> AsyncIterator[Address]:
    """An agent on a port of loopback."""
    async with trio.open_nursery() as nursery:
        yield await nursery.start(Agent(AgentSettings(directory, token, limits)).serve, LOCAL)
        nursery.cancel_scope.cancel()


def files_in(directory: Path) -> list[Path]:
    """What lies there."""
    return list(directory.iterdir())


async def send(address: Address, *targets: Address, **how: object) -> list[Any]:
    """Let an agent send to others; what it says of each of them: a rate, or a window."""
    request = {"do": "send", "to": [str(target) for target in targets], **how}
    items = (await ask(address, TOKEN, request, PATIENCE_S))["bytes_s" if "bytes" in how else "windows"]
    assert isinstance(items, list)
    return items


async def problem_of(address: Address, request: dict[str, object]) -> str | None:
    """What the agent has against a request."""
    try:
        await ask(address, TOKEN, request, PATIENCE_S)
    except CalibrationError as error:
        return str(error)
    return None


# ---- what they measure


async def test_links(tmp_path: Path) -> None:
    """One agent sends to two others at once, with two streams each; each says how fast it came."""
    async with running(tmp_path) as one, running(tmp_path) as two, running(tmp_path) as three:
        began = trio.current_time()
        answers = await send(one, two, three, seconds=0.2, warm_up_s=0.05, streams=2)
        windows = [placed(answer, began, trio.current_time(), "one") for answer in answers]
    assert len(windows) == 2
    assert all(window.bytes_s > 0 for window in windows)
    assert all(began < window.begin < window.end < began + PATIENCE_S for window in windows)


async def test_writes_through_to_disks(tmp_path: Path) -> None:
    """What comes in is written and synced, and the file is gone; the room for it is free again."""
    async with running(tmp_path) as one, running(tmp_path) as two:
        for _ in range(3):  # more in all than there is room for at a time
            (rate,) = await send(one, two, bytes=1 << 19)
            assert rate > 0
        assert files_in(tmp_path) == []


async def test_disks(tmp_path: Path) -> None:
    """So many writers, so many rates, no file left."""
    async with running(tmp_path) as agent:
        done = await ask(agent, TOKEN, {"do": "write", "writers": 3, "bytes": 100_000}, PATIENCE_S)
        assert isinstance(done["bytes_s"], list)
        assert len(done["bytes_s"]) == 3
        assert min(done["bytes_s"]) > 0
        assert files_in(tmp_path) == []


async def test_a_whole_calibration(tmp_path: Path) -> None:
    """Three agents, all steps, and every capacity comes from a rate."""
    topology = racks([2, 1], 1)
    steps: list[CalibrationStep] = []
    async with (
        running(tmp_path, limits=LARGE) as a,
        running(tmp_path, limits=LARGE) as b,
        running(tmp_path, limits=LARGE) as c,
    ):
        addresses = dict(zip(topology.index, (a, b, c), strict=True))
        how = CalibrationSettings(seconds=0.1, warm_up_s=0.02, concurrency=(1, 2), file_bytes=50_000)
        measured = await Calibrator(topology, addresses, TOKEN, how, Random(1), steps.append).measure()
    assert [step.done for step in steps] == list(range(1, len(steps) + 1))
    assert {step.total for step in steps} == {len(steps)}
    assert set(measured.hosts) == set(topology.index)
    assert set(measured.links) == set(range(len(topology.links)))
    result = calibrate(topology, measured)
    assert all(server.link_bytes_s and server.disk_bytes_s and server.disk for server in result.topology.servers)
    assert all(link.bytes_s and link.capacity >= 1 for link in result.topology.links)
    assert files_in(tmp_path) == []


async def test_the_burst_at_the_start_is_left_out(autojump_clock: trio.testing.MockClock) -> None:
    """A shaped link lets some bytes through at once: after the warm-up, what counts is its rate. Virtual time."""
    near, far = trio.testing.memory_stream_one_way_pair()

    async def feed() -> None:
        await near.send_all(bytes(1_000_000))
        for _ in range(30):
            await trio.sleep(0.1)
            await near.send_all(bytes(1_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        assert (await count(far, 2.05, 0.5, NOTHING)).bytes_s == pytest.approx(10_000, rel=0.1)
        nursery.cancel_scope.cancel()


async def test_what_comes_late_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    """A machine that stands still until the time is over makes a rate low, not 0; who sends no more has none."""
    near, far = trio.testing.memory_stream_one_way_pair()

    async def feed() -> None:
        await near.send_all(bytes(1_000))
        await trio.sleep(4)
        await near.send_all(bytes(1_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        assert (await count(far, 2.0, 0.5, NOTHING)).bytes_s == pytest.approx(250)
        await near.send_all(bytes(1_000))
        await near.aclose()
        with pytest.raises(CalibrationError, match="the sender stopped"):
            await count(far, 2.0, 0.5, NOTHING)


async def test_a_backlog_is_not_counted(autojump_clock: trio.testing.MockClock) -> None:
    """What arrived before the window and is read in it, since the receiver stood still, makes no link faster."""
    near, far = trio.testing.memory_stream_one_way_pair()
    backlog = 0

    async def feed() -> None:
        nonlocal backlog
        await near.send_all(bytes(1_000))
        await trio.sleep(0.4)  # the last read of the warm-up: behind it, 90,000 bytes wait already
        backlog = 90_000
        await near.send_all(bytes(1_000))
        await trio.sleep(0.2)
        backlog = 0
        await near.send_all(bytes(90_000))
        for _ in range(30):
            await trio.sleep(0.1)
            await near.send_all(bytes(1_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        window = await count(far, 2.05, 0.5, lambda: backlog)
        assert window.bytes_s == pytest.approx(10_000, rel=0.2)
        nursery.cancel_scope.cancel()


def test_flows_that_do_not_overlap_are_not_added() -> None:
    """Two pairs of hosts take turns on a link of 8 MB/s: together they had 8 MB/s, not 16."""
    first, second = ReceiveWindow(8e6, 10.0, 11.0), ReceiveWindow(8e6, 11.0, 12.0)
    assert together_in([first, second]).bytes_s == 8e6
    assert overlap([first, second]) == 0
    assert overlap([first, first]) == 1
    assert overlap([ReceiveWindow(1, 0, 10), ReceiveWindow(1, 1, 10)]) == pytest.approx(0.9)


def test_a_window_is_never_placed_shorter_than_it_was() -> None:
    """An order and an answer that took their time only prolong it; nonsense is refused by name."""
    window = ReceiveWindow(100.0, 5.0, 7.0)
    there = placed(window.answer(4.0, 7.5), 103.9, 107.6, "agent")  # the other clock is 100 s ahead
    assert there == pytest.approx((100.0, 104.9, 107.1))
    assert there.bytes_s < window.bytes_s
    wrongs: tuple[dict[str, Any], ...] = (
        {"bytes": 0},
        {"bytes": True},
        {"lead_s": -1},
        {"tail_s": "x"},
        {"tail_s": 9.0},
        {"lead_s": 1e999},
        {"bytes": 10**400},
        {"tail_s": 10**400},
    )
    for wrong in wrongs:
        with pytest.raises(CalibrationError, match="agent: "):
            placed({"bytes": 1.0, "lead_s": 1.0, "tail_s": 1.0} | wrong, 0.0, 5.0, "agent")


async def test_a_link_that_stops_is_slow(autojump_clock: trio.testing.MockClock) -> None:
    """Silence counts as time; the measurement ends when it should."""
    near, far = trio.testing.memory_stream_one_way_pair()
    await near.send_all(bytes(1_000))
    assert (await count(far, 2.0, 0, NOTHING)).bytes_s == pytest.approx(500)
    assert trio.current_time() == pytest.approx(2.0)


# ---- who may ask


async def test_the_wrong_token(tmp_path: Path) -> None:
    """Nothing is done, and the message says what is needed; an agent with another token is not sent to either."""
    async with running(tmp_path) as agent, running(tmp_path, token=b"other") as stranger:
        for token in (b"", b"Secret", b"other"):
            with pytest.raises(CalibrationError, match=f"{agent}: wrong token.*--token-file"):
                await ask(agent, token, {"do": "hello"}, PATIENCE_S)
        with pytest.raises(CalibrationError, match=f"{stranger}: wrong token"):
            await send(agent, stranger, seconds=0.1, warm_up_s=0)


async def test_a_new_token_is_taken_beside_the_former(tmp_path: Path) -> None:
    """Of an agent whose file has changed. Towards other agents it uses the token with which it was asked: so who has
    the former one measures with agents of which some have the new one already.
    """
    path, new = tmp_path / "token", b"another secret"
    path.write_bytes(TOKEN)
    accepted = AcceptedSecrets(path, Path.read_bytes, setting="token-file")
    async with running(tmp_path, token=accepted) as changed, running(tmp_path) as unchanged:
        path.write_bytes(new)
        with pytest.raises(CalibrationError, match="wrong token"):
            await ask(changed, new, {"do": "hello"}, PATIENCE_S)
        await accepted._look(ignore)
        for token in (TOKEN, new):
            await ask(changed, token, {"do": "hello"}, PATIENCE_S)
        (rate,) = await send(changed, unchanged, bytes=1000)
        assert rate > 0
        request = {"do": "send", "to": [str(unchanged)], "bytes": 1000}
        with pytest.raises(CalibrationError, match=f"{unchanged}: wrong token"):
            await ask(changed, new, request, PATIENCE_S)


async def test_a_calibrator_sends_the_token_that_it_has_by_then(tmp_path: Path) -> None:
    """At each request it asks for its token anew."""
    topology, left = racks([2], 1), [TOKEN] * 4

    async with running(tmp_path, limits=LARGE) as a, running(tmp_path, limits=LARGE) as b:
        addresses = dict(zip(topology.index, (a, b), strict=True))
        how = CalibrationSettings(seconds=0.1, warm_up_s=0.02, concurrency=(1, 2), file_bytes=50_000)
        calibrator = Calibrator(
            topology, addresses, lambda: left.pop() if left else b"another", how, Random(1), lambda step: None
        )
        with pytest.raises(CalibrationError, match="wrong token"):
            await calibrator.measure()
    assert not left


async def test_a_proof_fits_one_request(tmp_path: Path) -> None:
    """Heard on the network, it opens nothing: neither for another request nor on another connection."""
    request = json.dumps({"do": "hello"})

    async def try_with(nonce: str | None, text: str) -> str:
        async with await trio.open_tcp_stream(*agent) as stream:
            own = json.loads(await stream.receive_some(1000))["nonce"]
            line = {"request": text, "proof": proof(TOKEN, nonce or own, request)}
            await stream.send_all(json.dumps(line).encode() + b"\n")
            nonces.append(own)
            return (await stream.receive_some(1000)).decode()

    nonces: list[str] = []
    async with running(tmp_path) as agent:
        assert "free_bytes" in await try_with(None, request)
        assert "wrong token" in await try_with(nonces[0], request)
        assert "wrong token" in await try_with(None, json.dumps({"do": "write", "writers": 1, "bytes": 1}))


# ---- what they refuse


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"do": "dance"}, "do='dance': must be one of hello, take, send, write"),
        ({}, "do=None"),
        ({"do": ["send"]}, "do="),
        ({"do": "write", "writers": 5, "bytes": 1}, "writers=5: must be a whole number from 1 to 4"),
        ({"do": "write", "writers": 1, "bytes": 1 << 30}, "bytes=1073741824"),
        ({"do": "write", "writers": 4, "bytes": 1 << 20}, "4194304 bytes on disk"),
        ({"do": "write", "writers": True, "bytes": "x"}, "writers=True"),
        ({"do": "take", "seconds": 100}, "seconds=100: must be a number from 0.01 to 1"),
        ({"do": "take", "seconds": 1, "warm_up_s": 1}, "warm_up_s=1"),
        ({"do": "send", "to": [], "seconds": 1}, "to=[]"),
        ({"do": "send", "to": ["127.0.0.1:1"] * 5, "seconds": 1}, "to: 5 entries; at most 4"),
        ({"do": "send", "to": ["127.0.0.1:1"] * 3, "streams": 2, "seconds": 1, "warm_up_s": 0}, "at most 4 in all"),
        ({"do": "send", "to": ["127.0.0.1:99999"], "seconds": 1}, "'127.0.0.1:99999' is not an address"),
        (
            {"do": "send", "to": ["\ud800:1"], "seconds": 0.1, "warm_up_s": 0},
            "to[0]='\\ud800:1': must not have control",
        ),
        ({"do": "send", "to": ["a" * 300 + ":1"], "seconds": 0.1, "warm_up_s": 0}, "no agent there"),
        ({"do": "send", "to": ["a\0b:1"], "seconds": 0.1, "warm_up_s": 0}, "to[0]='a\\x00b:1': must not have control"),
        ({"do": "send", "to": ["127.0.0.1:1"], "seconds": 0.1, "warm_up_s": 0}, "127.0.0.1:1: no agent there"),
    ],
)
async def test_bad_requests(tmp_path: Path, request_: dict[str, object], message: str) -> None:
    """The error names the value; the agent lives on, and all its room with it."""
    async with running(tmp_path) as agent:
        with pytest.raises(CalibrationError) as caught:
            await ask(agent, TOKEN, request_, PATIENCE_S)
        assert message in str(caught.value)
        await ask(agent, TOKEN, {"do": "write", "writers": 4, "bytes": 1 << 18}, PATIENCE_S)


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b'{"request": 1, "proof": 2}\n', b"\xff\n", b"[" * 5000 + b"\n",
     b'{"request": "\\ud800", "proof": "\\ud800"}\n',
     b"x" * (4 * MAX_LINE_BYTES)],
)  # fmt: skip
async def test_strangers(tmp_path: Path, data: bytes) -> None:
    """Whatever they send: an error or a closed connection, in bounded memory, and others are served."""
    async with running(tmp_path) as agent:
        async with await trio.open_tcp_stream(*agent) as stream:
            await stream.send_all(data)
            with trio.fail_after(PATIENCE_S):
                said = b""
                try:
                    while part := await stream.receive_some(1000):
                        said += part
                        if b"error" in said:
                            break
                except trio.BrokenResourceError:
                    pass
        assert b"nonce" in said
        await ask(agent, TOKEN, {"do": "hello"}, PATIENCE_S)


async def test_bytes_nobody_asked_for(tmp_path: Path) -> None:
    """What comes right behind a request is refused, and harms nobody else."""
    request = json.dumps({"do": "take", "bytes": 10})
    async with running(tmp_path) as agent:
        async with await trio.open_tcp_stream(*agent) as stream:
            nonce = json.loads(await stream.receive_some(1000))["nonce"]
            line = {"request": request, "proof": proof(TOKEN, nonce, request)}
            await stream.send_all(json.dumps(line).encode() + b"\n" + bytes(10))
            said = b""
            with trio.fail_after(PATIENCE_S):
                while b"before they were asked for" not in said:
                    part = await stream.receive_some(1000)
                    assert part, said
                    said += part
        assert await problem_of(agent, {"do": "hello"}) is None


async def test_silent_and_many_connections(tmp_path: Path) -> None:
    """More than so many connections are told so at once; silence has an end."""
    async with running(tmp_path) as agent:
        silent = [await trio.open_tcp_stream(*agent) for _ in range(SMALL.connections)]
        for stream in silent:
            assert b"nonce" in await stream.receive_some(1000)
        with pytest.raises(CalibrationError, match="busy: 4 connections"):
            await ask(agent, TOKEN, {"do": "hello"}, PATIENCE_S)
        with trio.fail_after(PATIENCE_S):
            for stream in silent:
                await stream.aclose()
            while (problem := await problem_of(agent, {"do": "hello"})) is not None:
                assert "busy" in problem
    async with running(tmp_path, limits=replace(SMALL, handshake_s=0.2)) as agent:
        with trio.fail_after(PATIENCE_S):
            async with await trio.open_tcp_stream(*agent) as stream:
                said = b""
                while part := await stream.receive_some(1000):
                    said += part
        assert b"took too long" in said


async def test_a_calibrator_that_goes_away_stops_its_work(tmp_path: Path) -> None:
    """Cancelled in the middle of a long job, the agent is free again at once: room, connections, files."""
    limits = AgentLimits(connections=4, seconds=60, disk_bytes=1 << 20)
    async with running(tmp_path, limits=limits) as one, running(tmp_path, limits=limits) as two:
        with trio.move_on_after(0.3):
            await send(one, two, seconds=60, warm_up_s=0)
        with trio.move_on_after(0.2):
            await ask(one, TOKEN, {"do": "take", "bytes": 1 << 20}, PATIENCE_S)
        with trio.fail_after(PATIENCE_S):
            while (problem := await problem_of(one, {"do": "write", "writers": 1, "bytes": 1 << 20})) is not None:
                assert "in use" in problem


async def test_no_agent_and_no_answer(tmp_path: Path) -> None:
    """Nobody there, somebody else there, somebody silent: each has its message, with the address."""
    with pytest.raises(CalibrationError, match=r"no agent there .* start: cairn topology agent"):
        await ask(Address("127.0.0.1", 1), TOKEN, {"do": "hello"}, PATIENCE_S)

    async def other(stream: trio.SocketStream) -> None:
        await stream.send_all(b"SSH-2.0-OpenSSH_9.2\r\n")

    async def silent(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        answers = ((other, "is this an agent?", PATIENCE_S), (silent, "no answer within 0.2 s", 0.2))
        for handler, message, limit_s in answers:
            listeners = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
            address = Address(*listeners[0].socket.getsockname())
            with pytest.raises(CalibrationError, match=f"{address}: .*{message}".replace("?", r"\?")):
                await ask(address, TOKEN, {"do": "hello"}, limit_s)
        nursery.cancel_scope.cancel()


async def test_all_silent_agents_are_counted(tmp_path: Path) -> None:
    """The calibrator asks all before it measures, and says how many do not answer; an address may be missing."""
    topology = racks([2, 2], 1)
    nobody = Address("127.0.0.1", 1)
    calibrator = Calibrator(
        topology, dict.fromkeys(topology.index, nobody), b"", CalibrationSettings(), Random(1), print
    )
    with pytest.raises(CalibrationError, match=r"agent of 'r\dh\d': .*no agent there.*and 3 more agents"):
        await calibrator.measure()
    with pytest.raises(CalibrationError, match="server 'r1h1' has no address"):
        await Calibrator(topology, {}, b"", CalibrationSettings(), Random(1), print).measure()


# ---- tasks


async def test_errors_come_out_as_they_are() -> None:
    """Not in groups; and no job outlives the others."""
    ended = []

    async def forever() -> int:
        try:
            return await trio.sleep_forever()
        finally:
            ended.append(1)

    async def fail() -> int:
        raise CalibrationError("no")

    async def value(number: int) -> int:
        return number

    assert await together([partial(value, 1), partial(value, 2)]) == [1, 2]
    for run in (partial(together, [forever, fail]), partial(first_of, forever, fail)):
        with pytest.raises(CalibrationError, match="no"):
            await run()
    assert await first_of(forever, partial(value, 3)) == 3
    assert ended == [1, 1, 1]


async def test_nonsense_from_those_who_have_the_token(tmp_path: Path) -> None:
    """Requests of random values: each is answered or refused, and the agent is there afterwards. Prints its seed."""
    seed = 20260
    print(f"seed {seed}")
    random = Random(seed)
    odd: list[object] = [
        0,
        -1,
        1,
        2.5,
        float("inf"),
        float("nan"),
        10**30,
        True,
        None,
        "",
        "127.0.0.1:1",
        "[",
        [],
        ["::1"],
        [1],
        {},
    ]
    async with running(tmp_path) as agent:
        for _ in range(150):
            request: dict[str, object] = {"do": random.choice(["take", "send", "write", "hello"])}
            names = ("to", "seconds", "warm_up_s", "streams", "bytes", "writers")
            request |= {name: random.choice(odd) for name in names if random.random() < 0.6}
            with trio.move_on_after(0.1):  # a `take` that is right waits for bytes
                await problem_of(agent, request)
        with trio.fail_after(PATIENCE_S):
            while (problem := await problem_of(agent, {"do": "hello"})) is not None:
                assert "busy" in problem  # with what nobody waits for any more: that is over soon
