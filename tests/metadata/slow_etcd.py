"""An etcd on a network in memory, in virtual time: each endpoint answers after a time of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import trio

from logstore.base.events import ignore
from logstore.base.metadata.etcd.connections import EtcdConnections
from logstore.base.metadata.etcd.settings import EtcdSettings
from logstore.base.metadata.etcd.store import EtcdMetadataStore
from logstore.base.metadata.etcd.transport import MAX_CONNECTIONS, EtcdClients, EtcdTransport

ONE, TWO = "http://127.0.0.1:1", "http://127.0.0.1:2"
HEADER = {"cluster_id": "1", "revision": "1"}
ANSWERS: dict[str, Any] = {
    "kv/range": {"header": HEADER},
    "kv/txn": {"header": HEADER, "succeeded": True},
    "lease/grant": {"header": HEADER, "ID": "7", "TTL": "3"},
    "lease/revoke": {"header": HEADER},
    "lease/keepalive": {"result": {"header": HEADER, "ID": "7", "TTL": "3"}},
    "auth/authenticate": {"header": HEADER, "token": "abc.1"},
    "watch": {"result": {"header": HEADER, "created": True}},
}

REFUSAL = b'{"error":"etcdserver: invalid auth token","code":16}'
STREAMED_REFUSAL = b'{"error":{"grpc_code":16,"http_code":401,"message":"etcdserver: invalid auth token"}}'
"""Of a call whose answer is streamed, as grpc-gateway writes it; etcd asks for a token there since 3.4.42."""


class SlowEtcd:
    """The network behind a store: each endpoint answers what is asked after a time of its own."""

    def __init__(self, **delays_s: float) -> None:
        self.delays_s = {"one": 0.0, "two": 0.0, **delays_s}
        self.asked: Counter[tuple[str, str]] = Counter()
        self.connected = 0
        self.open: set[SlowStream] = set()
        """Connections that nobody has closed."""
        self.most_open = 0
        self.silent: set[str] = set()
        """Paths of calls that are never answered."""
        self.is_quiet = False
        """Watches stay, and are told nothing."""
        self.errors: dict[str, bytes] = {}
        """By paths of calls: what is answered as an error, in place of what is usual."""
        self.errors_once: dict[str, list[bytes]] = {}
        """The same, each answered once."""
        self.answers: dict[str, Any] = {}
        """By paths of calls, in place of what is usual; a list is a streamed answer of several messages."""
        self.pieces = 1
        """In so many an answer arrives, each after the time of an answer."""
        self.login_s = 0.0
        """What a login takes in addition."""
        self.tokens: set[str] | None = None
        """Those that are valid; None: nobody is asked for one."""
        self.asks_for_nothing: set[str] = set()
        """Paths of calls for which nobody is asked for a token."""

    async def connect(self, endpoint: str) -> SlowStream:
        """A connection to an endpoint."""
        await trio.lowlevel.checkpoint()
        self.connected += 1
        stream = SlowStream(self, "one" if endpoint == ONE else "two")
        self.open.add(stream)
        self.most_open = max(self.most_open, len(self.open))
        return stream


class SlowStream(trio.abc.Stream):
    """One connection, on which each request is sent in one piece."""

    def __init__(self, etcd: SlowEtcd, name: str) -> None:
        self._etcd = etcd
        self._name = name
        self._answer = self._rest = b""
        self._ready_s = 0.0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See trio."""
        await trio.lowlevel.checkpoint()
        etcd, path = self._etcd, bytes(data).split(b" ", 2)[1].decode().removeprefix("/v3/")
        etcd.asked[self._name, path] += 1
        found = etcd.answers.get(path, ANSWERS.get(path))
        lines = found if isinstance(found, list) else [found]
        body, status = b"".join(json.dumps(line).encode() + b"\n" for line in lines), b"200 OK"
        delay_s = etcd.delays_s[self._name]
        error = etcd.errors_once[path].pop(0) if etcd.errors_once.get(path) else etcd.errors.get(path)
        if error is not None:
            body, status = error, b"400 Bad Request"
        elif path == "auth/authenticate" and path not in etcd.answers:
            etcd.tokens, delay_s = etcd.tokens or set(), delay_s + etcd.login_s
            etcd.tokens.add(token := f"token.{etcd.asked[self._name, path]}")
            body = json.dumps({"header": HEADER, "token": token}).encode()
        elif path not in etcd.asks_for_nothing and not self._has_token(bytes(data)):
            body, status = STREAMED_REFUSAL if path == "lease/keepalive" else REFUSAL, b"401 Unauthorized"
        if path == "watch" and etcd.is_quiet and status == b"200 OK":
            self._answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(body), body)
        else:
            self._answer = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
        self._rest = self._answer
        self._ready_s = float("inf") if path in etcd.silent else trio.current_time() + delay_s

    def _has_token(self, request: bytes) -> bool:
        tokens = self._etcd.tokens
        return tokens is None or any(b": %s\r\n" % token.encode() in request for token in tokens)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See trio."""
        await trio.sleep_until(self._ready_s)
        size = -(-len(self._answer) // self._etcd.pieces)
        piece, self._rest = self._rest[:size], self._rest[size:]
        delay_s = self._etcd.delays_s[self._name] if self._rest else float("inf")
        self._ready_s = trio.current_time() + delay_s
        return piece

    async def wait_send_all_might_not_block(self) -> None:
        """See trio."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """See trio."""
        self._etcd.open.discard(self)
        await trio.lowlevel.checkpoint()


def store_on(
    etcd: SlowEtcd, endpoints: tuple[str, ...] = (ONE,), **login: str | Callable[[], str]
) -> EtcdMetadataStore:
    """A store that reaches these endpoints, with a user if one is given, whose password is its name unless given."""
    login.setdefault("password", login.get("user", ""))
    settings = EtcdSettings(endpoints=endpoints, attempt_s=1.0, **login)  # type: ignore[arg-type]
    clients = EtcdClients(*(EtcdConnections(etcd.connect, MAX_CONNECTIONS) for _ in range(3)))
    return EtcdMetadataStore(EtcdTransport(clients, settings, Random(0), ignore))
