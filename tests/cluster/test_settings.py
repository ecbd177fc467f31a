"""The settings of a host in a cluster: what is taken, and in which words the rest is refused."""

import pytest

from logstore.base.tls import TlsFiles
from logstore.cluster.settings import ClusterSecurity, EtcdUrl, PlaceSettings, SqliteUrl, parse_cluster, parse_url
from logstore.errors import ConfigError

NOTHING = ClusterSecurity(TlsFiles(""))


def test_a_metadata_store_is_named_by_a_url() -> None:
    """Several endpoints, a namespace, TLS; or one file."""
    assert parse_url("etcd://a:1") == EtcdUrl(("http://a:1",), "/cairn/")
    assert parse_url("etcds://a:1,b:2/prod/") == EtcdUrl(("https://a:1", "https://b:2"), "/prod/")
    assert isinstance(parse_url("sqlite:/tmp/x.db"), SqliteUrl)


@pytest.mark.parametrize("url", ["etcd://", "http://a:1", "sqlite:", "a:1", "etcd:///x"])
def test_other_urls_are_refused(url: str) -> None:
    """With the forms that are allowed."""
    with pytest.raises(ConfigError, match="etcd://HOST:PORT"):
        parse_url(url)


@pytest.mark.parametrize(
    ("host", "listen", "rack"),
    [
        ("a b", "127.0.0.1:1", ""),
        ("a", "127.0.0.1", ""),
        ("a", "127.0.0.1:1", "r" * 256),
        ("a", "127.0.0.1:1", "/r" * 9),
    ],
)
def test_names_and_addresses_are_checked(host: str, listen: str, rack: str) -> None:
    """At the start, and not when the metadata store refuses them."""
    with pytest.raises(ConfigError):
        parse_cluster(NOTHING, "sqlite:x", host, 1, listen, "", PlaceSettings(rack), 3)
    assert parse_cluster(NOTHING, "", "", -1, "", "", PlaceSettings(), 3) is None


def test_links_beyond_one_machine_need_certificates() -> None:
    """Messages between hosts are records: nobody else may read or send them."""
    with pytest.raises(ConfigError, match="--peer-certificate"):
        parse_cluster(NOTHING, "sqlite:x", "a", 1, "0.0.0.0:1", "", PlaceSettings(), 3)
    with pytest.raises(ConfigError, match="give both, or neither"):
        parse_cluster(ClusterSecurity(TlsFiles("a.pem")), "sqlite:x", "a", 1, "0.0.0.0:1", "", PlaceSettings(), 3)
    safe = ClusterSecurity(TlsFiles("a.pem", client_ca="ca.pem"))
    assert parse_cluster(safe, "sqlite:x", "a", 1, "0.0.0.0:1", "", PlaceSettings(), 3) is not None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"etcd_key": "k.pem"}, "etcd-key=k.pem has no certificate: give --etcd-certificate"),
        ({"etcd_certificate": "c.pem"}, "etcd-certificate=c.pem needs .* give --etcd-ca too"),
    ],
)
def test_files_for_etcd_are_complete(given: dict[str, str], problem: str) -> None:
    """A key without its certificate, or a certificate for an etcd whose own one cannot be checked, is refused."""
    with pytest.raises(ConfigError, match=problem):
        parse_cluster(ClusterSecurity(TlsFiles(""), **given), "sqlite:x", "a", 1, "127.0.0.1:1", "", PlaceSettings(), 3)
