"""How a client secures its connections, read from Kafka's own client properties.

The properties are those of Kafka's Java client (`security.protocol`, `sasl.mechanism`, `sasl.jaas.config`, `ssl.…`), as
its tools read them from a file and as Spark's users give them with `kafka.` in front. Certificates and keys are PEM.

Invariants: nothing here connects; a property that is not understood is refused by name, and no error or repr holds a
secret.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from logstore.errors import InvalidConfig

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
DEFAULT_MECHANISM: Final = "GSSAPI"
"""Kafka's; it is not supported, so a mechanism must be named."""
_MODULES: Final = {"ScramLoginModule": MECHANISMS[:2], "PlainLoginModule": MECHANISMS[2:]}
_MODULE: Final = re.compile(
    r"(?:kafkashaded\.)?org\.apache\.kafka\.common\.security\.(?:scram\.(ScramLoginModule)|plain\.(PlainLoginModule))"
)
_TOKEN: Final = re.compile(
    r"""\s*(?: (?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*') | (?P<word>[^\s=;"']+) | (?P<mark>[=;]) )""",
    re.VERBOSE | re.DOTALL,
)
_BAD_JAAS: Final = (
    "is not a login; write org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="NAME" password="PASSWORD"; (or plain.PlainLoginModule)'
)
PROPERTIES: Final = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
)
"""All that have an effect here."""


@dataclass(frozen=True, slots=True)
class TlsSecurity:
    """The TLS of a client. Each file or text is PEM; empty: there is none, and for authorities, the system's."""

    authorities_file: str = ""
    authorities: str = field(default="", repr=False)
    certificate_file: str = ""
    """With the key in it."""
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    checks_host: bool = True
    """Whether the server's certificate must be for the host that was dialled."""


@dataclass(frozen=True, slots=True)
class SaslSecurity:
    """The login of a client."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    properties_file: str = ""
    """The file of properties that the login is from, and that is followed; empty: there is none."""


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """What a client does before its first request; without both, nothing."""

    tls: TlsSecurity | None = None
    sasl: SaslSecurity | None = None


PLAINTEXT: Final = ClientSecurity()


def parse_security(properties: Mapping[str, str], prefix: str = "") -> ClientSecurity:
    """The security in those of `properties` that PROPERTIES names; `prefix` stands before each name in errors.

    Raises InvalidConfig, which names the property and what is allowed.
    """
    reader = _PropertyReader(properties, prefix)
    protocol = reader.text("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise reader.wrong("security.protocol", f"is {protocol!r}; allowed: {', '.join(PROTOCOLS)}")
    tls = _tls(reader) if protocol in ("SSL", "SASL_SSL") else None
    sasl = _sasl(reader, is_encrypted=tls is not None) if protocol.startswith("SASL") else None
    return ClientSecurity(tls, sasl)


class _PropertyReader:
    def __init__(self, properties: Mapping[str, str], prefix: str) -> None:
        self._properties = {name.lower(): value for name, value in properties.items()}
        self._prefix = prefix

    def text(self, name: str, default: str = "") -> str:
        return self._properties.get(self._prefix + name, default)

    def wrong(self, name: str, why: str) -> InvalidConfig:
        return InvalidConfig(f"option {self._prefix + name!r} {why}")


def _tls(reader: _PropertyReader) -> TlsSecurity:
    for store in ("truststore", "keystore"):
        kind = reader.text(f"ssl.{store}.type")
        is_used = any(name.startswith(f"ssl.{store}.") and reader.text(name) for name in PROPERTIES)
        if is_used and kind.strip().upper() != "PEM":
            raise reader.wrong(
                f"ssl.{store}.type",
                f"is {kind or 'JKS'!r}; allowed: PEM (keytool -exportcert -rfc writes a certificate as PEM, "
                "openssl pkcs12 -in FILE a key)",
            )
    for given, other in (
        ("ssl.truststore.certificates", "ssl.truststore.location"),
        ("ssl.keystore.certificate.chain", "ssl.keystore.location"),
    ):
        if reader.text(given) and reader.text(other):
            raise reader.wrong(given, f"is given beside {reader.text(other)!r}; allowed: one of both")
    if bool(reader.text("ssl.keystore.certificate.chain")) != bool(reader.text("ssl.keystore.key")):
        raise reader.wrong("ssl.keystore.key", "and 'ssl.keystore.certificate.chain' are needed together")
    checks = reader.text("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if checks not in ("https", ""):
        raise reader.wrong("ssl.endpoint.identification.algorithm", f"is {checks!r}; allowed: https, or empty for none")
    return TlsSecurity(
        reader.text("ssl.truststore.location"),
        reader.text("ssl.truststore.certificates"),
        reader.text("ssl.keystore.location"),
        reader.text("ssl.keystore.certificate.chain"),
        reader.text("ssl.keystore.key"),
        reader.text("ssl.key.password"),
        checks_host=checks == "https",
    )


def _sasl(reader: _PropertyReader, *, is_encrypted: bool) -> SaslSecurity:
    mechanism = reader.text("sasl.mechanism", DEFAULT_MECHANISM).strip().upper()
    if mechanism not in MECHANISMS:
        raise reader.wrong("sasl.mechanism", f"is {mechanism!r}; allowed: {', '.join(MECHANISMS)}")
    if mechanism == "PLAIN" and not is_encrypted:
        raise reader.wrong("sasl.mechanism", "is 'PLAIN' without TLS; allowed: SCRAM-SHA-512, or SASL_SSL with PLAIN")
    module, values = _login(reader)
    if mechanism not in _MODULES[module]:
        raise reader.wrong("sasl.jaas.config", f"names {module}, which is not for the mechanism {mechanism}")
    if not values.get("username") or not values.get("password"):
        raise reader.wrong("sasl.jaas.config", "needs a username and a password")
    return SaslSecurity(mechanism, values["username"], values["password"])


def _login(reader: _PropertyReader) -> tuple[str, dict[str, str]]:
    """The login module of a JAAS configuration, and its options."""
    tokens = list(_tokens(reader))
    named = _MODULE.fullmatch(tokens[0]) if tokens else None
    if named is None or tokens[-1] != ";" or len(tokens) < 3 or tokens[1].lower() != "required":
        raise reader.wrong("sasl.jaas.config", _BAD_JAAS)
    pairs = tokens[2:-1]
    if len(pairs) % 3 or any(mark != "=" for mark in pairs[1::3]):
        raise reader.wrong("sasl.jaas.config", _BAD_JAAS)
    return named[1] or named[2], dict(zip(pairs[::3], pairs[2::3], strict=True))


def _tokens(reader: _PropertyReader) -> list[str]:
    text = reader.text("sasl.jaas.config").strip()
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise reader.wrong("sasl.jaas.config", _BAD_JAAS)
        quoted = found["quoted"]
        tokens.append(re.sub(r"\\(.)", r"\1", quoted[1:-1]) if quoted else found["word"] or found["mark"])
        at = found.end()
    return tokens
