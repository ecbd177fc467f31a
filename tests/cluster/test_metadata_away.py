"""What commands say while the metadata store of a cluster does not answer."""

from pathlib import Path

from logstore.client.blocking import Client, parse_addresses
from logstore.testing.cluster import Cluster
from tests.metadata.support import needs_etcd
from tests.support.cli import cairn
from tests.support.limits import PATIENCE_S
from tests.support.waiting import until

pytestmark = needs_etcd


def test_commands_say_that_the_metadata_store_is_away(tmp_path: Path) -> None:
    """`cairn hosts` and `cairn topics describe` say that the metadata store is away, and why; `cairn status` shows what
    the host itself knows. None of them tells to start a sidecar.
    """
    with Cluster(tmp_path, ("a",)) as cluster:
        (a,) = cluster
        with Client(parse_addresses(cluster.bootstrap), limit_s=PATIENCE_S) as client:
            client.create_topic("orders", 2)
        cluster.etcd.pause()
        until(lambda: "event=metadata_away" in a.log, "the host hears nothing of it")
        short = ("--servers", a.address, "--timeout", "4")
        for words in (("hosts",), ("topics", "describe", "orders")):
            refused = cairn(*words, *short)
            assert (refused.status, refused.out) == (1, "")
            assert "the metadata store is away (http://" in refused.err
            assert "running there" not in refused.err
            assert "Start one" not in refused.err
        shown = cairn("status", *short)
        assert shown.status == 0, shown.err
        assert "groups, readers and queries are not known" in shown.err
        assert "its metadata store is away" in shown.err
        assert "Start one" not in shown.err
        assert "queries     -" in shown.out
        cluster.etcd.go_on()
