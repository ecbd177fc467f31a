"""What a client's properties say about security, and what clients of ours do with it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from logstore.client.blocking import Client, parse_addresses
from logstore.client.errors import SecurityFailed, Unavailable
from logstore.client.kafka_properties import MAX_WARNINGS, stranger_warnings
from logstore.client.properties import parse_properties
from logstore.client.security import PLAINTEXT, PROPERTIES, ClientSecurity, SaslSecurity, TlsSecurity, parse_security
from logstore.errors import InvalidConfig
from tests.security.conftest import PASSWORD, USER, Secured, cairn
from tests.security.test_users import command_config
from tests.support.cli import cairn as cairn_here
from tests.support.limits import PATIENCE_S

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN = f'{SCRAM} required username="alice" password="s3cret";'
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": LOGIN}
PEM = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}


@pytest.mark.parametrize(
    "login",
    [
        LOGIN,
        f"kafkashaded.{LOGIN}",
        f"{SCRAM} required username='alice' password='s3cret';",
        f"  {SCRAM}\n required\n username=alice\tpassword = s3cret ;",
        f'{SCRAM} required password="s3cret" username="alice" serviceName="kafka";',
    ],
)
def test_logins_as_spark_users_write_them(login: str) -> None:
    """With either quotes or none, over lines, and with the prefix of shaded Kafka clients."""
    found = parse_security({**SASL, **PEM, "sasl.jaas.config": login})
    assert found == ClientSecurity(TlsSecurity("/ca.pem"), SaslSecurity("SCRAM-SHA-512", "alice", "s3cret"))


def test_a_password_may_have_any_sign() -> None:
    """Quotes and backslashes are escaped in it, equal signs, semicolons and commas need not be."""
    login = f'{PLAIN} required username="a\\"b" password="=;,\\\\\' {SCRAM}";'
    found = parse_security({**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": login})
    assert found.sasl == SaslSecurity("PLAIN", 'a"b', f"=;,\\' {SCRAM}")


WRONG = [
    ({"security.protocol": "TLS"}, "security.protocol"),
    ({**SASL, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism"),
    ({**SASL, "sasl.mechanism": "PLAIN"}, "not for the mechanism"),
    ({**SASL, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "without TLS"),
    ({**SASL, "sasl.jaas.config": ""}, "sasl.jaas.config"),
    ({**SASL, "sasl.jaas.config": LOGIN[:-1]}, "is not a login"),
    ({**SASL, "sasl.jaas.config": LOGIN.replace("required", "")}, "is not a login"),
    ({**SASL, "sasl.jaas.config": LOGIN.replace('"s3cret"', '"s3cret')}, "is not a login"),
    ({**SASL, "sasl.jaas.config": LOGIN.replace("org.apache", "com.evil")}, "is not a login"),
    ({**SASL, "sasl.jaas.config": f'{SCRAM} required username="alice";'}, "username and a password"),
    ({**SASL, "ssl.truststore.location": "/s.jks"}, "ssl.truststore.type"),
    ({**SASL, "ssl.keystore.location": "/k.p12", "ssl.keystore.type": "PKCS12"}, "ssl.keystore.type"),
    ({**SASL, **PEM, "ssl.truststore.certificates": "x"}, "one of both"),
    ({**SASL, "ssl.keystore.type": "PEM", "ssl.keystore.key": "s3cret"}, "needed together"),
    ({**SASL, "ssl.endpoint.identification.algorithm": "maybe"}, "https"),
]


@pytest.mark.parametrize(("properties", "says"), WRONG, ids=range(len(WRONG)))
def test_what_is_not_understood_is_refused_by_name(properties: dict[str, str], says: str) -> None:
    """The error names the property and what is allowed, and never shows a secret."""
    given = {f"kafka.{name}": value for name, value in properties.items()}
    with pytest.raises(InvalidConfig, match=says) as raised:
        parse_security(given, "kafka.")
    assert "s3cret" not in str(raised.value)
    assert "option 'kafka." in str(raised.value)


def test_secrets_are_in_no_repr_and_survive_pickling() -> None:
    """Options travel to tasks as pickles and may be printed on the way."""
    keys = {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "chain", "ssl.keystore.key": "s3cret"}
    found = parse_security({**SASL, **PEM, **keys, "ssl.key.password": "s3cret"})
    assert pickle.loads(pickle.dumps(found)) == found
    assert "s3cret" not in repr(found) + str(found)
    assert "alice" in repr(found)
    assert parse_security({}) == PLAINTEXT


def test_properties_are_read_as_java_reads_them() -> None:
    """Comments, separators, escapes, continued lines, empty values."""
    text = "! note\n#x=1\n\n a = b c \nc:d\ne f\ng\\ h\\=i = j\\\n   k\\u0041\\t\\\\\nl=\nm\nn=1\r\nn=2"
    found = {"a": "b c ", "c": "d", "e": "f", "g h=i": "jkA\t\\", "l": "", "m": "", "n": "2"}
    assert parse_properties(text) == found
    with pytest.raises(InvalidConfig, match="line 2"):
        parse_properties("a=b\npassword=\\u00g0")


# ---- against a sidecar


def client(secured: Secured, protocol: str, **properties: str) -> Client:
    """A client of one of the listeners."""
    security = parse_security({"security.protocol": protocol, **properties})
    return Client(parse_addresses(secured.address(protocol)), limit_s=PATIENCE_S, security=security)


def truststore(secured: Secured) -> dict[str, str]:
    """The sidecar's authority."""
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(secured.certificates.ca)}


