"""A client of the plan table inside a NameNode: a plan names the DataNodes of a file's blocks, in their order.

A plan applies to a path and everything below it (the longest path wins), until it is removed or expires. The table is
in the NameNode's memory: after a restart it is empty and `run` has changed, so plans must be pushed again.

Invariants:
* A push is complete when it returns: a file created afterwards follows it.
* One connection, used by one thread at a time; if the connection is broken, a call is tried once more on a new one.
"""

import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from scheduler.hdfs.errors import PlanTableError

CALL_S = 10.0
TTL_S = 600.0
"""The lifetime of a plan: its file is written at once."""


class Followed(NamedTuple):
    """The placements that followed a plan, and those that could not; a redirect of WebHDFS counts, a block too."""

    used: int
    refused: int


class Plans(NamedTuple):
    """The content of the table: chains by path, this NameNode's run, and the placements that followed a plan or not."""

    chains: dict[str, list[str]]
    run: str
    used: int
    refused: int


class PlanTable:
    """A client of one NameNode's plan table. `addresses`: names to the addresses by which it knows DataNodes."""

    def __init__(self, url: str, token: str, addresses: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise PlanTableError(f"url={url!r}: must be http://HOST:PORT, where the NameNode's cairn.plan.address is")
        self._host, self._port = parts.hostname, parts.port
        self._token = token
        self._addresses = dict(addresses or {})
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self.run: str | None = None

    def __enter__(self) -> "PlanTable":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens another."""
        with self._lock:
            self._drop()

    def push(self, path: str, chain: Sequence[str], ttl_s: float = TTL_S) -> None:
        """Send blocks of files at or below `path` to the DataNodes of `chain`, first replica first.

        Raises PlanTableError.
        """
        self.push_all({path: chain}, ttl_s)

    def push_all(self, chains: Mapping[str, Sequence[str]], ttl_s: float = TTL_S) -> None:
        """Push several plans in one call: all of them, or none if one is invalid. Raises PlanTableError."""
        plans = [
            {"path": path, "hosts": [self._addresses.get(name, name) for name in chain], "ttl_ms": int(ttl_s * 1000)}
            for path, chain in chains.items()
        ]
        self._call("PUT", {"plans": plans})

    def forget(self, *paths: str) -> dict[str, Followed]:
        """Remove plans; returns the counts of each plan that existed. Raises PlanTableError."""
        plans = self._call("DELETE", {"paths": list(paths)})["forgotten"]
        return {plan["path"]: Followed(plan["used"], plan["refused"]) for plan in plans}

    def plans(self) -> Plans:
        """The content of the table. Raises PlanTableError."""
        answer = self._call("GET", None)
        names = {address: name for name, address in self._addresses.items()}
        chains = {plan["path"]: [names.get(host, host) for host in plan["hosts"]] for plan in answer["plans"]}
        return Plans(chains, answer["run"], answer["used"], answer["refused"])

    def _call(self, method: str, body: object) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        with self._lock:
            try:
                status, text = self._exchange(method, data, headers)
            except (OSError, http.client.HTTPException) as error:
                raise PlanTableError(
                    f"the plan table at {self._host}:{self._port} does not answer: {error!r}"
                ) from error
            answer = _answer(text)
            if status != http.client.OK and "error" in answer:
                raise PlanTableError(f"the plan table refused ({status}): {answer['error']}")
            if status != http.client.OK or "run" not in answer:
                raise PlanTableError(f"no plan table at {self._host}:{self._port}: it answered {text[:80]!r}")
            self.run = answer["run"]
        return answer

    def _exchange(self, method: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        fresh = self._connection is None
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=CALL_S)
            self._connection.request(method, "/v1/plans", body=data, headers=dict(headers))
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self._drop()
            if fresh:
                raise
        return self._exchange(method, data, headers)  # the server had closed the idle connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _answer(text: bytes) -> dict[str, Any]:
    """The JSON object of an answer; empty if it is not a JSON object."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
