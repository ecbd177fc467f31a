"""Strangers at the door: what must not be served, what must not be told, and what must not hurt the others."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
import struct
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from kio.schema.errors import ErrorCode
from scramp import ScramClient, ScramException
from scramp.core import ServerError

from logstore.kafka.security.login import SHOWN_CHARACTERS, LoginSettings
from logstore.kafka.security.scram import SAID_BY_SCRAMP, why_refused
from tests.kafka.front_driver import request_frame
from tests.security.conftest import PASSWORD, USER, Certificates, Secured
from tests.security.raw_client import API_VERSIONS, AUTHENTICATE, HANDSHAKE, RawClient
from tests.support.waiting import until

MECHANISM = "SCRAM-SHA-512"
KEYS = (*range(93), 31_000, 31_001, 31_002, 31_003, 32_767, -1)
"""Every request that Kafka has, some of Cairn's own, and some that nobody has."""


def trusting(certificates: Certificates) -> ssl.SSLContext:
    """A client's context that trusts the sidecar's authority."""
    return ssl.create_default_context(cafile=str(certificates.ca))


def open_login(secured: Secured, protocol: str = "SASL_SSL") -> RawClient:
    """A connection to a listener that wants a login."""
    context = trusting(secured.certificates) if protocol.endswith("SSL") else None
    return RawClient(secured.ports[protocol], context)


def log_in(client: RawClient, user: str = USER, password: str = PASSWORD, mechanism: str = MECHANISM) -> Any:
    """A login by SCRAM; the last answer."""
    assert client.choose(mechanism) is ErrorCode.none
    scram = ScramClient([mechanism], user, password)
    first = client.token(scram.get_client_first())
    if first.error_code is not ErrorCode.none:
        return first
    scram.set_server_first(first.auth_bytes.decode())
    last = client.token(scram.get_client_final())
    if last.error_code is ErrorCode.none:
        scram.set_server_final(last.auth_bytes.decode())
    return last


def assert_well(secured: Secured) -> None:
    """An honest client is served."""
    with open_login(secured) as client:
        assert log_in(client).error_code is ErrorCode.none
        assert client.is_served()


# ---- requests without a login


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_nothing_is_served_before_a_login(protocol: str, secured: Secured) -> None:
    """Every request but ApiVersions and those of the login closes the connection, without an answer."""
    for key in KEYS:
        if key in (API_VERSIONS, HANDSHAKE, AUTHENTICATE):
            continue
        for chosen in (False, True):
            with open_login(secured, protocol) as client:
                if chosen:
                    assert client.choose(MECHANISM) is ErrorCode.none
                client.send(request_frame(key, 0, bytes(64)))
                assert client.is_ended(), key
    assert_well(secured)


def test_versions_are_told_before_a_login_and_no_more_during_it(secured: Secured) -> None:
    """A client may ask for versions first; between the messages of a mechanism it may not."""
    with open_login(secured) as client:
        assert client.ask(API_VERSIONS, 0).error_code is ErrorCode.none
        assert client.choose(MECHANISM) is ErrorCode.none
        client.send(request_frame(API_VERSIONS, 0, b""))
        assert client.is_ended()


def test_a_request_behind_a_wrong_login_in_one_packet_is_not_served(secured: Secured) -> None:
    """What is sent ahead of the answer to a wrong login is thrown away."""
    with open_login(secured) as client:
        client.choose("PLAIN")
        message = b"\0alice\0wrong"
        frame = request_frame(AUTHENTICATE, 0, struct.pack(">i", len(message)) + message)
        client.send(frame + request_frame(3, 4, struct.pack(">i?", 0, False), correlation_id=8))
        assert client.answer()[:2] == struct.pack(">h", ErrorCode.sasl_authentication_failed.value)
        assert client.is_ended()


