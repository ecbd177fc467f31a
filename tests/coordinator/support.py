"""What the coordinator's tests share: networks in files, a naive HTTP client, and a checker of JSON Schema."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from scheduler.topology import Topology, racks
from scheduler.topology.description import topology_toml
from tests.support.limits import PATIENCE_S


def topology_file(directory: Path, sizes: Sequence[int] = (4, 4), *, uplink: int = 4) -> tuple[Path, Topology]:
    """A network of racks, and the file that describes it."""
    topology = racks(sizes, uplink)
    path = directory / "topology.toml"
    path.write_text(topology_toml(topology), encoding="utf-8")
    return path, topology


class Answer(NamedTuple):
    """An answer as it came."""

    status: int
    headers: Mapping[str, str]
    text: str

    def json(self) -> Any:
        """Its value."""
        return json.loads(self.text)


def ask(url: str, method: str, path: str, value: object = None, *, body: bytes | None = None, **headers: str) -> Answer:
    """One request on a connection of its own, with Python's own client."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=PATIENCE_S)
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    if value is not None:
        body = json.dumps(value).encode()
    if body is not None:
        sent.setdefault("Content-Type", "application/json")
    try:
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())
    finally:
        connection.close()


def raw(url: str, *pieces: bytes, end: bool = True) -> bytes:
    """Send bytes, and everything that comes back until the connection ends."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
        for piece in pieces:
            sock.sendall(piece)
        if end:
            sock.shutdown(socket.SHUT_WR)
        received = b""
        while True:
            try:
                more = sock.recv(65536)
            except ConnectionResetError:
                return received
            if not more:
                return received
            received += more


class Reply(NamedTuple):
    """What a stand-in answers; `claimed`: the length that it says; `close`: it goes away afterwards, unannounced;
    `headers`: more of them.
    """

    status: int = 200
    value: object = None
    body: bytes | None = None
    claimed: int | None = None
    close: bool = False
    headers: Mapping[str, str] = MappingProxyType({})


@contextmanager
def stand_in(answer: Callable[[str], Reply]) -> Iterator[str]:
    """A server in a coordinator's place: `answer` gets "METHOD /path", in a thread for each connection."""

    class Handler(BaseHTTPRequestHandler):
        """One connection."""

        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = answer(f"{self.command} {self.path}")
            body = json.dumps(reply.value).encode() if reply.body is None else reply.body
            self.send_response(reply.status)
            self.send_header("Content-Length", str(len(body) if reply.claimed is None else reply.claimed))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = reply.close

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815  as their caller wants them

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def conforms(value: object, schema: Mapping[str, Any], document: Mapping[str, Any], where: str = "$") -> list[str]:
    """Where a value breaks a JSON Schema; a checker of the few keywords that our document uses, and of no others."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        return conforms(value, document["components"]["schemas"][name], document, where)
    if "anyOf" in schema:
        tries = [conforms(value, one, document, where) for one in schema["anyOf"]]
        return [] if any(not one for one in tries) else tries[0]
    known = {
        *("type", "properties", "required", "additionalProperties", "items", "maxItems", "enum", "description"),
        *("minimum", "maximum", "minLength", "maxLength", "default", "pattern"),
    }
    assert set(schema) <= known, f"{where}: the checker does not know {set(schema) - known}"
    kinds: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
        "null": type(None),
    }  # fmt: skip
    kind = schema["type"]
    if not isinstance(value, kinds[kind]) or (kind in ("integer", "number") and isinstance(value, bool)):
        return [f"{where}: {value!r} is not a {kind}"]
    if isinstance(value, dict):
        return _object(value, schema, document, where)
    if isinstance(value, list):
        broken = [] if len(value) <= schema.get("maxItems", len(value)) else [f"{where}: too many"]
        return broken + [
            one for n, part in enumerate(value) for one in conforms(part, schema["items"], document, f"{where}[{n}]")
        ]
    broken = [] if value in schema.get("enum", [value]) else [f"{where}: {value!r} is not in {schema['enum']}"]
    if isinstance(value, str):
        fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        fits = fits and re.search(schema.get("pattern", ""), value) is not None
        return broken if fits else [*broken, f"{where}: length of {value!r}"]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            broken.append(f"{where}: {value} is out of range")
    return broken


def _object(value: dict[str, Any], schema: Mapping[str, Any], document: Mapping[str, Any], where: str) -> list[str]:
    properties = schema.get("properties", {})
    broken = [f"{where}: {name} is missing" for name in schema.get("required", []) if name not in value]
    for name, part in value.items():
        if name in properties:
            broken += conforms(part, properties[name], document, f"{where}.{name}")
        elif schema.get("additionalProperties", True) is False:
            broken.append(f"{where}: {name} is not known")
        elif isinstance(schema.get("additionalProperties"), dict):
            broken += conforms(part, schema["additionalProperties"], document, f"{where}.{name}")
    return broken