def login(module: str, password: str = PASSWORD) -> str:
    """A JAAS configuration."""
    return f'{module} required username="{USER}" password="{password}";'


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_our_client_logs_in(mechanism: str, secured: Secured) -> None:
    """Each mechanism over TLS; a wrong password is an error at once, which names the user and holds no secret."""
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    options = {**truststore(secured), "sasl.mechanism": mechanism}
    with client(secured, "SASL_SSL", **options, **{"sasl.jaas.config": login(module)}) as right:
        right.topics()
    with (
        client(secured, "SASL_SSL", **options, **{"sasl.jaas.config": login(module, "Tr0ub4dor")}) as wrong,
        pytest.raises(SecurityFailed, match=f"user '{USER}' is refused; check .*invalid credentials") as raised,
    ):
        wrong.topics()
    assert "Tr0ub4dor" not in str(raised.value)


def test_our_client_checks_the_server(secured: Secured) -> None:
    """A server of an unknown authority is not talked to; the authority may be given as a file or as a text."""
    with client(secured, "SSL") as nobody, pytest.raises(SecurityFailed, match="not trusted"):
        nobody.topics()
    ca = secured.certificates.ca.read_text()
    with client(secured, "SSL", **{"ssl.truststore.type": "PEM", "ssl.truststore.certificates": ca}) as known:
        known.topics()


def test_a_certificate_for_another_name_is_told_from_one_that_is_not_trusted(secured: Secured) -> None:
    """The certificate has 127.0.0.1, localhost and ::1; a client that asks for 127.1 hears that the name is wrong."""
    elsewhere = parse_addresses(secured.address("SSL").replace("127.0.0.1", "127.1"))
    security = parse_security({"security.protocol": "SSL", **truststore(secured)})
    with (
        Client(elsewhere, security=security) as ours,
        pytest.raises(SecurityFailed, match=r"certificate for another name: .*mismatch"),
    ):
        ours.topics()


def test_a_listener_without_tls_is_told_from_a_sidecar_that_is_away(secured: Secured) -> None:
    """A client with TLS that the listener hangs up on says where the connection ended, and asks for the listener."""
    security = parse_security({"security.protocol": "SSL", **truststore(secured)})
    plain = parse_addresses(secured.address("SASL_PLAINTEXT"))
    with (
        Client(plain, limit_s=0.5, security=security) as ours,
        pytest.raises(
            Unavailable, match=r"other TLS or login .*during the TLS handshake; does its listener use TLS\?\)$"
        ),
    ):
        ours.topics()


