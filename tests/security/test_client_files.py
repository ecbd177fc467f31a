"""The Kafka client of queries and commands follows the files of its certificates."""

from pathlib import Path

import pytest
import trustme

from logstore.base.addresses import Address
from logstore.client.errors import SecurityFailed
from logstore.client.network import HostNetwork
from logstore.client.secure_network import SecureNetwork
from logstore.client.security import parse_security
from tests.security.conftest import make_certificates, tls_flags
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar


def test_a_client_trusts_what_its_file_has_when_it_connects(tmp_path: Path) -> None:
    """Authorities in a file that is replaced count from the next connection on; a file that cannot be used leaves those
    of before.
    """
    found = make_certificates(tmp_path)
    properties = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(found.ca)}
    network = SecureNetwork(HostNetwork(), parse_security(properties), "test")
    with Sidecar(tmp_path / "data", *tls_flags(found), protocol="SSL") as sidecar:
        address = Address("127.0.0.1", sidecar.port)
        network.connect(address, PATIENCE_S).close()
        found.ca.write_text("no certificate")
        network.connect(address, PATIENCE_S).close()
        trustme.CA().cert_pem.write_to_path(found.ca)
        with pytest.raises(SecurityFailed, match="not trusted"):
            network.connect(address, PATIENCE_S)
        found.authority.cert_pem.write_to_path(found.ca)
        network.connect(address, PATIENCE_S).close()
        assert sidecar.terminate() == 0
