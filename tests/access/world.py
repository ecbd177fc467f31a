"""A whole sidecar's requests on a real store, in this process, and clients whose principals the test chooses."""

from __future__ import annotations

import argparse
import secrets
import struct
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol, cast

import trio

from logstore import config, sidecar
from logstore.access.acls import ANY_HOST, Acl, Operation, PatternType, Permission, ResourceType
from logstore.access.authorizer import Authorizer
from logstore.access.entries import AccessEntries, LedgerEntries
from logstore.base.clock import Clock
from logstore.base.metadata.sqlite import open_sqlite
from logstore.base.system import SystemClock
from logstore.cluster.streams.stored_access import StoredAccess
from logstore.disk.files import OsFiles
from logstore.engine import open_engine
from logstore.epochs.epochs import Epochs
from logstore.epochs.journaled import decided_in_journal
from logstore.epochs.parts import of_host
from logstore.epochs.staging import Staging
from logstore.errors import CairnError
from logstore.format import epoch_api, operator_api, reader_api
from logstore.format.records import Record, encode_batch
from logstore.kafka.api_types import ApiHandlers, Broker
from logstore.kafka.security.stores import CallerStores, open_stores
from logstore.kafka.security.users import LEDGER as USERS_LEDGER
from logstore.kafka.server import KafkaServer, Listener
from logstore.log.ledger import Ledger
from logstore.log.store import Store
from logstore.testing.reports import RecordedReports
from tests.kafka.front_driver import NOW_MS, Peer, decode_answer, kio_frame

ROOT_USER = "User:root"
ALICE, BOB, MALLORY = "User:alice", "User:bob", "User:mallory"


class World:
    """A running front, its lists, and the port."""

    def __init__(
        self,
        broker: Broker,
        store: Store,
        handlers: ApiHandlers,
        stores: CallerStores,
        kafka: KafkaServer,
        port: int,
    ) -> None:
        self.broker = broker
        self.store = store
        self.handlers = handlers
        self.acls = stores.acls
        self.quotas = stores.quotas
        self.kafka = kafka
        self.port = port
        self.reports = RecordedReports()

    async def allow(self, *acls: Acl) -> None:
        """Add entries."""
        await self.broker.engine.wait(self.acls.create(acls))

    async def forbid(self, *acls: Acl) -> None:
        """Remove entries."""
        await self.broker.engine.wait(self.acls.delete(acls))

    async def create_topic(self, name: str, partitions: int = 1) -> uuid.UUID:
        """A topic, made without asking anybody; its id."""
        return (await self.broker.engine.wait(self.broker.engine.store.create_topic(name, partitions, {}))).topic_id

    @asynccontextmanager
    async def client(self, principal: str, host: str | None = None) -> AsyncIterator[Client]:
        """A connection that has authenticated as `principal`, from `host`."""
        sock = trio.socket.socket()
        await sock.connect(("127.0.0.1", self.port))
        async with Client(trio.SocketStream(sock)) as peer:
            await peer.kafka(18, 0)
            (connection,) = [
                found for found in self.kafka._connections if found._client._socket.getpeername() == sock.getsockname()
            ]
            caller = connection._caller
            connection._caller = caller._replace(principal=principal, host=host or caller.host)
            yield peer


class Client(Peer):
    """Asks for Kafka's requests and for Cairn's own."""

    async def __aenter__(self) -> Client:
        return self

    async def kafka(self, key: int, version: int, /, **values: Any) -> Any:
        """The answer to one of Kafka's requests."""
        return decode_answer(key, version, await self.ask(kio_frame(key, version, values)))

    async def own(self, request: Any) -> Any:
        """The reply to a request of epochs or scans; raises the error that it is."""
        frame = b"".join(bytes(part) for part in epoch_api.encode_request(request, correlation_id=7))
        answer = await self.ask(struct.pack(">i", len(frame)) + frame)
        (key,) = struct.unpack_from(">h", frame)
        _, reply = epoch_api.decode_reply(key, struct.pack(">i", 7) + answer)
        return _raised(reply)

    async def reader(self, request: Any) -> Any:
        """The reply to a request of readers; raises the error that it is."""
        frame = b"".join(bytes(part) for part in reader_api.encode_request(request, correlation_id=7))
        answer = await self.ask(struct.pack(">i", len(frame)) + frame)
        (key,) = struct.unpack_from(">h", frame)
        _, reply = reader_api.decode_reply(key, struct.pack(">i", 7) + answer)
        return _raised(reply)

    async def operator(self, request: Any) -> Any:
        """The reply to a request of operators; raises the error that it is."""
        frame = b"".join(bytes(part) for part in operator_api.encode_request(request, correlation_id=7))
        answer = await self.ask(struct.pack(">i", len(frame)) + frame)
        (key,) = struct.unpack_from(">h", frame)
        _, reply = operator_api.decode_reply(key, struct.pack(">i", 7) + answer)
        return _raised(reply)


