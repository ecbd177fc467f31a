"""Reading goes on at another replica when a DataNode breaks off in mid-file: against servers that play HDFS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit
from zlib import crc32

import pytest

from scheduler.client import CoordinatorClient
from scheduler.hdfs.errors import ChunkLost
from scheduler.hdfs.plan_table import PlanTable
from scheduler.hdfs.webhdfs import DataNodeFailed
from scheduler.hdfs.writer import CheckpointWriter, WrittenChunk

DATA = bytes(range(256)) * 1000
NOWHERE = "http://127.0.0.1:1"
Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(address: str, answer: Answer) -> Iterator[str]:
    """A server whose every GET is answered so; gives its URL."""
    methods = {"do_GET": answer, "log_message": lambda *_: None}
    with ThreadingHTTPServer((address, 0), type("Handler", (BaseHTTPRequestHandler,), methods)) as serving:
        thread = Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://{address}:{serving.server_port}"
        finally:
            serving.shutdown()
            thread.join()


def datanode(size_bytes: int) -> Answer:
    """A DataNode that says how many bytes the file has, as real ones do, gives so many of them, and ends."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(DATA)))
        request.end_headers()
        request.wfile.write(DATA[:size_bytes])

    return answer


def namenode(datanodes: list[str]) -> Answer:
    """A NameNode that leads to the first DataNode that is not excluded, or else to the last."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        excluded = "".join(parse_qs(parts.query).get("excludedatanodes", [])).split(",")
        left = [url for url in datanodes if urlsplit(url).hostname not in excluded] or datanodes[-1:]
        request.send_response(307)
        request.send_header("Location", f"{left[0]}{parts.path}?op=OPEN")
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def read(*sizes: int, size_bytes: int = len(DATA)) -> bytes:
    """A chunk, as read from DataNodes of which each gives so many bytes."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(server(f"127.0.0.{2 + number}", datanode(size))) for number, size in enumerate(sizes)
        ]
        url = stack.enter_context(server("127.0.0.1", namenode(nodes)))
        table, client = PlanTable(NOWHERE, "token"), stack.enter_context(CoordinatorClient(NOWHERE))
        written = WrittenChunk(0, "/chunk", ("a",), 1, True, "127.0.0.2", size_bytes, crc32(DATA), 0.0)
        return CheckpointWriter(client, table, url).read(written)


def test_a_datanode_that_ends_in_mid_file_is_asked_no_more() -> None:
    """Its bytes are not taken for the file: two break off, the third has all of it."""
    assert read(1000, 0, len(DATA)) == DATA


def test_when_all_break_off_it_is_said_which() -> None:
    """The last one that was tried."""
    with pytest.raises(DataNodeFailed, match=r"DataNode 127\.0\.0\.3: .*1000 bytes read, 255000 more"):
        read(0, 1000)


def test_a_file_of_another_length_is_lost() -> None:
    """What is whole and yet not what was written is no DataNode's fault."""
    with pytest.raises(ChunkLost, match="256000 bytes"):
        read(len(DATA), size_bytes=5)