@pytest.mark.parametrize("size", [64 * 1024 + 1, 1 << 20, 2**31 - 1, -1, 0])
def test_a_long_frame_before_a_login_is_refused_at_its_length(size: int, secured: Secured) -> None:
    """Above 64 KiB the length alone closes the connection; after the login the usual limit holds."""
    with open_login(secured, "SASL_PLAINTEXT") as client:
        client.send(struct.pack(">i", size))
        assert client.is_ended()
    assert_well(secured)


# ---- logins that are wrong


WRONG = {
    "password": (USER, "Tr0ub4dor"),
    "user": ("nobody", PASSWORD),
    "user with comma and equal sign": ("a,b=c", PASSWORD),
    "case": (USER.upper(), PASSWORD),
}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_logins_get_the_same_answer(wrong: str, mechanism: str, secured: Secured) -> None:
    """A wrong password and a user that there is not are answered alike, at the same step, and the connection ends."""
    user, password = WRONG[wrong]
    with open_login(secured) as client:
        answer = log_in(client, user, password, mechanism)
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert answer.auth_bytes == b""
        assert answer.error_message == (
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
        )
        assert client.is_ended()
    assert password not in secured.sidecar.log()


RAW = "\x1b[31mpasswd123\u202e\n" * 100


@pytest.mark.parametrize("sentence", [RAW, f"found {RAW}", "", *sorted(SAID_BY_SCRAMP)])
def test_a_report_quotes_no_message_of_a_client(sentence: str) -> None:
    """Whatever the library for SCRAM says of a message: the report is short, one line, and has nothing of it."""
    for error in (ScramException(sentence, ServerError.OTHER_ERROR), ScramException(sentence)):
        why = why_refused(error)
        assert len(why) <= SHOWN_CHARACTERS
        assert why.isascii()
        assert why.isprintable()
        assert "passwd123" not in why
        assert why.endswith(": other-error")
        assert not sentence or sentence == RAW or sentence.startswith("found") or why.startswith(sentence)


WRONG_FORMS = {
    "name": f"n,,n={RAW},r=abc",
    "channel binding": f"p={RAW},,n={USER},r=abc",
    "attribute": f"n,,n={USER},r=abc,{RAW}=x",
    "nonce": f"n,,n={USER},r={RAW}",
    "no message": RAW,
}


@pytest.mark.parametrize("wrong", WRONG_FORMS)
def test_a_message_in_a_wrong_form_is_in_no_log_line(wrong: str, secured: Secured) -> None:
    """The log has that a login failed, on one line, and nothing of what was sent."""
    with open_login(secured) as client:
        assert client.choose(MECHANISM) is ErrorCode.none
        answer = client.token(WRONG_FORMS[wrong])
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert "passwd123" not in answer.error_message
        assert client.is_ended()
    assert "passwd123" not in secured.sidecar.log()


def challenge(secured: Secured, user: str) -> tuple[str, int, int]:
    """A user's salt, its length and the iterations, as anybody may ask for them."""
    with open_login(secured) as client:
        client.choose(MECHANISM)
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        told = client.token(f"n,,n={escaped},r=abc").auth_bytes.decode()
        values = dict(part.split("=", 1) for part in told.split(","))
        return values["s"], len(base64.b64decode(values["s"])), int(values["i"])


def test_a_challenge_does_not_tell_who_is_a_user(secured: Secured) -> None:
    """The challenge of a name that is no user's is the same each time, with a user's form, and differs by name."""
    known, unknown, other = (challenge(secured, name) for name in (USER, "nobody", "somebody"))
    assert known[1:] == unknown[1:] == other[1:]
    assert len({known[0], unknown[0], other[0]}) == 3
    assert challenge(secured, "nobody") == unknown
    assert challenge(secured, USER) == known


def test_wrong_logins_are_answered_late_for_all_names(secured: Secured) -> None:
    """A wrong PLAIN login is answered after the delay at the earliest, for a user and for a name that is no user's."""
    for user in (USER, "nobody"):
        with open_login(secured) as client:
            client.choose("PLAIN")
            begun = time.perf_counter()
            assert client.token(f"\0{user}\0wrong").error_code is ErrorCode.sasl_authentication_failed
            assert time.perf_counter() - begun >= LoginSettings().failure_delay_s