def _raised(reply: Any) -> Any:
    if isinstance(reply, CairnError):
        raise reply
    return reply


def allow(
    principal: str,
    operation: Operation,
    name: str,
    *,
    kind: ResourceType = ResourceType.TOPIC,
    pattern: PatternType = PatternType.LITERAL,
    host: str = ANY_HOST,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    """An entry that allows, or what `permission` says."""
    return Acl(kind, name, pattern, principal, host, operation, permission)


def group(principal: str, operation: Operation, name: str) -> Acl:
    """An entry that allows something with a group."""
    return allow(principal, operation, name, kind=ResourceType.GROUP)


def cluster(principal: str, operation: Operation) -> Acl:
    """An entry that allows something with the cluster."""
    return allow(principal, operation, "kafka-cluster", kind=ResourceType.CLUSTER)


def query(principal: str, operation: Operation, name: str) -> Acl:
    """An entry that allows something with a query."""
    return allow(principal, operation, name, kind=ResourceType.TRANSACTIONAL_ID)


def records(*values: bytes) -> bytes:
    """A batch."""
    return bytes(encode_batch([Record(index, NOW_MS, None, value, ()) for index, value in enumerate(values)]))


@asynccontextmanager
async def world(
    root: Path,
    *flags: str,
    super_users: Iterable[str] = (ROOT_USER,),
    has_users: bool = False,
    clock: Clock | None = None,
    metadata: StoredAccess | None = None,
) -> AsyncIterator[World]:
    """Everything that a sidecar serves, on a directory, at a free port; `metadata` keeps users, lists and quotas if it
    is given, as in a cluster.
    """
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    settings = config.parse(parser.parse_args(["--data-dir", str(root), *flags]))
    reports = RecordedReports()
    files, clock = OsFiles(root), clock or SystemClock()
    store = Store.open(files, clock, settings.store, new_id=uuid.uuid4, report=reports, decided=decided_in_journal)
    staging = Staging.open(files, store.notify, reports, limit_bytes=settings.staging_bytes)
    epochs = Epochs(of_host(store, staging, reports), reports, staged_age_ms=settings.staged_age_ms)
    async with open_engine(store, files) as engine:
        if metadata is None:
            entries: AccessEntries = LedgerEntries(store.access)
            users: AccessEntries = LedgerEntries(Ledger.open(files, USERS_LEDGER, store.notify))
        else:
            entries = users = metadata
        stores = open_stores(entries, users, secrets.token_bytes)
        authorizer = Authorizer(stores.acls.index, super_users, lambda: has_users)
        broker = Broker(engine, clock, settings.broker, authorizer, stores.quotas.quotas)
        groups = sidecar._groups(settings, broker, store, cast(Any, reports))
        listeners: Sequence[Listener] = [Listener("127.0.0.1", 0)]
        facts = partial(sidecar._host_facts, root)
        handlers = sidecar._handlers(broker, engine, groups, epochs, stores, listeners, facts)
        server = KafkaServer(broker, handlers)
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(server.serve, listeners)
            nursery.start_soon(groups.run)
            here = World(broker, store, handlers, stores, server, listener.port)
            here.reports = reports
            yield here
            nursery.cancel_scope.cancel()
    files.close()


class Worlds(Protocol):
    """Makes a world on a directory."""

    def __call__(self, root: Path, *, has_users: bool = False) -> AbstractAsyncContextManager[World]: ...


@asynccontextmanager
async def world_of_cluster(root: Path, *, has_users: bool = False) -> AsyncIterator[World]:
    """A world whose users, lists and quotas are in a metadata store."""
    data = root / "data"
    data.mkdir()
    async with open_sqlite(root / "metadata.db", Random(0)) as store, trio.open_nursery() as nursery:
        access = StoredAccess(store, RecordedReports(), nursery.start_soon)
        nursery.start_soon(access.run)
        await access.complete()
        async with world(data, has_users=has_users, metadata=access) as here:
            yield here
        nursery.cancel_scope.cancel()


WORLDS: Sequence[Worlds] = (world, world_of_cluster)
"""For tests of what holds wherever rights are kept."""