def test_our_client_shows_its_certificate(secured: Secured) -> None:
    """From one file, or from texts in the options."""
    files = secured.certificates
    in_file = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(files.client)}
    as_text = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": files.client_chain.read_text(),
        "ssl.keystore.key": files.client_key.read_text(),
    }
    for keystore in (in_file, as_text):
        with client(secured, "SSL", **truststore(secured), **keystore) as ours:
            ours.topics()
    with pytest.raises(InvalidConfig, match="keystore"):
        client(secured, "SSL", **truststore(secured), **{**as_text, "ssl.keystore.key": "none"})


def test_subcommands_take_the_properties_of_kafkas_tools(secured: Secured, tmp_path: Path) -> None:
    """`--command-config` logs the command in; without it the listener refuses it."""
    config = command_config(secured, tmp_path / "client.properties")
    where = ("--servers", secured.address("SASL_SSL"))
    assert cairn("readers", "list", *where, "--command-config", str(config)).stdout == "no reader is registered\n"
    closed = cairn("status", *where, "--timeout", "0.1")
    assert (closed.returncode, "give --command-config FILE" in closed.stderr) == (1, True)


@pytest.mark.parametrize("command", [("readers", "list"), ("user", "list"), ("status",)], ids=lambda words: words[0])
@pytest.mark.parametrize("text", ["sasl.jaas.config=s3cret\n", "a=\\u00g0\n", "ssl.truststore.location=/away\n", None])
def test_a_properties_file_that_cannot_be_used_is_named(
    command: tuple[str, ...], text: str | None, tmp_path: Path
) -> None:
    """Status 2, whatever is wrong: the file is missing, it is no properties file, its values are not understood, or a
    file that it names cannot be read. No secret is shown. No sidecar is asked.
    """
    config = tmp_path / "client.properties"
    if text is not None:
        config.write_text("security.protocol=SSL\nssl.truststore.type=PEM\n" + text)
        if "sasl" in text:
            config.write_text("security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n" + text)
    refused = cairn_here(*command, "--servers", "127.0.0.1:1", "--command-config", str(config))
    assert refused.status == 2
    assert f"--command-config {config}: " in refused.err
    assert "s3cret" not in refused.err


def test_a_misspelt_property_is_warned_of(secured: Secured, tmp_path: Path) -> None:
    """Once, with the nearest name, and no value; the command goes on. What Kafka's tools know is no mistake."""
    config = command_config(secured, tmp_path / "client.properties")
    where = ("--servers", secured.address("SASL_SSL"), "--command-config", str(config))
    with config.open("a") as file:
        file.write("ssl.truststore.loc=s3cret\nssl.truststore.password=x\nAcks=all\ngroup.id=g\n")
    done = cairn_here("topics", *where, "--timeout", str(PATIENCE_S))
    assert done.status == 0
    assert done.err == (
        f"cairn: warning: --command-config {config}: 'ssl.truststore.loc' is not a property of Kafka's clients and is "
        "ignored (did you mean 'ssl.truststore.location'?)\n"
    )


def test_what_may_be_a_secret_is_not_shown_as_a_name() -> None:
    """A line of a key that lost the backslash in front of it is read as a name; names are warned of up to a bound, and
    those with an effect here are among those that Kafka knows.
    """
    line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
    (warning,) = stranger_warnings([line])
    assert warning.startswith("a name of 64 characters (not shown")
    assert line[:8] not in warning
    for part in ("my.secret", "hunter.2", "password1"):
        assert part not in stranger_warnings([part])[0]
    assert "did you mean 'security.protocol'" in stranger_warnings(["security_protocol"])[0]
    many = stranger_warnings(f"x.{number}" for number in range(9))
    assert (len(many), many[-1]) == (MAX_WARNINGS + 1, "4 more names are unknown as well")
    assert stranger_warnings([*PROPERTIES, "config.providers.file.class", "sasl.oauthbearer.scope"]) == []