PLAIN_MESSAGES = [
    b"",
    b"\0",
    b"\0alice\0",
    b"\0\0" + PASSWORD.encode(),
    b"alice\0" + PASSWORD.encode(),
    b"\0alice\0" + PASSWORD.encode() + b"\0",
    b"root\0alice\0" + PASSWORD.encode(),
    b"\0alice\0\xff\xfe",
    b"\0alice\0" + b"x" * 4000,
    b"\0" * 60_000,
]


@pytest.mark.parametrize("message", PLAIN_MESSAGES, ids=range(len(PLAIN_MESSAGES)))
def test_malformed_plain_messages_are_wrong_logins(message: bytes, secured: Secured) -> None:
    """Empty names and passwords, missing parts, another's name, bytes that are no text: like a wrong password."""
    with open_login(secured) as client:
        client.choose("PLAIN")
        assert client.token(message).error_code is ErrorCode.sasl_authentication_failed
        assert client.is_ended()


SCRAM_MESSAGES = [
    "",
    "n",
    "n,,",
    "n,,n=,r=abc",
    "n,,n=alice",
    "n,,n=alice,r=",
    "n,,n=a=b,r=abc",
    "n,,n=\u0007,r=abc",
    "n,,n=\u06271,r=abc",
    "n,,n=alice,r=abc,m=x",
    "n,a=root,n=alice,r=abc",
    "p=tls-unique,,n=alice,r=abc",
    "p=tls-exporter,,n=alice,r=abc",
    "n,,n=alice,n=root,r=abc",
    "n,,n=" + "x" * 4100 + ",r=abc",
    "n,,n=" + "x" * 256 + ",r=abc",
    "n,,n=" + "é" * 1000 + ",r=abc",
    "c=biws,r=abc,p=AAAA",
]


@pytest.mark.parametrize("message", SCRAM_MESSAGES, ids=range(len(SCRAM_MESSAGES)))
def test_malformed_first_messages_are_wrong_logins(message: str, secured: Secured) -> None:
    """Names that SASLprep forbids, unescaped signs, channel bindings that there are not, the last message first."""
    with open_login(secured) as client:
        client.choose(MECHANISM)
        assert client.token(message).error_code is ErrorCode.sasl_authentication_failed
        assert client.is_ended()
    assert "request_crashed" not in secured.sidecar.log()


def test_a_recorded_login_does_not_work_again(secured: Secured) -> None:
    """The messages of a right login, sent again, are refused: each login has a nonce of the sidecar's own."""
    scram = ScramClient([MECHANISM], USER, PASSWORD)
    first = scram.get_client_first()
    with open_login(secured) as client:
        client.choose(MECHANISM)
        scram.set_server_first(client.token(first).auth_bytes.decode())
        final = scram.get_client_final()
        assert client.token(final).error_code is ErrorCode.none
    with open_login(secured) as client:
        client.choose(MECHANISM)
        assert client.token(first).error_code is ErrorCode.none
        assert client.token(final).error_code is ErrorCode.sasl_authentication_failed
        assert client.is_ended()


