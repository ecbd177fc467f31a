"""Asking a sidecar's HTTP listener, and reading what it says."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar

HTTP = ("--http", "127.0.0.1:0")
SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\.)*)"(?:,|$)')


class Answer(NamedTuple):
    """An answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def value(self) -> Any:
        """The answer's JSON."""
        return json.loads(self.text)


def watched(data_dir: Path, *flags: str) -> Sidecar:
    """A sidecar with an HTTP listener on a free port."""
    return Sidecar(data_dir, *HTTP, *flags)


def http_port(sidecar: Sidecar) -> int:
    """The port of its HTTP listener, as its ready line says."""
    return int(sidecar.ready_line.split("http=")[1].split()[0].rsplit(":", 1)[1])


def ask(port: int, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read().decode())
    finally:
        connection.close()


Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def samples(text: str) -> Samples:
    """Every sample by name and labels, read as Prometheus' own parser would: a line that is none is an error."""
    found: Samples = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        labels = match[2] or ""
        pairs = LABEL.findall(labels)
        assert "".join(f'{name}="{value}",' for name, value in pairs) in (labels + ",", ""), line
        plain = tuple(sorted((name, re.sub(r"\\(.)", _unescaped, value)) for name, value in pairs))
        values = found.setdefault(match[1], {})
        assert plain not in values, f"twice: {line}"
        values[plain] = float(match[3])
    return found


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def value(found: Samples, name: str, **labels: str) -> float:
    """The sum of the samples of a metric with these labels; 0 without any."""
    wanted = set(labels.items())
    return sum(number for pairs, number in found.get(name, {}).items() if wanted <= set(pairs))


def scrape(sidecar: Sidecar) -> Samples:
    """The sidecar's metrics."""
    answer = ask(http_port(sidecar), "/metrics")
    assert answer.status == 200, answer.text
    return samples(answer.text)


def family(found: Samples, name: str) -> Samples:
    """The samples of one metric; a histogram has three kinds of them."""
    names = (name, f"{name}_bucket", f"{name}_sum", f"{name}_count")
    return {key: found[key] for key in names if key in found}
