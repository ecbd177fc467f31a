"""Every step of the table of a connection's life is taken, and every other step is refused."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest
import trio
import trio.testing

from logstore.base.connected_socket import ConnectedSocket
from logstore.kafka import connection as connections
from logstore.kafka.answers import AnswerSlot
from logstore.kafka.api_types import BrokerSettings, Caller
from logstore.kafka.connection import TRANSITIONS, ClientConnection, ConnectionEvent, ConnectionState
from tests.kafka.front_driver import Server, batch, produce_frame, serving
from tests.support.limits import PATIENCE_S
from tests.support.steps import RecordedSteps

NONSENSE = struct.pack(">i", -1)
"""The size of a frame that no request has."""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> RecordedSteps[ConnectionState, ConnectionEvent]:
    """The table that the code runs in this test."""
    recording = RecordedSteps(TRANSITIONS)
    monkeypatch.setattr(connections, "TRANSITIONS", recording)
    return recording


def connected(server: Server) -> tuple[ClientConnection, socket.socket]:
    """A connection that does not run yet, and its client's socket."""
    ours, theirs = socket.socketpair()
    kafka = server.kafka
    connection = ClientConnection(
        ConnectedSocket(ours),
        kafka._broker,
        kafka._handlers,
        Caller("", "127.0.0.1", "127.0.0.1", 9092),
        kafka._arrivals,
        kafka._answers,
        lambda give_way: None,
    )
    return connection, theirs


@asynccontextmanager
async def a_connection(
    server: Server, *, is_pending: bool = False
) -> AsyncIterator[tuple[ClientConnection, socket.socket]]:
    """A connection that runs; it has ended at the end of the block. `is_pending`: an earlier request has no answer."""
    connection, client = connected(server)
    with client, trio.fail_after(PATIENCE_S):
        if is_pending:
            connection._line.push(AnswerSlot(1, 100, is_shared=False))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            await trio.testing.wait_all_tasks_blocked()
            yield connection, client
    assert connection._state is ConnectionState.ENDED


async def expect(connection: ClientConnection, state: ConnectionState) -> None:
    """The connection gets into a state."""
    with trio.fail_after(PATIENCE_S):
        while connection._state is not state:
            await trio.testing.wait_all_tasks_blocked()


async def be_served(client: socket.socket) -> None:
    """The client has an answer."""
    client.sendall(produce_frame([batch()]))
    await trio.lowlevel.wait_readable(client)


async def lives_that_end_by_themselves(server: Server) -> None:
    """The client ends its side, breaks the protocol, sends slowly, or meets a sidecar that stops."""
    async with a_connection(server) as (_, client):
        client.shutdown(socket.SHUT_WR)
    for number in range(3):
        async with a_connection(server) as (connection, client):
            if number == 0:
                client.sendall(NONSENSE)
            else:
                await be_served(client)
                (connection.stop if number == 1 else connection._give_up_frame)()
            await expect(connection, ConnectionState.LINGERING)
            client.shutdown(socket.SHUT_WR)
    async with a_connection(server) as (connection, _):
        connection.stop()  # nothing was answered: there is nothing to linger for


async def lives_that_are_cut(server: Server) -> None:
    """In each state, for a new connection's sake."""
    async with a_connection(server) as (connection, _):
        connection.give_way()
    async with a_connection(server, is_pending=True) as (connection, _):
        connection.stop()
        await expect(connection, ConnectionState.DRAINING)
        connection.give_way()
    async with a_connection(server, is_pending=True) as (connection, client):
        client.shutdown(socket.SHUT_WR)
        await expect(connection, ConnectionState.HALF_CLOSED)
        connection.give_way()
    async with a_connection(server) as (connection, client):
        await be_served(client)
        connection.stop()
        await expect(connection, ConnectionState.LINGERING)
        connection.give_way()


async def test_every_step_of_the_table_is_taken(
    table: RecordedSteps[ConnectionState, ConnectionEvent], tmp_path: Path
) -> None:
    """By these lives together; no step outside the table is tried."""
    patient, hasty = tmp_path / "patient", tmp_path / "hasty"
    patient.mkdir()
    hasty.mkdir()
    async with serving(patient) as server:
        await lives_that_end_by_themselves(server)
        await lives_that_are_cut(server)
    async with (
        serving(hasty, BrokerSettings(handshake_s=0.0)) as server,
        a_connection(server) as (connection, _),
    ):
        await expect(connection, ConnectionState.ENDED)  # it has no answer, so it is reset
    assert table.taken == set(TRANSITIONS)


@pytest.mark.parametrize(
    ("state", "event"), sorted(set(product(ConnectionState, ConnectionEvent)) - set(TRANSITIONS), key=repr)
)
async def test_every_other_step_is_refused(tmp_path: Path, state: ConnectionState, event: ConnectionEvent) -> None:
    """The connection stays as it is, and the defect is named."""
    async with serving(tmp_path) as server:
        connection, client = connected(server)
        connection._state = state
        with pytest.raises(AssertionError, match=event.value):
            connection.move(event)
        assert connection._state is state
        connection._client.close()
        client.close()