def final_message(told: str, first_bare: str, header: str = "biws", nonce: str | None = None) -> tuple[str, bytes]:
    """A last message without its proof, with the right proof for it; header and nonce may be wrong ones."""
    values = dict(part.split("=", 1) for part in told.split(","))
    bare = f"c={header},r={values['r'] if nonce is None else nonce}"
    salted = hashlib.pbkdf2_hmac("sha512", PASSWORD.encode(), base64.b64decode(values["s"]), int(values["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha512")
    signature = hmac.digest(hashlib.sha512(client_key).digest(), f"{first_bare},{told},{bare}".encode(), "sha512")
    return bare, bytes(a ^ b for a, b in zip(client_key, signature, strict=True))


@pytest.mark.parametrize(
    "change", ["none", "short proof", "long proof", "empty proof", "no base 64", "other nonce", "other channel"]
)
def test_last_messages_that_are_wrong(change: str, secured: Secured) -> None:
    """A proof of another length, a nonce or a channel binding that was not agreed on: refused. The right one passes."""
    first_bare = f"n={USER},r=fyko+d2lbbFgONRv9qkxdawL"
    with open_login(secured) as client:
        client.choose(MECHANISM)
        told = client.token(f"n,,{first_bare}").auth_bytes.decode()
        nonce = "fyko+d2lbbFgONRv9qkxdawL" if change == "other nonce" else None
        header = base64.b64encode(b"y,,").decode() if change == "other channel" else "biws"
        bare, proof = final_message(told, first_bare, header, nonce)
        shown = {
            "short proof": base64.b64encode(proof[:-1]).decode(),
            "long proof": base64.b64encode(proof + b"\0").decode(),
            "empty proof": "",
            "no base 64": "*" * 88,
        }.get(change, base64.b64encode(proof).decode())
        answer = client.token(f"{bare},p={shown}")
        right = change == "none"
        assert (answer.error_code is ErrorCode.none) is right
        assert client.is_served() is right


def test_steps_out_of_order_are_refused(secured: Secured) -> None:
    """A message before the mechanism, a mechanism twice, a login after the login: ILLEGAL_SASL_STATE."""
    with open_login(secured) as client:
        assert client.token("n,,n=alice,r=abc").error_code is ErrorCode.illegal_sasl_state
        assert client.is_ended()
    with open_login(secured) as client:
        assert client.choose(MECHANISM) is ErrorCode.none
        assert client.choose(MECHANISM) is ErrorCode.illegal_sasl_state
        assert client.is_ended()
    with open_login(secured) as client:
        assert log_in(client).error_code is ErrorCode.none
        assert client.choose(MECHANISM) is ErrorCode.illegal_sasl_state
        assert client.is_served()


def test_mechanisms_that_there_are_not(secured: Secured) -> None:
    """An unknown mechanism is refused with the list of those that there are; PLAIN is none without TLS."""
    with open_login(secured) as client:
        answer = client.ask(HANDSHAKE, 1, mechanism="SCRAM-SHA-1")
        assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
        assert answer.mechanisms == ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
        assert client.is_ended()
    with open_login(secured, "SASL_PLAINTEXT") as client:
        answer = client.ask(HANDSHAKE, 1, mechanism="PLAIN")
        assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
        assert "PLAIN" not in answer.mechanisms
        assert client.is_ended()


@pytest.mark.parametrize("protocol", ["SSL", "PLAINTEXT"])
def test_a_listener_without_logins_says_so(protocol: str, secured: Secured) -> None:
    """Where nobody logs in, the requests of a login are ILLEGAL_SASL_STATE, as in Kafka."""
    with open_login(secured, protocol) as client:
        assert client.choose(MECHANISM) is ErrorCode.illegal_sasl_state


# ---- TLS


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        b"\x16\x03\x01\x40\x00" + b"\xff" * 200,
        request_frame(API_VERSIONS, 0, b""),
    ],
    ids=["http", "zeros", "broken hello", "kafka"],
)
def test_garbage_instead_of_a_hello(data: bytes, secured: Secured) -> None:
    """What is no ClientHello ends its connection, with at most an alert."""
    with RawClient(secured.ports["SASL_SSL"]) as client:
        client.send(data)
        client.socket.shutdown(socket.SHUT_WR)
        got = b""
        try:
            while piece := client.socket.recv(4096):
                got += piece
        except OSError:
            pass
        assert len(got) < 16
    assert_well(secured)


