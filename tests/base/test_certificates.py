"""A server's certificate is watched: who runs it hears of its end before the clients do."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from logstore.base.certificate_events import CERTIFICATE_EXPIRES
from logstore.base.certificates import NOTICE_MS, note_expiry
from logstore.base.x509 import expiry_ms
from logstore.testing.reports import RecordedReports

END_MS = 1_900_000_000_000


def test_an_end_is_reported_once_before_and_once_behind_it() -> None:
    """Nothing while it is far; one line within 14 days of it, one when it has passed, none for each look."""
    reports = RecordedReports()
    noticed = None
    for now_ms in (END_MS - NOTICE_MS - 1, END_MS - NOTICE_MS, END_MS - 1000, END_MS, END_MS + 1000):
        noticed = note_expiry(END_MS, now_ms, noticed, reports)
    assert reports.names() == [CERTIFICATE_EXPIRES.name] * 2
    assert [fields["effect"] for fields in reports.of(CERTIFICATE_EXPIRES)] == [
        "clients will refuse it from that time on",
        "clients refuse it",
    ]


def test_a_new_certificate_ends_the_notice() -> None:
    """One that ends soon, its successor that does not, and a third that ends soon: two lines."""
    reports = RecordedReports()
    noticed = note_expiry(END_MS, END_MS - 1, None, reports)
    noticed = note_expiry(END_MS + 2 * NOTICE_MS, END_MS - 1, noticed, reports)
    assert noticed is None
    assert note_expiry(END_MS + 1, END_MS - 1, noticed, reports) is not None
    assert len(reports.events) == 2


def test_the_end_is_that_of_the_first_certificate(tmp_path: Path) -> None:
    """A chain begins with the server's own certificate, whose end counts; a file with a key in front tells it too."""
    end = datetime(2035, 5, 17, 12, tzinfo=UTC)
    leaf = trustme.CA().issue_cert("127.0.0.1", not_before=end - timedelta(days=2), not_after=end)
    path = tmp_path / "server.pem"
    leaf.private_key_and_cert_chain_pem.write_to_path(path)
    assert expiry_ms(str(path)) == int(end.timestamp() * 1000)


@pytest.mark.parametrize("content", [b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_cannot_be_read_tells_no_end(tmp_path: Path, content: bytes) -> None:
    """OpenSSL decides about such a file; the watch says nothing."""
    path = tmp_path / "server.pem"
    path.write_bytes(content)
    assert expiry_ms(str(path)) is None
    assert expiry_ms(str(tmp_path / "missing.pem")) is None
