"""A host of a cluster that stops, as clients see it that connect at that moment."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from logstore.client.blocking import Client, parse_addresses
from logstore.testing.cluster import Cluster
from logstore.testing.ports import free_ports
from tests.metadata.support import needs_etcd
from tests.security.conftest import make_certificates, tls_flags
from tests.support.limits import PATIENCE_S
from tests.support.newcomers import ANSWERED, REFUSED, RESET, newcomers

pytestmark = [needs_etcd, pytest.mark.clients]
PARTITIONS = 20
CLIENTS = 4
"""That come and go at each listener."""


def test_who_comes_while_a_host_stops_sees_no_end(tmp_path: Path) -> None:
    """A host that leads streams, with a listener without TLS and another with it, gives its streams to another host and
    stops: all who connect meanwhile are answered, refused or reset, and no connection ends before its first answers.
    """
    made = make_certificates(tmp_path)
    (secured,) = free_ports(1)
    flags = ("--kafka", f"SSL://127.0.0.1:{secured}", *tls_flags(made))
    with Cluster(tmp_path / "cluster", ("a", "b"), host_flags={"a": flags}) as cluster:
        with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
            client.create_topic("orders", PARTITIONS)
        context = ssl.create_default_context(cafile=made.ca)
        with newcomers(cluster["a"].port, CLIENTS) as plain, newcomers(secured, CLIENTS, context) as shaken:
            assert cluster["a"].stop() == 0
    assert min(plain[ANSWERED], shaken[ANSWERED]) >= CLIENTS
    assert plain.keys() | shaken.keys() <= {ANSWERED, REFUSED, RESET}