def test_a_handshake_that_never_ends_holds_up_nobody(secured: Secured) -> None:
    """Beside connections that stop in the middle of their handshake, others shake hands, log in and are served; theirs
    end at `handshake-s`.
    """
    begun = time.monotonic()
    stuck = [RawClient(secured.ports["SASL_SSL"]) for _ in range(20)]
    try:
        for client in stuck:
            client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert_well(secured)
        assert all(client.is_ended() for client in stuck)
        assert time.monotonic() - begun >= 9  # not before the ten seconds that a handshake has, but for rounding
    finally:
        for client in stuck:
            client.socket.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(version: ssl.TLSVersion, secured: Secured) -> None:
    """A client that speaks TLS 1.1 at most gets no connection (downgrade)."""
    context = trusting(secured.certificates)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with pytest.raises((ssl.SSLError, OSError)):
        RawClient(secured.ports["SSL"], context)
    assert_well(secured)


@pytest.mark.parametrize("ciphers", ["AES128-SHA", "AES256-GCM-SHA384", "ECDHE-RSA-AES128-SHA", "NULL", "aNULL"])
def test_weak_ciphers_are_refused(ciphers: str, secured: Secured) -> None:
    """Without forward secrecy or authenticated encryption there is no connection (Lucky Thirteen, Sweet32, ROBOT)."""
    context = trusting(secured.certificates)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    except ssl.SSLError:
        pytest.skip("this OpenSSL does not have it")
    with pytest.raises((ssl.SSLError, OSError)):
        RawClient(secured.ports["SSL"], context)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_is_resumed_and_nothing_compressed(version: ssl.TLSVersion, secured: Secured) -> None:
    """There is no ticket and no session to come back with, so each connection shows its certificate (CRIME, resumption
    past a changed authority).
    """
    context = trusting(secured.certificates)
    context.minimum_version = context.maximum_version = version
    with RawClient(secured.ports["SSL"], context) as client:
        assert client.is_served()
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.compression() is None
        session = client.socket.session
        assert session is None or not session.has_ticket


def client_context(secured: Secured, leaf: trustme.LeafCert) -> ssl.SSLContext:
    """A context with a certificate of one's own."""
    context = trusting(secured.certificates)
    leaf.configure_cert(context)
    return context


def test_certificates_that_are_refused(secured: Secured) -> None:
    """A certificate of another authority, one that has expired and one that is not valid yet get no connection."""
    now = datetime.now(UTC).replace(tzinfo=None)
    authority = secured.certificates.authority
    day = timedelta(days=1)
    leaves = {
        "UNKNOWN_CA": trustme.CA().issue_cert("c@example.org"),
        "CERTIFICATE_EXPIRED": authority.issue_cert("c@example.org", not_before=now - 9 * day, not_after=now - day),
        "BAD_CERTIFICATE": authority.issue_cert("c@example.org", not_before=now + day, not_after=now + 9 * day),
    }
    for alert, leaf in leaves.items():
        context = client_context(secured, leaf)
        with pytest.raises(ssl.SSLError, match=alert), RawClient(secured.ports["SSL"], context) as client:
            client.ask(API_VERSIONS, 0)
    with RawClient(secured.ports["SSL"], client_context(secured, authority.issue_cert("c@example.org"))) as client:
        assert client.is_served()


def test_renegotiation_is_refused(secured: Secured, tmp_path: Path) -> None:
    """A TLS 1.2 client that asks to negotiate again gets none, so it cannot have the sidecar compute for nothing."""
    authority, log = str(secured.certificates.ca), tmp_path / "log"
    command = ["openssl", "s_client", "-connect", secured.address("SSL"), "-tls1_2", "-CAfile", authority]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output) as process,
    ):
        assert process.stdin is not None
        try:
            process.stdin.write(b"R\n")
            process.stdin.flush()
            # Its input stays open: at its end the program would not wait for an answer.
            until(lambda: process.poll() is not None or "no renegotiation" in log.read_text().lower(), "an answer")
        finally:
            process.kill()
    said = log.read_text()
    assert "RENEGOTIATING" in said
    assert "no renegotiation" in said.lower()
    assert_well(secured)
